"""Sections of the page of a run: what was run, data, network, curves, predictions, largest errors, laws."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from ase import Atoms
from ase.data import chemical_symbols
from numpy.typing import NDArray
from torch import nn

from ..core.errors import EqlayersError
from ..core.files.read_write import read_json
from ..data.structures import Label, plain
from ..models import Potential
from ..pages.page import Block, Code, Facts, Picture, Section, Table, Text, number
from ..testing import check_potential
from .plots import histogram, learning_curve, parity_plot
from .predictions import Predictions, Row
from .steps import SHOWN
from .summary import HEADINGS, count_parameters, layer_cells, layer_rows, layers_in_words

Array = NDArray[Any]
SAMPLED = 100  # structures whose distances are counted
PAIRS = 6  # pairs of elements with a line of their own
MOST_GROUPS = 20  # of structures in a table
MOST_POINTS = 20_000  # of a parity plot
WORST = 12  # structures in a table
MOST_ATOMS = 64  # of the structures that laws are checked on
SYMBOLS = np.asarray(chemical_symbols)


def what_was_run(folder: Path, facts: Mapping[str, Any]) -> Section:
    """Commands with their dates, facts of the run, and the whole configuration."""
    rows, blocks, configuration = {}, [], folder / "config.yaml"
    if facts["epochs"] is not None:  # otherwise weights of another run were tested
        path = folder / "summary.json"
        starts = read_json(path, "the summary of a run", "Train again.")["starts"] if path.is_file() else []
        rows["trained by"] = "; then ".join(f"{one['command'] or 'Python'} ({one['date']})" for one in starts) or None
        if configuration.is_file():
            blocks.append(Code("the whole configuration", configuration.read_text(encoding="utf-8")))
    rows["tested by"] = f"{facts.get('command') or 'Python'} ({datetime.now():%Y-%m-%d %H:%M})"
    rows |= {name.replace("_", " "): value for name, value in facts.items() if name not in ("name", "command")}
    return Section("What was run", [Facts({n: str(value) for n, value in rows.items() if value is not None}), *blocks])


def network(model: nn.Module, device: Any, facts: Mapping[str, str]) -> Section:
    """The equivariant layers with their irreps, paths, parameters and backends."""
    rows = layer_rows(model, device)
    total, held = count_parameters(model), sum(row.parameters for row in rows if row.depth == 0)
    numbers = f"{total:,}, of which {total - held:,} are in no equivariant layer"
    known = {"class": type(model).__name__, "parameters": numbers, "layers": layers_in_words(rows), **facts}
    blocks: list[Block] = [Facts({name: value for name, value in known.items() if value})]
    if rows:
        blocks.append(Table(HEADINGS, layer_cells(rows, "\u00a0\u00a0"), left=5))
    return Section("Network", blocks)


def curves(folder: Path, history: Sequence[dict[str, float]], main: Row) -> list[Picture]:
    """The curve of the main error, with its baselines and the test, and the other errors that the logs have."""
    baselines = {name: errors.mae for _, name, errors in main.baselines}
    first = learning_curve(history, main.name, main.label.errors, baselines, main.errors.mae)
    pictures = [Picture(first, "The error that decides which weights are kept.")]
    logged = _logged(folder / "csv", {int(row["step"]) for row in history})
    for name in logged:
        what, _, unit = name.removeprefix("val/").partition("_mae_")
        if not (name.startswith("val/") and unit) or what in ("energy", main.key):
            continue
        columns = {f"train/{what}_mae_{unit}": "train_mae", name: "val_mae"}
        rows = logged.reindex(columns=[*columns]).rename(columns=columns).dropna(how="all").reset_index()
        shown = what.replace("_", " ")
        figure = learning_curve(rows.to_dict("records"), shown, SHOWN.get(unit, unit), {})
        pictures.append(Picture(figure, f"Error of {shown}."))
    return pictures


def _logged(folder: Path, steps: set[int]) -> Any:
    """Logged numbers by step, at the ends of epochs; a later start of the run replaces what it did again."""
    logged = pandas.DataFrame({"step": []})
    for path in sorted(folder.glob("version_*/metrics.csv"), key=lambda path: int(path.parent.name.split("_")[1])):
        rows = pandas.read_csv(path).dropna(subset="step")
        rows = rows.assign(step=rows["step"].astype(int) + 1)
        rows = rows[rows["step"].isin(steps)]
        logged = pandas.concat([logged[logged["step"] < rows["step"].min()], rows]) if len(rows) else logged
    return logged.groupby("step").last().dropna(axis="columns", how="all")


def distances(dataset: Any, cutoff: float) -> Picture | None:
    """Distances of neighbours by pair of elements, in some structures."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLED, len(dataset))).astype(int)).tolist()
    tables = []
    for sample in map(dataset.__getitem__, rows):
        once = sample.edge_index[0] <= sample.edge_index[1]  # each pair is there twice
        src, dst = edges = sample.edge_index[:, once]
        vectors = (sample.pos[dst] - sample.pos[src]).double()
        if "shifts" in sample:
            vectors = vectors + sample.shifts[once].double() @ sample.cell[0].double()
        first, second = SYMBOLS[np.sort(sample.z[edges].numpy(), axis=0)]
        pairs = np.char.add(np.char.add(first, "-"), second)
        tables.append(pandas.DataFrame({"pair": pairs, "length": vectors.norm(dim=-1).numpy()}))
    lengths = pandas.concat(tables).groupby("pair")["length"]
    frequent = lengths.size().sort_values(ascending=False, kind="stable").index[:PAIRS]
    series = {pair: lengths.get_group(pair).to_numpy() for pair in frequent}
    if not series:
        return None
    least = min(series, key=lambda pair: series[pair].min())
    more = f", the {PAIRS} most frequent of {len(lengths)} pairs of elements" if len(lengths) > PAIRS else ""
    return Picture(
        histogram(series, "distance (A)", "pairs", logarithmic=False),
        f"Distances of neighbours within {cutoff:g} A in {len(rows)} training structures{more}. "
        f"The shortest has {number(series[least].min())} A ({least}).",
    )


