"""Errors of AdamW and SOAP after equally many steps: `python docs/benchmarks/optimizers.py run`, then `... report`.

`run` trains what `optimizers.csv` does not have, one process with one thread for each run: first every learning rate
with one seed, then the rate of the least validation error with three seeds. A run adds its row to `optimizers.csv`, and
its validation errors to `optimizers_curves.csv`, when it ends; without these rows it is trained again. `report` writes
`docs/images/optimizers.svg` and the table of `docs/howto/optimizers.md`. `cost` prints the optimizers' part of a step.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from rich.progress import Progress

from eqlayers.data import StructureDataModule
from eqlayers.models import MACE, Potential, Structures
from eqlayers.optim import SOAP as Soap

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE, CHART = ROOT / "docs/howto/optimizers.md", ROOT / "docs/images/optimizers.svg"
RESULTS, CURVES = HERE / "optimizers.csv", HERE / "optimizers_curves.csv"
BEGIN = "<!-- numbers: begin, written by docs/benchmarks/optimizers.py -->"
END = "<!-- numbers: end -->"
LOCK = Lock()  # of the stored results, while several runs end
SEEDS = (2026, 1, 2)
LENGTHS = (25, 50, 100)  # percent of the schedule
FORCES = ("best_val_forces_mae_meV_A", "test_forces_mae_meV_A", "meV/A")
U0 = ("best_val_U0_mae_meV", "test_U0_mae_meV", "meV")
LABELS = {"data.auxiliary": "{charges: 1.0, zpve: 0.5}"}
ADAMW, SOAP = {"model.optimizer": "adamw"}, {"model.optimizer": "soap"}


class Way(NamedTuple):
    """A way to train: options of `eqlayers fit`, learning rates to choose from, and epochs of the whole schedule."""

    options: dict[str, Any]
    rates: tuple[float, ...]
    epochs: int


class Study(NamedTuple):
    """Trainings of one network on one set: validation and test error in metrics.json with their unit, and ways."""

    about: str
    config: str
    errors: tuple[str, str, str]
    options: dict[str, Any]
    ways: dict[str, Way]
    lengths: tuple[int, ...] = LENGTHS
    tuning: int = LENGTHS[0]  # percent of the schedule after which learning rates are compared


def both(epochs: int, rates: tuple[float, ...]) -> dict[str, Way]:
    """AdamW and SOAP with equally many steps."""
    return {"AdamW": Way(ADAMW, rates, epochs), "SOAP": Way(SOAP, rates, epochs)}


FURTHER = LABELS | {"data.extra": "examples/data/further_qm9_xtb.npz"}
#: Recipes for files that this repository does not have: on embedded frames, shorter, with 32 channels, on a CPU.
SMALL = {
    "data.published": "null",
    "data.split": "random",
    "data.num_workers": 0,
    "threads": 1,
    "trainer.accelerator": "cpu",
    "model.warmup_steps": 100,
    "model.model.init_args.hidden": "32x0e + 32x1o + 32x2e",
}
STUDIES = {
    "molecules": Study(
        "network of `make train`, U0",
        "configs/qm9_mini.yaml",
        U0,
        {"data.auxiliary": "null"},
        {
            "AdamW": Way(ADAMW, (0.02,), 200),
            "SOAP": Way(SOAP, (0.02,), 200),
            "SOAP, further labels": Way(SOAP | LABELS, (0.02, 0.04), 200),
            "SOAP, further labels and molecules": Way(SOAP | FURTHER, (0.02,), 62),
        },
        (100,),
        100,
    ),
    "ethanol": Study("MACE, ethanol", "configs/ethanol.yaml", FORCES, {}, both(75, (0.015, 0.03, 0.06, 0.12))),
    "nequip": Study(
        "NequIP, ethanol",
        "configs/ethanol.yaml",
        FORCES,
        {
            "model.model": "eqlayers.models.NequIP",
            "model.model.init_args.hidden": "32x0e + 32x1o + 32x2e",
            "model.model.init_args.species": "[H, C, O]",
            "model.model.init_args.layers": 3,
            "model.model.init_args.lmax": 2,
        },
        both(15, (0.015, 0.03, 0.06, 0.12)),
    ),
    "equiformer": Study(
        "Equiformer, ethanol", "configs/ethanol_equiformer.yaml", FORCES, {}, both(20, (0.015, 0.03, 0.06, 0.12))
    ),
    "rmd17": Study(
        "`configs/rmd17.yaml`, displaced ethanol",
        "configs/rmd17.yaml",
        FORCES,
        SMALL | {"data.path": "ethanol_nm", "data.train": 700, "data.val": 50, "data.test": 250},
        both(20, (0.01, 0.02, 0.04, 0.08, 0.16)),
    ),
    "3bpa": Study(
        "`configs/3bpa.yaml`, displaced aspirin",
        "configs/3bpa.yaml",
        FORCES,
        SMALL | {"data.path": "aspirin_nm", "data.val": 25, "data.test": 100, "data.test_path": "null"},
        both(40, (0.02, 0.04, 0.08, 0.16)),
    ),
    "alloy": Study(
        "recipe of `eqlayers new`, CuAu crystal",
        "{out}/alloy.yaml",
        FORCES,
        {
            "threads": 1,
            "trainer.accelerator": "cpu",
            "data.cutoff": 4.5,
            "model.model.init_args.hidden": "32x0e + 32x1o",
            "trainer.check_val_every_n_epoch": 5,
        },
        both(30, (0.01, 0.02, 0.04, 0.08, 0.16)),
    ),
    "fine_tuning": Study(
        "`configs/fine_tuning.yaml`, ethanol to aspirin",
        "configs/fine_tuning.yaml",
        FORCES,
        {"start_from": "{out}/start/potential.pt"},
        both(40, (0.01, 0.02, 0.04, 0.08, 0.16)),
    ),
}


class Run(NamedTuple):
    """One training."""

    study: str
    way: str
    rate: float
    percent: int
    seed: int

    @property
    def folder(self) -> str:
        """Name of the folder of the run."""
        way = self.way.replace(", ", "-").replace(" ", "_")
        return f"{self.study}-{way}-{self.rate:g}-{self.percent}-{self.seed}"

    def options(self, out: Path) -> list[str]:
        """Options of `eqlayers fit`."""
        study = STUDIES[self.study]
        way = study.ways[self.way]
        options: dict[str, Any] = {
            **study.options,
            **way.options,
            "model.learning_rate": self.rate,
            "trainer.max_epochs": round(way.epochs * self.percent / 100),
            "seed_everything": self.seed,
            "data.seed": self.seed,
        }
        words = [study.config, *(part for k, v in options.items() for part in (f"--{k}", str(v)))]
        return [word.replace("{out}", str(out)) for word in words]


COLUMNS = [*Run._fields, "steps", "validation", "test", "seconds"]


def stored() -> dict[Run, dict[str, str]]:
    """The stored results."""
    with RESULTS.open() as file:
        return {
            Run(row["study"], row["way"], float(row["rate"]), int(row["percent"]), int(row["seed"])): row
            for row in csv.DictReader(file)
        }


def store(run: Run, out: Path) -> str:
    """Add the results of a run to the stored ones: rows in the order of studies, ways, rates, lengths and seeds."""
    folder = out / run.folder
    if not (folder / "metrics.json").is_file():
        return "failed, see its log"
    told = json.loads((folder / "metrics.json").read_text())
    errors = [f"{told[key]:.6g}" for key in STUDIES[run.study].errors[:2]]
    row = [*run, told["steps"], *errors, f"{told['train_time_s']:.1f}"]
    with LOCK:
        rows = stored() | {run: dict(zip(COLUMNS, map(str, row), strict=True))}
        ranks = [(name, way) for name, study in STUDIES.items() for way in study.ways]
        order = sorted(rows, key=lambda one: (ranks.index(one[:2]), *one[2:4], SEEDS.index(one.seed)))
        overwrite(RESULTS, [COLUMNS, *(rows[one].values() for one in order)])
        if run.percent == LENGTHS[-1] and run.seed == SEEDS[0]:
            history = json.loads((folder / "history.json").read_text())
            head = [run.study, run.way, f"{run.rate:g}"]
            new = [[*head, row["step"], f"{row['time_s']:.1f}", f"{row['val_mae']:.5g}"] for row in history]
            with CURVES.open() as file:
                title, *kept = csv.reader(file)
            kept = [one for one in kept if one[:3] != head] + [one for one in new if one[-1] != "nan"]
            overwrite(CURVES, [title, *sorted(kept, key=lambda one: (ranks.index((one[0], one[1])), float(one[2])))])
    return f"{told[STUDIES[run.study].errors[1]]:.4g}"


def overwrite(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write a table."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def chosen(runs: Iterable[Run]) -> Run:
    """The run with the least validation error."""
    listed, results = list(runs), stored()
    errors = {run: float(results[run]["validation"]) for run in listed if run in results}
    if not errors and len(listed) > 1:
        raise SystemExit(f"{listed[0].study}, {listed[0].way}: no learning rate is tried yet. Run them first.")
    return min(errors, key=lambda run: errors[run]) if errors else listed[0]


def train(runs: Iterable[Run], out: Path, jobs: int) -> None:
    """Train the runs without stored results."""
    results = stored()
    left = [run for run in dict.fromkeys(runs) if run not in results]

    def one(run: Run) -> str:
        further = ["--runs", str(out), "--name", run.folder, "--report", "false", "--trainer.max_time", "01:00:00:00"]
        command = [sys.executable, "-m", "eqlayers", "fit", "--resume", "-c", *run.options(out), *further]
        with (out / f"{run.folder}.log").open("w") as log:
            subprocess.call(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        return store(run, out)

    with Progress() as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("trainings", total=len(left))
        for run, told in zip(left, pool.map(one, left), strict=True):
            progress.advance(task)
            progress.print(f"{run.folder}: {told}")


def rates(studies: Iterable[str]) -> list[Run]:
    """Every learning rate with one seed, where there is a choice."""
    listed = []
    for name in studies:
        for way, settings in STUDIES[name].ways.items():
            listed += [Run(name, way, rate, STUDIES[name].tuning, SEEDS[0]) for rate in settings.rates]
    return listed


def lengths(studies: Iterable[str]) -> list[Run]:
    """Every length and seed at the rate that the validation error chose."""
    listed = []
    for name in studies:
        for way in STUDIES[name].ways:
            best = chosen(run for run in rates([name]) if run.way == way)
            listed += [best._replace(percent=p, seed=seed) for p in STUDIES[name].lengths for seed in SEEDS]
    return sorted(listed, key=lambda run: (SEEDS.index(run.seed), -run.percent))


def prepare(studies: Iterable[str], out: Path) -> None:
    """Make the crystal, and the potential that fine-tuning begins with."""

    def eqlayers(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "eqlayers", *words], cwd=ROOT, check=True)

    if "alloy" in studies and not (out / "alloy.yaml").exists():
        write(out / "alloy.xyz", list(crystals()))
        eqlayers("new", str(out / "alloy.xyz"), "-o", str(out / "alloy.yaml"))
    if "fine_tuning" in studies and not (out / "start" / "potential.pt").exists():
        how = ["--model.learning_rate", "0.03", "--trainer.max_epochs", "25"]
        eqlayers("fit", "-c", "configs/ethanol.yaml", *how, "--runs", str(out), "--name", "start", "--report", "false")


def crystals(number: int = 600) -> Iterator[Atoms]:
    """Frames of molecular dynamics of 32 atoms of CuAu at 600 K, with stress, by effective medium theory."""
    rng = np.random.default_rng(0)
    atoms = bulk("Cu", a=3.9, cubic=True).repeat(2)
    atoms.numbers[rng.permutation(32)[:16]] = 79
    atoms.calc = EMT()
    MaxwellBoltzmannDistribution(atoms, temperature_K=1200, rng=rng)
    dynamics = Langevin(atoms, 4 * units.fs, temperature_K=600, friction=0.01 / units.fs, rng=rng)
    for _ in range(number):
        dynamics.run(10)
        frame = atoms.copy()
        frame.calc = SinglePointCalculator(
            frame, energy=atoms.get_potential_energy(), forces=atoms.get_forces(), stress=atoms.get_stress()
        )
        yield frame


class Point(NamedTuple):
    """Errors of one length of a way at its rate: a mean over seeds, and the deviation."""

    number: int
    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.deviation:.2g}" if self.number > 1 else f"{self.mean:.3g}"


def points(study: str, way: str) -> tuple[Run, dict[int, Point]]:
    """The first run at the rate that the validation error chose, and test errors by length."""
    best = chosen(run for run in rates([study]) if run.way == way)
    listed: dict[int, list[float]] = {}
    for run, row in stored().items():
        if run[:3] == best[:3]:
            listed.setdefault(run.percent, []).append(float(row["test"]))
    return best, {
        percent: Point(len(errors), mean(errors), stdev(errors) if len(errors) > 1 else 0.0)
        for percent, errors in listed.items()
    }


def needed(adamw: dict[int, Point], soap: dict[int, Point]) -> str:
    """The part of AdamW's steps after which SOAP has AdamW's error, by interpolation over lengths."""
    goal, ends = adamw[100].mean, sorted(soap)
    if soap[ends[0]].mean <= goal:
        return f"below {ends[0] / 100:.2g}"
    for low, high in pairwise(ends):
        before, after = soap[low].mean, soap[high].mean
        if after <= goal:
            part = math.log(before / goal) / math.log(before / after)
            return f"{math.exp((1 - part) * math.log(low) + part * math.log(high)) / 100:.2g}"
    return "above 1"


def table() -> str:
    """The table of the page."""
    results = stored()
    lines = [
        "| network and data | optimizer | rate | 25 % | 50 % | 100 % | steps | steps for AdamW's error |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, study in STUDIES.items():
        reference: dict[int, Point] = {}
        for way in study.ways:
            if not any(run[:2] == (name, way) for run in results):
                continue
            best, errors = points(name, way)
            reference = errors if way == "AdamW" else reference
            whole = results.get(best._replace(percent=LENGTHS[-1]))
            steps = f"{int(whole['steps']):,}" if whole else "-"
            part = needed(reference, errors) if reference is not errors and 100 in errors and 100 in reference else ""
            cells = [str(errors.get(percent, "-")) for percent in LENGTHS]
            lines.append(
                f"| {study.about}, {study.errors[2]} | {way} | {best.rate:g} | {' | '.join(cells)} | {steps} | {part} |"
            )
    return "\n".join(lines)


def draw() -> None:
    """Validation errors over steps and over seconds."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    with CURVES.open() as file:
        rows = list(csv.DictReader(file))
    shown = [name for name in ("molecules", "ethanol") if any(row["study"] == name for row in rows)]
    with plt.rc_context({"svg.hashsalt": "eqlayers", "svg.fonttype": "path", "font.size": 8}):
        figure, axes = plt.subplots(len(shown), 2, figsize=(7.4, 2.7 * len(shown)), layout="constrained", squeeze=False)
        for name, pair in zip(shown, axes, strict=True):
            for way in STUDIES[name].ways:
                rate = f"{points(name, way)[0].rate:g}"
                line = [row for row in rows if (row["study"], row["way"], row["rate"]) == (name, way, rate)]
                for axis, over in zip(pair, ("step", "seconds"), strict=True):
                    axis.plot([float(row[over]) for row in line], [float(row["validation"]) for row in line], label=way)
            for axis, over in zip(pair, ("steps", "seconds"), strict=True):
                least = min(float(row["validation"]) for row in rows if row["study"] == name)
                axis.set(
                    xlabel=over,
                    yscale="log",
                    ylim=(0.9 * least, 12 * least),
                    title=STUDIES[name].about.replace("`", ""),
                )
                axis.spines[["top", "right"]].set_visible(False)
            pair[0].set_ylabel(f"validation error, {STUDIES[name].errors[2]}")
            pair[1].legend(frameon=False, fontsize=7)
        figure.savefig(CHART, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def cost(rounds: int = 120) -> None:
    """Print the optimizers' part of a training step of `configs/ethanol.yaml` on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = StructureDataModule("ethanol_md", split="time", cutoff=4.0, batch_size=8)
    data.setup()
    batch = next(iter(data.train_dataloader()))
    network = MACE(["H", "C", "O"], hidden="64x0e + 64x1o", lmax=3, cutoff=4.0, radial_hidden=[32])
    potential = Potential(network, species=["H", "C", "O"])
    optimizers = {"AdamW": torch.optim.AdamW(network.parameters(), fused=True), "SOAP": Soap(network)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in optimizers}
    for _ in range(rounds):
        for name, optimizer in optimizers.items():
            optimizer.zero_grad()
            began = time.perf_counter()
            (potential(Structures.of(batch))["forces"] - batch.forces).abs().sum().backward()
            between = time.perf_counter()
            optimizer.step()
            times[name].append((between - began, time.perf_counter() - between))
    for name, pairs in times.items():
        rest, step = (1e3 * part for part in np.array(pairs[rounds // 6 :]).T)
        part = step.mean() / (np.median(rest) + step.mean())
        print(f"{name}: {step.mean():.2f} ms of {np.median(rest) + step.mean():.1f} ms, {part:.1%}")


def main() -> None:
    """Train, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("run", "rates", "report", "cost"), help="`rates` stops after rates are chosen")
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; all if none is named")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "optimizers", help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, each on one thread")
    given = parser.parse_args()
    out, studies = given.out.resolve(), given.studies or list(STUDIES)
    if strange := set(studies) - set(STUDIES):
        parser.error(f"studies must be of {', '.join(STUDIES)}, got {', '.join(strange)}")
    if given.part == "cost":
        cost()
    elif given.part == "report":
        draw()
        PAGE.write_text(written(PAGE.read_text(), table()))
        print(f"written: {CHART.name}, the table of {PAGE.name}")
    else:
        out.mkdir(parents=True, exist_ok=True)
        prepare(studies, out)
        train(rates(studies), out, given.jobs)
        if given.part == "run":
            train(lengths(studies), out, given.jobs)


def written(text: str, new: str) -> str:
    """A page with the part between its markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} must have the markers {BEGIN} and {END}. Put them back.")
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{after}"


if __name__ == "__main__":
    main()
