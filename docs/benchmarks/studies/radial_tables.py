"""Radial networks by interpolation; errors against knots, time and memory with and without tables.

    python docs/benchmarks/studies/radial_tables.py --json tables.json
    python docs/benchmarks/studies/radial_tables.py --potential runs/ethanol/potential.pt

Times are measured as by `eqlayers bench networks ours`, on a cluster of atoms.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from study import Study, add_config, beside, main

from eqlayers import models
from eqlayers.bench.cli import add_options
from eqlayers.bench.config import Field, Known, check_known, read_settings
from eqlayers.bench.measure import KERNELS, PRODUCTS, describe, keep_random_state, threads
from eqlayers.bench.networks.atoms import SPECIES, Sample, rounded, structures
from eqlayers.bench.networks.check import CPU, Bounds, bounds, gap, run
from eqlayers.bench.networks.entrants import (
    COMPRESSED,
    EXACT,
    FORCES,
    LIMITS,
    LIVE,
    MODES,
    NATIVE,
    OWN,
    PEER,
    TRAINING,
    Entrant,
    Tables,
    copied,
    evaluate_potential,
)
from eqlayers.bench.networks.packages import Subject
from eqlayers.bench.networks.run import MAIN, measure_main, read_main
from eqlayers.bench.networks.timing import Series, measure
from eqlayers.bench.report import Layout, same, table_of
from eqlayers.bench.results import OURS, Record, Say, Table, goal, quiet
from eqlayers.bench.step import LoadBatch
from eqlayers.cli.main import molecules
from eqlayers.layers.radial.radial_table import largest
from eqlayers.models import Potential, compress, load_potential
from eqlayers.models.compression import without_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELDS: dict[str, Field] = {
    **dict.fromkeys(("threads", "runs", "atoms", "knots", "batch_size"), "count"),
    "tolerance": "number",
    "tried": "counts",
    "model": "text",
    "networks": Known("mappings", "network", ("MACE", "NequIP", "TFN")),
    "goals": "mappings",
}
Make = Callable[[], Potential]


def cluster(count: int, potential: Potential) -> Sample:
    """A cluster of so many atoms, of a potential's species and with its cutoff."""
    species = list(potential.species)
    (one,) = structures((count,))
    return Sample([replace(one, species=one.species % len(species))], potential.cutoff, dict.fromkeys(species, ""))


def subject_of(name: str, make: Make, sample: Sample) -> Subject:
    """A potential of this package on some atoms."""
    return Subject(name, sample, lambda dtype: make().to(dtype), evaluate_potential(sample), native=copied)


def made(kind: str, options: Mapping[str, Any]) -> Make:
    """Makes one of the configured networks, as a potential in float32."""

    def make() -> Potential:
        torch.manual_seed(0)
        species = list(SPECIES)
        return Potential(getattr(models, kind)(species, **options), species).to(torch.float32)

    return make


def loaded(path: str) -> Make:
    """Makes the potential of a file, without tables."""
    return lambda: without_tables(load_potential(path, torch.float32))


def _rows(rows: Iterator[Record], knots: int) -> list[Record]:
    """Rows of `bench networks` as rows of tables, with three parts of the time."""
    names = {NATIVE: "none", LIVE: f"live, {knots} knots", COMPRESSED: "compressed"}
    shown = []
    for row in rows:
        kept = {key: row[key] for key in ("network", "what", "errors", "status", "seconds", "ratio", "memory_bytes")}
        shares = None
        if row["shares"]:
            kernels = sum(row["shares"][part] for part in KERNELS)
            products = row["shares"][PRODUCTS]
            shares = {"kernels": kernels, PRODUCTS: products, "rest": 1 - kernels - products}
        shown.append({**kept, "shares": shares, "tables": names.get(row["implementation"], row["implementation"])})
    return shown


def measure_potential(name: str, make: Make, fields: Mapping[str, Any], series: Series) -> list[Record]:
    """Energies and forces of a potential without tables, with live and with compressed ones, and training steps."""
    subject = subject_of(name, make, cluster(fields["atoms"], make()))
    known: Bounds = bounds(subject, [replace(subject, evaluate=evaluate_potential(rounded(subject.sample)))], CPU)
    makers = {name: OWN[name] for name in (NATIVE, LIVE, COMPRESSED)}
    makers[LIVE] = replace(makers[LIVE], modes=MODES)
    tables = Tables(fields["knots"], fields["tolerance"])
    return _rows(measure(series, subject, known, tables, (), rows=makers), fields["knots"])


def errors_by_knots(name: str, make: Make, tried: Sequence[int], atoms: int) -> list[Record]:
    """Errors of weights and slopes, in float64, and of energies and forces."""
    rows: list[Record] = []
    sample, exact = cluster(atoms, make()), {dtype: make().to(dtype).eval() for dtype in (torch.float64, torch.float32)}
    right = {dtype: run(Entrant("", PEER, one, evaluate_potential(sample)), False) for dtype, one in exact.items()}
    for count in tried:
        row: Record = {"network": name, "knots": count}
        for dtype, wanted in right.items():
            other = make().to(dtype).eval()
            report = compress(other, knots=count)
            errors = gap(run(Entrant("", EXACT, other, evaluate_potential(sample)), False), wanted)
            bits = "64" if dtype == torch.float64 else "32"
            row |= {f"{part}{bits}": errors[part] for part in ("energy", "forces")}
            if dtype == torch.float64:
                row |= largest(one.error for one in report.rows)._asdict()
        rows.append(row)
    return rows


