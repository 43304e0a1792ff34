"""Sections that the pages of all runs have: what was run, the network, the curves, distances in the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from ase.data import chemical_symbols
from ase.symbols import Symbols
from numpy.typing import NDArray
from torch import nn

from ..core.files.read_write import read_json
from ..pages import Block, Code, Facts, Picture, Section, Table, number
from .history import starts_in
from .labels import SHOWN
from .plots import histogram, learning_curve
from .summary import HEADINGS, count_parameters, layer_cells, layer_rows, layers_in_words

Array = NDArray[Any]
SAMPLED = 100  # structures whose distances are counted
PAIRS = 6  # kinds of pairs with a line of their own


def duration(seconds: float | None) -> str:
    """Seconds as people say them.

    Example:
        >>> duration(8.04), duration(376.2), duration(7260.0)
        ('8.0 s', '6 min 16 s', '2 h 1 min')
    """
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def formula(z: Any) -> str:
    """Elements with their numbers, carbon and hydrogen first.

    Example:
        >>> formula([8, 1, 1, 6])
        'CH2O'
    """
    return str(Symbols(np.asarray(z, dtype=int)).get_chemical_formula())


def taken_parts(module: Any) -> dict[str, Any]:
    """The structures or molecules of each part of a data module that has some."""
    parts = {"training": module.train_set, "validation": module.val_set, "test": module.test_set}
    return {name: part.data.take(np.asarray(part.rows)) for name, part in parts.items() if len(part)}


def of_elements(z: Array) -> list[str]:
    """The element of each atom."""
    return np.asarray(chemical_symbols)[z].tolist()


def what_was_run(folder: Path, metrics: Mapping[str, Any]) -> Section:
    """Command, data, machine, versions and duration, and the whole configuration."""
    shown = ("torch", "e3nn", "lightning", "triton")
    versions = {name: metrics.get(f"{name}_version") for name in shown}
    threads = f", {metrics['threads']} threads of torch" if metrics.get("threads", 1) != 1 else ""
    training = None
    if metrics["epochs"] is not None:
        training = f"{duration(metrics['train_time_s'])}: {metrics['epochs']:,} epochs, {metrics['steps']:,} steps"
    rows = {
        "trained by": _trained_by(folder) if training is not None else None,
        "tested by": f"{metrics.get('command') or 'Python'} ({datetime.now():%Y-%m-%d %H:%M})",
        "network": f"{metrics['network']}, {metrics['num_parameters']:,} parameters",
        "data": f"{metrics['dataset']}, split: {metrics['split']}",
        "training": training,
        "weights": metrics["checkpoint"],
        "seed": metrics.get("seed"),
        "processor": f"{metrics['processor']}{threads}",
        "GPU": metrics["device"] if metrics["device"] != "cpu" else None,
        "versions": f"eqlayers {metrics['eqlayers_version']}, Python {metrics['python_version']}, "
        + ", ".join(f"{name} {release}" for name, release in versions.items() if release),
        "commit": metrics["git_commit"],
    }
    blocks: list[Block] = [Facts({name: str(value) for name, value in rows.items() if value is not None})]
    path = folder / "config.yaml"
    if path.is_file() and training is not None:  # weights of another run may have been tested
        blocks.append(Code("the whole configuration", path.read_text(encoding="utf-8")))
    return Section("What was run", blocks)


def _trained_by(folder: Path) -> str | None:
    """The commands of each start of a run, with their dates; None if the run did not note them."""
    path = folder / "summary.json"
    starts = starts_in(read_json(path, "the summary of a run", "Train again.")) if path.is_file() else []
    return "; then ".join(f"{one['command'] or 'Python'} ({one['date']})" for one in starts) or None


def network(model: nn.Module, device: Any, facts: Mapping[str, str]) -> Section:
    """The equivariant layers with their irreps, paths, parameters and backends."""
    rows = layer_rows(model, device)
    total, held = count_parameters(model), sum(row.parameters for row in rows if row.depth == 0)
    facts_of_network = {
        "class": type(model).__name__,
        "parameters": f"{total:,}, of which {total - held:,} are in no equivariant layer",
        "layers": layers_in_words(rows),
    }
    blocks: list[Block] = [Facts({name: value for name, value in {**facts_of_network, **facts}.items() if value})]
    if rows:
        blocks.append(Table(HEADINGS, layer_cells(rows, "\u00a0\u00a0"), left=5))
    return Section("Network", blocks)


def curves(folder: Path, main: Picture | None, history: Sequence[Mapping[str, float]]) -> Section:
    """The curve of the main error, and the curves of the other errors that the logs have."""
    if main is None:
        return Section("Learning curves", [])
    blocks: list[Block] = [main]
    logged = _logged(folder / "csv", {int(row["step"]) for row in history})
    names = [name for name in logged if name.startswith("val/") and "_mae_" in name and "/energy_mae" not in name]
    for name in names if len(names) > 1 else []:
        what, _, unit = name.removeprefix("val/").partition("_mae_")
        rows = _joined(logged.get(f"train/{what}_mae_{unit}", {}), logged[name])
        shown = what.replace("_", " ")
        if rows and f" of {shown} (" not in main.figure.axes[0].get_ylabel():
            figure = learning_curve(rows, shown, SHOWN.get(unit, unit), {})
            blocks.append(Picture(figure, f"Error of {shown}."))
    return Section("Learning curves", blocks)


def _logged(folder: Path, steps: set[int]) -> dict[str, dict[int, float]]:
    """Numbers by their name and step, at the ends of epochs; a later start of the run replaces what it did again."""
    logged = pandas.DataFrame({"step": []})
    for path in sorted(folder.glob("version_*/metrics.csv"), key=lambda path: int(path.parent.name.split("_")[1])):
        rows = pandas.read_csv(path).dropna(subset="step")
        rows = rows.assign(step=rows["step"].astype(int) + 1)
        rows = rows[rows["step"].isin(steps)]
        logged = pandas.concat([logged[logged["step"] < rows["step"].min()], rows]) if len(rows) else logged
    values = logged.set_index("step").items()
    return {str(name): column.dropna().to_dict() for name, column in values if column.notna().any()}


def _joined(train: Mapping[int, float], val: Mapping[int, float]) -> list[dict[str, float]]:
    """Rows as :func:`learning_curve` takes them."""
    steps = sorted(train.keys() | val.keys())
    return [{"step": s, "train_mae": train.get(s, math.nan), "val_mae": val.get(s, math.nan)} for s in steps]


def distances(dataset: Any, cutoff: float) -> Picture | None:
    """Distances of neighbours by pair of elements, in some structures."""
    places = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLED, len(dataset))).astype(int))
    lengths_of: list[Array] = []
    kinds: list[Array] = []
    for sample in (dataset[int(place)] for place in places):
        src, dst = sample.edge_index
        vectors = (sample.pos[dst] - sample.pos[src]).double()
        if "shifts" in sample:
            vectors = vectors + sample.shifts.double() @ sample.cell[0].double()
        once = (src <= dst).numpy()  # each pair is there twice
        lengths_of.append(vectors.norm(dim=-1).numpy()[once])
        kinds.append(np.sort(np.stack([sample.z[src].numpy(), sample.z[dst].numpy()], 1)[once], axis=1))
    lengths, pairs = np.concatenate(lengths_of), np.concatenate(kinds)
    if not len(lengths):
        return None
    names = np.asarray(["-".join(of_elements(pair)) for pair in np.unique(pairs, axis=0)])
    place = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(-np.bincount(place))[:PAIRS]
    series = {str(names[one]): lengths[place == one] for one in order}
    figure = histogram(series, "distance (A)", "pairs", logarithmic=False)
    least = min(series.items(), key=lambda item: item[1].min())
    more = f", the {PAIRS} most frequent of {len(names)} kinds of pairs" if len(names) > PAIRS else ""
    return Picture(
        figure,
        f"Distances of neighbours within {cutoff:g} A in {len(places)} training structures{more}. "
        f"The shortest has {number(least[1].min())} A ({least[0]}).",
    )


def span(numbers: Array) -> str:
    """One number, or the range of several."""
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"