def data(module: Any, labels: Mapping[str, Label]) -> Section:
    """The parts and groups of a data module, findings of the checks, and distributions."""
    parts = {"training": module.train_set, "validation": module.val_set, "test": module.test_set}
    taken = {name: part.taken for name, part in parts.items() if len(part)}
    names = {name: label.name for name, label in labels.items()}
    rows = []
    for name, part in taken.items():
        sizes = " to ".join(map(str, sorted({part.n_atoms.min(), part.n_atoms.max()})))
        numbers = f"{len(part):,}", f"{len(part.z):,}", sizes, f"{int(part.pbc.any(1).sum()):,}"
        rows.append((name, shares(part.z), ", ".join(names.get(label, label) for label in part.labels), *numbers))
    headings = ("part", "elements", "labels", "structures", "atoms", "atoms each", "periodic")
    blocks: list[Block] = [Table(headings, rows, left=3)]
    groups = np.unique(np.concatenate([part.config_type for part in taken.values()])).tolist()
    if 1 < len(groups) <= MOST_GROUPS:
        each = [(g or "none", *(str(int((part.config_type == g).sum())) for part in taken.values())) for g in groups]
        blocks.append(Table(("config_type", *taken), each, "Structures by config_type."))
    blocks += [Text(sentence, warning=True) for sentence in module.findings]
    if not module.findings:
        blocks.append(Text("The checks of units, signs, copies and neighbours found nothing."))
    return Section("Data", [*blocks, Text("\n".join(module.report)), *_distributions(module, taken, labels)])


def shares(z: Array) -> str:
    """The elements, with their share of the atoms."""
    elements, counts = np.unique(z, return_counts=True)
    return ", ".join(f"{SYMBOLS[k]} {100 * n / len(z):.3g}%" for k, n in zip(elements, counts, strict=True))