def judged(rows: Sequence[Record], goals: Mapping[str, Any], where: str) -> list[Record]:
    """The goals of the configuration beside what was measured."""
    goals_met = []
    for name, wanted in goals.items():
        check_known("goal", wanted, ("ratio", "memory"), where)
        for quantity, limit in wanted.items():
            main, memory = name == "main", quantity == "memory"
            what = TRAINING if main or memory else FORCES
            timed = [row for row in rows if row["network"] == (MAIN if main else name) and row["what"] == what]
            measured = None
            if timed and timed[-1]["status"] == "ok":
                bytes_ = [row["memory_bytes"] for row in (timed[0], timed[-1])]
                speed = None if timed[-1]["ratio"] is None else timed[-1]["ratio"]["median"]
                measured = (bytes_[1] / bytes_[0] if all(bytes_) else None) if memory else speed
            goals_met.append(goal(quantity, float(limit), measured, where=f"{name}, {what}"))
    return goals_met


def run_tables(
    config: str = beside(__file__),
    *,
    load_batch: LoadBatch = molecules,
    potential: str | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    say: Say = quiet,
) -> Record:
    """Measure what tables of radial networks do; nothing is timed that was not compared first."""
    path, fields = read_settings(config, FIELDS)
    makers = {kind: made(kind, options) for kind, options in fields["networks"].items()}
    if potential is not None:
        makers = {Path(potential).stem: loaded(potential)}
    count = num_threads or fields["threads"]
    rows: list[Record] = []
    errors: list[Record] = []
    with threads(count), keep_random_state(CPU):
        head = describe(CPU)
        for key, make in makers.items():
            say(f"{key}: errors")
            errors += errors_by_knots(key, make, fields["tried"], min(fields["atoms"], 64))
            rows += measure_potential(key, make, fields, Series(key, CPU, runs or fields["runs"], [count], say))
        if potential is None:
            job = read_main(path.parent / fields["model"], fields, load_batch)
            rows += _rows(measure_main(job, Series(MAIN, CPU, runs or fields["runs"], [count], say)), fields["knots"])
    notes = [
        f"{OURS}, float32, a cluster of {fields['atoms']} atoms. Ratio: of the first row of each block to this. A row "
        f"is timed if energies are within {LIMITS['energy']:g} eV per atom, forces within {LIMITS['forces']:g} eV/A of "
        f"those without tables, and gradients of all weights within {LIMITS['gradients']:g} of the largest. Shares of "
        "the time: generated kernels, matrix products, all else."
    ]
    goals = [] if potential is not None else judged(rows, fields["goals"], str(path))
    return {"kind": "tables", **head, "rows": rows, "errors": errors, "goals": goals, "notes": notes}


def _errors(row: Record) -> str:
    return "; ".join(f"{part} {value:.1e}" for part, value in (row["errors"] or {}).items()) or "-"


def _shares(row: Record) -> str:
    return " / ".join(f"{100 * share:.0f} %" for share in (row["shares"] or {}).values()) or "-"


def _by_knots(result: Record) -> list[Table]:
    units = {"energy": "eV an atom", "forces": "eV/A"}
    columns = same("network", ">knots") | {">weights": "values: error", ">slopes": "slopes: error"}
    columns |= {f">{unit}, float{bits}": f"{part}{bits}: error" for bits in (64, 32) for part, unit in units.items()}
    note = "Weights and slopes: relative to the largest, in float64. Energies and forces: of the whole potential."
    return [table_of("errors by knots", columns, result["errors"], note)]


def figures(result: Record) -> dict[str, Figure]:
    """Errors of slopes of radial networks, and of forces, against the number of knots."""
    from eqlayers.bench.plots import COLOURS, draw_panels, grouped

    rows = result["errors"]
    labels = {"slopes": "error of slopes / largest slope", "forces64": "error of forces, eV/A"}
    panels = {
        ("", label): grouped(((row["network"], ""), (row["knots"], row[part])) for row in rows)
        for part, label in labels.items()
    }
    colours = dict(zip(dict.fromkeys(row["network"] for row in rows), cycle(COLOURS.values()), strict=False))
    return {"tables_errors": draw_panels(panels, "knots", "{}", colours)}


def _options(parser: argparse.ArgumentParser) -> None:
    add_config(parser, __file__)
    parser.add_argument("--potential", help="file of a trained potential in place of the networks", metavar="FILE")
    add_options(parser, "threads", "runs")


LAYOUT = Layout(
    "radial networks by tables",
    same("network", "what", "tables")
    | {">ms": "seconds: s in ms", ">first / this": "ratio: spread", ">peak MiB": "memory_bytes: MiB"}
    | {">kernels / products / rest": _shares, "largest errors": _errors, "status": "status"},
    _by_knots,
)
ABOUT = "Radial networks by tables: errors against knots, time and memory with and without."
STUDY = Study(__file__, ABOUT, "tables", LAYOUT, run_tables, _options, figures=figures)
if __name__ == "__main__":
    main(STUDY)
