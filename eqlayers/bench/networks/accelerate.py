"""The command `eqlayers bench accelerate`: networks of other packages before and after `eqlayers.accelerate`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...integrations import Report, accelerate
from ..config import check_known
from ..measure import describe, refusal, threads
from ..results import Record, Say, number, quiet
from .atoms import rounded
from .check import CPU, bounds, wrong_in_float64
from .entrants import EAGER, EXACT, FORCES, PEER, TRAINING, Maker, Tables, eager
from .packages import NETWORKS, Subject, absent
from .timing import Series, measure

RUNS = 7
ACCELERATED = "accelerated"
MODES = {FORCES: "inference: energies and forces", TRAINING: "training step: force loss, optimizer"}
NO_TABLES = Tables(0, 0.0)


def run_accelerate(
    name: str, *, num_threads: int | None = None, runs: int | None = None, backend: str | None = None, say: Say = quiet
) -> Record:
    """Compare and time the networks of an entry of ``NETWORKS`` before and after `accelerate`, in float32."""
    check_known("network", [name], NETWORKS, "bench accelerate")
    rows: list[Record] = []
    notes, replaced = [], []
    with threads(num_threads or 1), torch.random.fork_rng(devices=[]):
        head = describe()
        for make in NETWORKS[name]:
            say(f"{name}: building")
            try:
                subject = make()
            except ModuleNotFoundError as error:
                raise absent(f"the networks of {name!r} need", name, error) from error
            report, note = _measure(subject, make, runs or RUNS, backend, rows, say)
            notes.append(note)
            replaced.append({"network": subject.name, "report": _cells(report)})
    if (why := refusal(CPU)) is not None:
        notes.append(f"Peak memory was not measured: {why}.")
    return {"kind": "accelerate", "suite": name, **head, "rows": rows, "goals": [], "notes": notes, "reports": replaced}


def _measure(
    subject: Subject, make: Callable[..., Subject], runs: int, backend: str | None, rows: list[Record], say: Say
) -> tuple[Report, str]:
    """Append a row for each mode to ``rows``; return the report of replacements and a note on sizes and errors."""
    say(f"{subject.name}: comparing in float64")

    def change(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
        return accelerate(subject.make(dtype), backend=backend).model

    makers = {EAGER: Maker(PEER, eager), ACCELERATED: Maker(EXACT, change)}
    known = bounds(subject, [make(sample=rounded(subject.sample))], CPU)
    series = Series(subject.name, CPU, runs, [torch.get_num_threads()], say)
    series.wrong = wrong_in_float64(subject, makers, NO_TABLES, known, CPU)
    of_modes: dict[str, dict[str, Record]] = {mode: {} for mode in MODES}
    for row in measure(series, subject, known, NO_TABLES, (), rows=makers):
        of_modes[row["what"]][row["implementation"]] = row
    for mode, (plain, mine) in ((mode, both.values()) for mode, both in of_modes.items()):
        ok = mine["status"] == "ok"
        about = {"network": subject.name, "mode": MODES[mode], "dtype": "float32", "errors": mine["errors"]}
        times = {"plain": plain["seconds"] if ok else None, "accelerated": mine["seconds"], "ratio": mine["ratio"]}
        sizes = {"memory_plain": plain["memory_bytes"] if ok else None, "memory_accelerated": mine["memory_bytes"]}
        rows.append({**about, "status": mine["status"], **times, **sizes})
    sample = subject.sample
    atoms, edges = sample.num_atoms, sample.num_edges
    shown = ", ".join(f"{part} {value:.1e}" for part, value in known.errors.items())
    report = accelerate(subject.make(torch.float32), backend=backend)
    return report, (
        f"{subject.name}: {len(sample.batch)} structures, {atoms} atoms, {edges} edges ({edges / atoms:.0f} an atom). "
        f"Rounding of the plain network in float32, of which ten times are allowed: {shown}."
    )


def _cells(report: Report) -> list[list[str]]:
    """Table of replaced and remaining modules: path, class, replacement or reason, backend, error."""
    return [
        [row.path or "(the model)", row.kind, row.replacement or f"left: {row.reason}", row.backend, number(row.error)]
        for row in report.rows
    ]