def _distributions(module: Any, taken: Mapping[str, Any], labels: Mapping[str, Label]) -> list[Picture]:
    """Histograms of energies or a property by part, of forces by element, and of distances by pair of elements."""
    shifts, property_label = module.statistics.shifts, labels.get("y")
    name, what, unit = ("energy per atom", "Energies per atom", "eV")
    if property_label is not None:
        name, what, unit = property_label.name, f"The {module.target.about}", property_label.values
    series = {}
    for part_name, part in taken.items():
        rest = getattr(part, "y" if property_label else "energy") - part.counts(tuple(shifts)) @ [*shifts.values()]
        rest = rest if property_label else rest / part.n_atoms
        series[part_name] = rest[np.isfinite(rest)]
    pictures = []
    if any(map(len, series.values())):
        spreads = [f"{part} {number(v.mean())} and {number(v.std())}" for part, v in series.items() if len(v)]
        less = ", less the shifts of the atoms" if any(shifts.values()) else ""
        about = f"{what}{less}; mean and standard deviation in {unit}: {', '.join(spreads)}."
        about += " Where no training structure is, a network extrapolates."
        pictures.append(Picture(histogram(series, f"{name} ({unit})", "structures"), about))
    train = taken["training"]
    sizes = np.linalg.norm(train.forces, axis=1)
    forces = {SYMBOLS[z]: sizes[(train.z == z) & np.isfinite(sizes)] for z in train.species}
    if any(map(len, forces.values())):
        figure = histogram(forces, "length of the force (eV/A)", "atoms")
        pictures.append(Picture(figure, "Forces in the training part, by element."))
    near = distances(module.train_set, module.cutoff)
    return pictures if near is None else [*pictures, near]


# ---- what was tested ------------------------------------------------------------------------------------------------


