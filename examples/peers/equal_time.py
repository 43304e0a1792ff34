"""Networks trained for the same time: their errors on every embedded set, and against the number of frames.

    python examples/peers/equal_time.py                      # every point that is not in equal_time.json yet
    python examples/peers/equal_time.py --part curve --seconds 120 --model MACE
    python examples/peers/equal_time.py --model PaiNN --rate 2e-3    # another rate; validation chooses among rates
    python examples/peers/equal_time.py --plot               # picture and tables of the documentation, from the file

A point is a set, a number of training frames, a model, a time, a learning rate and a number of threads: one, or two in
the part `long`. All points have the same loop: equal batches, AdamW, a warm-up of 100 steps and a half cosine that ends
with the time, gradients clipped at 10, averaged weights, no look at the validation part in between. The clock starts
after one step whose result is thrown away, as kernels are compiled in it. `nox -s peers` runs it in an environment with
schnetpack; without this package its points are left out. What is finished is kept: the next call goes on.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from networks import MODELS
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from eqlayers import keep_memory
from eqlayers.core.files.read_write import atomic_write, read_json
from eqlayers.core.machine import source_commit
from eqlayers.data import MoleculeDataModule, StructureDataModule
from eqlayers.pages.page import new_figure, number, save_figure
from eqlayers.train.averaging import ema_decay
from eqlayers.train.history import write_json
from eqlayers.train.summary import count_parameters

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "equal_time.json"
BEGIN, END = "<!-- equal time: begin, written by examples/peers/equal_time.py --plot -->", "<!-- equal time: end -->"
FRAMES = (50, 100, 200, 500, 1000)
WARMUP, DECAY, CLIP = 100, 0.99, 10.0


class Set(NamedTuple):
    """A learned set, and its data module from a cutoff and a number of training frames."""

    quantity: str
    about: str
    data: Callable[[float, int | None], Any]


def _frames(name: str, split: str) -> Callable[[float, int | None], Any]:
    options: dict[str, Any] = {"split": split, "batch_size": 8, "eval_batch_size": 50}
    return lambda cutoff, frames: StructureDataModule(name, cutoff=cutoff, limit_train=frames, **options)


def _molecules(target: str) -> Callable[[float, int | None], Any]:
    return lambda cutoff, frames: MoleculeDataModule("mini", target, cutoff=cutoff, limit_train=frames)


SETS = {
    "ethanol_md": Set("forces", "ethanol, 500 K, split in time", _frames("ethanol_md", "time")),
    "ethanol_nm": Set("forces", "ethanol along normal modes", _frames("ethanol_nm", "random")),
    "aspirin_nm": Set("forces", "aspirin along normal modes", _frames("aspirin_nm", "random")),
    "mini_qm9 U0": Set("U0", "energy U0 of small molecules", _molecules("U0")),
    "mini_qm9 mu": Set("mu", "dipole moment of small molecules", _molecules("mu")),
}
#: Quantity -> errors: name, column of tables, factor from eV, Angstrom and Debye; the last is the one that counts.
ERRORS = {
    "forces": (("energy", "energy, meV", 1e3), ("forces", "forces, meV/A", 1e3)),
    "U0": (("property", "error, meV", 1e3),),
    "mu": (("property", "error, D", 1.0),),
}


class Part(NamedTuple):
    """Points that are shown together."""

    seconds: float
    sets: tuple[str, ...]
    frames: tuple[int | None, ...] = (None,)
    threads: int = 1


PARTS = {
    "curve": Part(40.0, ("ethanol_md",), FRAMES),
    "table": Part(60.0, tuple(SETS)),
    "long": Part(360.0, ("mini_qm9 U0",), threads=2),
}


class Point(NamedTuple):
    """One training."""

    set: str
    frames: int | None
    model: str
    seconds: float
    rate: float
    threads: int


def points(part: str, seconds: float | None, chosen: argparse.Namespace) -> list[Point]:
    """The points of a part, less what was not chosen."""
    kind = PARTS[part]
    time = kind.seconds if seconds is None else seconds
    return [
        Point(name, num, model, time, chosen.rate or MODELS[model].rate, kind.threads)
        for name in kind.sets
        if name in (chosen.set or kind.sets)
        for num in kind.frames
        if num is None or num in (chosen.frames or kind.frames)
        for model in MODELS
        if model in (chosen.model or MODELS) and SETS[name].quantity in MODELS[model].quantities
    ]


def loss_of(found: dict[str, Tensor], batch: Any, scale: float) -> Tensor:
    """Lengths of force errors and sizes of energy errors per atom, or sizes of errors, over the scale of the data."""
    if "property" in found:
        return ((found["property"] - batch.y.double()) / scale).abs().mean()
    atoms = torch.bincount(batch.batch)
    forces = ((found["forces"] - batch.forces).norm(dim=1) / scale).mean()
    return forces + ((found["energy"] - batch.energy).abs() / (atoms * scale)).mean()


def errors(net: nn.Module, loader: Any, quantity: str) -> dict[str, float]:
    """Mean absolute errors in the units of ``ERRORS``."""
    net.eval()
    deviations: dict[str, list[Tensor]] = {name: [] for name, *_ in ERRORS[quantity]}
    for batch in loader:
        found = net(batch)
        for name, parts in deviations.items():
            label = batch.y if name == "property" else batch[name]
            parts.append((found[name].detach().double() - label.double()).abs().flatten())
    return {name: factor * float(torch.cat(deviations[name]).mean()) for name, _, factor in ERRORS[quantity]}


def train(point: Point, say: Callable[[float], None]) -> dict[str, Any]:
    """Train for so long; the schedule follows the clock, so that it ends with the time on every machine."""
    torch.manual_seed(2026)
    torch.set_num_threads(point.threads)
    quantity, model = SETS[point.set].quantity, MODELS[point.model]
    data = SETS[point.set].data(model.cutoff, point.frames)
    data.setup()
    scale, loader = data.statistics.scale, data.train_dataloader()
    net = model.make(data, quantity).train()
    average = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=point.rate, weight_decay=0.0, fused=True)
    batch = next(iter(loader))
    loss_of(net(batch), batch, scale).backward()  # compiles
    step, epoch, failed, start = 0, 0, None, time.perf_counter()
    spent = 0.0
    while spent < point.seconds and failed is None:
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            spent = time.perf_counter() - start
            if spent >= point.seconds:
                break
            say(spent)
            cosine = 0.5 * (1 + math.cos(math.pi * spent / point.seconds))
            optimizer.param_groups[0]["lr"] = point.rate * min(1.0, (step + 1) / WARMUP) * cosine
            loss = loss_of(net(batch), batch, scale)
            if not torch.isfinite(loss):
                failed = f"loss not finite at step {step}"
                break
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            with torch.no_grad():
                for mean, current in zip(average.parameters(), net.parameters(), strict=True):
                    mean.lerp_(current, 1 - ema_decay(step, DECAY))
            step += 1
        else:
            epoch += 1
    say(point.seconds)
    facts = {"num_train": data.statistics.num_train, "steps": step, "epochs": epoch, "failed": failed}
    facts |= {"parameters": count_parameters(net), "about": model.about, "cutoff": model.cutoff}
    loaders = {"val": data.val_dataloader(), "test": data.test_dataloader()} if failed is None else {}
    return point._asdict() | facts | {part: errors(average, loader, quantity) for part, loader in loaders.items()}


def read_results(path: Path) -> list[dict[str, Any]]:
    """Finished points; none if there is no file."""
    found: list[dict[str, Any]] = []
    if path.is_file():
        found = read_json(path, "results", f"Remove {path}, or pass another --results.")["points"]
    return found


def chosen(results: list[dict[str, Any]], seconds: float, part: str) -> dict[tuple[str, str, int | None], Any]:
    """Points by set, model and frames: of several learning rates the one with the lowest validation error."""

    def validated(result: dict[str, Any]) -> float:
        return float(list(result["val"].values())[-1])

    best: dict[tuple[str, str, int | None], Any] = {}
    for result in results:
        key = (result["set"], result["model"], result["frames"])
        same = (result["seconds"], result["threads"]) == (seconds, PARTS[part].threads)
        if result["failed"] or not same or result["frames"] not in PARTS[part].frames:
            continue
        if key not in best or validated(result) < validated(best[key]):
            best[key] = result
    return best


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def page(results: list[dict[str, Any]], seconds: dict[str, float]) -> str:
    """The tables of the documentation: errors on the test parts."""
    names = ("set", "network", "energy, meV", "forces, meV/A", "steps", "learning rate", "parameters")
    text = ""
    for part, quantities in (("table", ("forces",)), ("table", ("U0", "mu")), ("long", ("U0",))):
        shown = names if quantities == ("forces",) else (*names[:2], "error", *names[4:])
        best, rows = chosen(results, seconds[part], part), ""
        for name, about in SETS.items():
            group = [best[name, model, None] for model in MODELS if (name, model, None) in best]
            keys = [key for key, *_ in ERRORS[about.quantity]]
            lowest = {key: min((result["test"][key] for result in group), default=0) for key in keys}
            for result in group if about.quantity in quantities else []:
                values = [number(result["test"][key]) for key in keys]
                unit = "" if len(keys) > 1 else ERRORS[about.quantity][0][1].rpartition(",")[2]
                marked = [
                    f"**{value}**{unit}" if result["test"][key] == lowest[key] else f"{value}{unit}"
                    for key, value in zip(keys, values, strict=True)
                ]
                about_net = f"{result['model']} of {MODELS[result['model']].package[1]}, {result['about']}"
                numbers = (f"{result['steps']:,}", f"{result['rate']:g}", f"{result['parameters']:,}")
                rows += _row(f"{name}: {about.about}", about_net, *marked, *numbers)
        if rows:
            on = "one thread" if PARTS[part].threads == 1 else f"{PARTS[part].threads} threads"
            text += (
                f"\nTrained for {seconds[part]:g} s on {on}:\n\n" + _row(*shown) + _row(*("---" for _ in shown)) + rows
            )
    curve = chosen(results, seconds["curve"], "curve")
    if curve:
        counts = sorted({frames for *_, frames in curve if frames is not None})
        text += f"\nForces of `ethanol_md` (meV/A) after {seconds['curve']:g} s, by training frames:\n\n"
        text += _row("network", *map(str, counts)) + _row(*("---" for _ in range(len(counts) + 1)))
        for model in [name for name in MODELS if any(name == model for _, model, _ in curve)]:
            found = [curve.get(("ethanol_md", model, frames)) for frames in counts]
            text += _row(model, *("-" if point is None else number(point["test"]["forces"]) for point in found))
        text += "\n![Force error against training frames](../images/ethanol_learning_curve.png)\n"
    return text or "\nNothing was measured yet.\n"


def show(results: list[dict[str, Any]], docs: Path, seconds: dict[str, float]) -> None:
    """Write the picture and the part of the page between the markers."""
    curve = chosen(results, seconds["curve"], "curve")
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for (_, model, frames), result in sorted(curve.items(), key=lambda item: item[0][2] or 0):
        x, y = lines.setdefault(model, ([], []))
        x.append(float(frames or 0))
        y.append(result["test"]["forces"])
    if lines:
        ordered = {model: lines[model] for model in MODELS if model in lines}
        figure = new_figure()
        axis = figure.subplots()
        for name, (x, y) in ordered.items():
            axis.loglog(x, y, "o-", label=name, linewidth=1.3, markersize=2.5)
        axis.legend(fontsize=7)
        axis.set_xticks(sorted({x for xs, _ in lines.values() for x in xs}), minor=False)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set(
            xlabel="training frames",
            ylabel="test error, forces (meV/A)",
            title=f"ethanol, {seconds['curve']:g} s of training each",
        )
        save_figure(figure, docs / "images" / "ethanol_learning_curve.png")
    path = docs / "benchmarks" / "learning.md"
    before, _, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{path} must have the markers {BEGIN} and {END}, got a page without. Put them back.")
    with atomic_write(path) as file:
        file.write(f"{before}{BEGIN}\n{page(results, seconds)}\n{END}{after}".encode())
    print(f"written: {path}{', ethanol_learning_curve.png' if lines else ''}")


def main() -> None:
    """Train what is asked for and not finished, or show the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="all by default")
    parser.add_argument(
        "--seconds",
        type=float,
        help="of a point; by default 40 for the curve, 60 or 360 for tables",
    )
    parser.add_argument("--set", choices=SETS, action="append", help="all by default")
    parser.add_argument("--model", choices=MODELS, action="append", help="all by default")
    parser.add_argument("--frames", type=int, choices=FRAMES, action="append", help="of the curve; all by default")
    parser.add_argument("--rate", type=float, help="highest learning rate, in place of the models' own")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file that is filled; equal_time.json by default")
    parser.add_argument("--plot", action="store_true", help="no training: write picture and tables")
    parser.add_argument("--docs", type=Path, default=HERE.parents[1] / "docs", help="where --plot writes")
    args = parser.parse_args()
    parts = args.part or list(PARTS)
    results = read_results(args.results)
    if args.plot:
        show(results, args.docs, {part: args.seconds or PARTS[part].seconds for part in PARTS})
        return
    keep_memory()
    done = {tuple(result[name] for name in Point._fields) for result in results}
    asked = [point for part in parts for point in points(part, args.seconds, args)]
    absent = sorted({point.model for point in asked if not MODELS[point.model].there})
    todo = [point for point in asked if point not in done and point.model not in absent]
    for model in absent:
        print(f"left out: {model}, as {MODELS[model].package[1]} is not installed (nox -s peers installs it)")
    total = sum(point.seconds for point in todo)
    print(f"{len(asked)} points, {len(todo)} to do, about {total / 60:.0f} minutes", flush=True)
    commit = source_commit()  # now, as the results themselves may be in the repository
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with bar:
        task, before = bar.add_task("points", total=total), 0.0
        for point in todo:
            frames = "" if point.frames is None else f", {point.frames} frames"
            bar.update(task, description=f"{point.set}{frames}, {point.model}")
            result = train(point, lambda spent, before=before: bar.update(task, completed=before + spent))
            before += point.seconds
            results = [*read_results(args.results), result | {"commit": commit}]
            write_json(args.results, {"points": results})
            bar.console.print(json.dumps(result), soft_wrap=True)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # what is read is the same in every point
    main()