def predictions(tested: Predictions, rows: Sequence[Row]) -> dict[str, list[Picture]]:
    """Predictions against labels, by the name of their file: by element, by size or by group of structures."""
    pictures: dict[str, list[Picture]] = {}
    for name, label in tested.labels.items():
        per_atom, several, by = label.axis == "A", len(tested.groups) > 1, {}
        if per_atom:
            by["element"] = SYMBOLS[tested.z]
        if name == "y":
            heavy = np.add.reduceat((tested.z > 1).astype(int), tested.starts)
            by["number of heavy atoms"] = np.array([f"{count} heavy atoms" for count in heavy])
        if several or not by:
            by["config_type" if several else ""] = tested.group_names(per_atom)
        true, error = tested.values[f"{name}_true"], tested.values[f"{name}_error"]
        columns, true, error = true[0].size, true.ravel(), error.ravel()
        there = np.flatnonzero(np.isfinite(true))
        there = there[:: len(there) // MOST_POINTS + 1]
        if not len(there):  # the training part has labels that the test part lacks
            continue
        maes = [f": MAE {number(row.errors.mae)} {label.errors}" for row in rows if row.name == label.name]
        x, y, caption = true[there], (true + error)[there], label.name + "".join(maes)
        of_label = pictures["parity" if name == "y" else f"parity_{plain(label.name)}"] = []
        for what, names in by.items():
            figure = parity_plot(x, y, label.name, label.values, caption, names[there // columns].tolist())
            of_label.append(Picture(figure, f"Predicted against true {label.name}{what and f', by {what}'}."))
    return pictures


def largest_errors(tested: Predictions) -> Section:
    """Structures with the largest errors of energies, of forces, or of a property."""
    values, labels = {}, {}
    for name, label in tested.labels.items():
        error = tested.values[f"{name}_error"] * label.factor
        if name == "energy":
            values[f"energy, {label.errors}/atom"] = error / tested.atoms
        elif name == "forces":
            lengths = np.linalg.norm(error, axis=1)
            values[f"largest force, {label.errors}"] = np.maximum.reduceat(lengths, tested.starts)
        elif name == "y":
            true = tested.values["y_true"]
            labels = {f"true, {label.values}": true, f"predicted, {label.values}": true + error / label.factor}
            values[f"error, {label.errors}"] = error
    blocks: list[Block] = []
    groups = {"config_type": tested.group_names(per_atom=False)} if len(tested.groups) > 1 else {}
    for heading, errors in values.items():
        order = np.argsort(-np.nan_to_num(np.abs(errors), nan=-1.0), kind="stable")[:WORST]
        rows = []
        for n in order[np.isfinite(errors[order])]:
            formula = Atoms(tested.z[tested.starts[n] :][: tested.atoms[n]]).get_chemical_formula()
            texts = *(names[n] for names in groups.values()), *(f"{float(label[n]):.6g}" for label in labels.values())
            numbers = (number(each[n]) for each in values.values())
            rows.append((str(int(tested.values["idx"][n])), formula, *texts, *numbers))
        what = {"error": "the property", "largest force": "the worst force"}.get(heading.split(",")[0], "energy")
        if rows:
            headings = ("row in the file", "structure", *groups, *labels, *values)
            blocks.append(Table(headings, rows, f"By the error of {what}.", left=2 + len(groups)))
    return Section("Largest errors", blocks)


def atomic_energies(tested: Predictions, potential: Potential) -> Section:
    """The energy of each atom from the network, beyond the shift of its element."""
    energies, series, rows = tested.values.get("energies", ()), {}, []
    shifts = dict(zip(potential.species, potential.shifts.tolist(), strict=True))
    for z in np.unique(tested.z).tolist() if len(energies) else ():
        each = series[SYMBOLS[z]] = energies[tested.z == z] - shifts[z]
        numbers = (each.mean(), each.std(), each.min(), each.max())
        rows.append((SYMBOLS[z], f"{len(each):,}", f"{shifts[z]:.6g}", *(f"{x:.3f}" for x in numbers)))
    if not rows:
        return Section("Energies of atoms", [])
    headings = ("element", "atoms", "shift", "mean", "deviation", "least", "greatest")
    about = (
        "Energies that the network gives the atoms of the test part, less the shift of the element. Only their sums "
        "are trained, so compare atoms of one element with each other."
    )
    picture = Picture(histogram(series, "energy (eV)", "atoms", logarithmic=False), "Energies by element.")
    return Section("Energies of atoms", [Text(about), Table(headings, rows, "In eV."), picture])


def checks(potential: Potential, module: Any) -> Section:
    """The result of `eqlayers check` on the smallest test structures, one with periods and one without.

    The checks run on the CPU, as a GPU would first compile kernels in float64 for a minute.
    """
    title, part = "eqlayers check", module.test_set.taken
    order = np.argsort(part.n_atoms, kind="stable").tolist()
    small = [row for row in order if 1 < part.n_atoms[row] <= MOST_ATOMS]
    rows = [(row, part.atoms(row)) for row in {bool(part.pbc[row].any()): row for row in reversed(small)}.values()]
    if not rows:
        return Section(title, [Text(f"No test structure has from 2 to {MOST_ATOMS} atoms, so nothing was checked.")])
    structures = [Atoms(part.z[n], part.pos[n], cell=part.cell[row], pbc=part.pbc[row]) for row, n in rows]
    names = [f"{a.get_chemical_formula()} (row {part.idx[row]})" for a, (row, _) in zip(structures, rows, strict=True)]
    about = (
        f"Laws that every potential obeys, measured in float64 on the CPU, on {' and '.join(names)} of the test part"
    )
    try:
        with torch.enable_grad():
            report = check_potential(copy.deepcopy(potential).cpu(), structures)
    except EqlayersError as error:
        return Section(title, [Text(f"{about}: this failed. {error}", warning=True)])
    failed, total = len(report.failures), len(report.rows)
    verdict = f"{failed} of {total} are broken" if failed else f"all {total} hold"
    laws = [
        ("holds" if row.ok else "BROKEN", row.name, row.unit, f"{row.measured:.1e}", f"{row.bound:.1e}")
        for row in report.rows
    ]
    headings = ("", "law", "unit", "deviation", "by rounding, at most")
    return Section(title, [Text(f"{about}: {verdict}.", bool(failed)), Table(headings, laws, left=3)])
