"""`eqlayers bench accelerate`: networks of other packages as they are, and after `eqlayers.accelerate`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from ...integrations import Report, accelerate
from ..config import check_known
from ..measure import alternate, describe, peak_extra, ratio, refusal, summary, threads
from ..results import Record, Say, number, quiet
from .check import CPU, EPS, ROUNDINGS, Errors, Outcome, outcome
from .subjects import NETWORKS, Subject, absent
from .timing import inference, training_step

RUNS = 7
#: The largest error over the largest entry, of each of these.
QUANTITIES = ("energy", "forces", "gradient")
MODES = {"inference: energies and forces": inference, "training step: force loss, optimizer": training_step}


def errors(found: Outcome, reference: Outcome) -> Errors:
    """Largest difference over the largest entry of the reference, for each quantity."""
    return {key: float((found[key] - reference[key]).abs().max() / reference[key].abs().max()) for key in QUANTITIES}


def compare(subject: Subject, change: Callable[[torch.nn.Module], Any]) -> dict[str, Errors]:
    """Errors of a network that is changed in place, and of the plain one in float32, beside the plain one in float64.

    The bound follows from the network: its own rounding errors in float32 are what its layers make of one rounding per
    operation, and they are in proportion to the dtype's epsilon.

    Returns:
        By name: errors of 'plain float32', 'float32' and 'float64', and the largest of the last two over their
        bounds, 'of the bound'.
    """
    plain = {dtype: subject.make(dtype) for dtype in (torch.float64, torch.float32)}
    exact = outcome(subject, plain[torch.float64])
    rounding = errors(outcome(subject, plain[torch.float32]), exact)
    found: dict[str, Errors] = {"plain float32": rounding}
    shares = []
    for dtype, network in plain.items():
        change(network)
        mine, scale = errors(outcome(subject, network), exact), torch.finfo(dtype).eps / EPS
        found[str(dtype).removeprefix("torch.")] = mine
        shares.append({key: mine[key] / (ROUNDINGS * max(rounding[key], EPS) * scale) for key in QUANTITIES})
    return found | {"of the bound": {key: max(share[key] for share in shares) for key in QUANTITIES}}


def run_accelerate(
    name: str, *, num_threads: int | None = 1, runs: int | None = None, backend: str | None = None, say: Say = quiet
) -> Record:
    """Compare networks of a name of ``NETWORKS`` before and after, then time them in turn, in float32."""
    check_known("network", [name], NETWORKS, "bench accelerate")
    rows: list[Record] = []
    notes, replaced = [], []
    with threads(num_threads), torch.random.fork_rng(devices=[]):
        head = describe()
        say(f"{name}: building")
        try:
            subjects = [make() for make in NETWORKS[name]]
        except ModuleNotFoundError as error:
            raise absent(f"the networks of {name!r} need", name, error) from error
        for subject in subjects:
            found, report = _measure(subject, runs or RUNS, backend, say)
            rows += found
            notes.append(_about(subject, found[0]["errors"]))
            replaced.append({"network": subject.name, "report": _cells(report)})
    if (why := refusal(CPU)) is not None:
        notes.append(f"Peak memory was not measured: {why}.")
    return {"kind": "accelerate", "suite": name, **head, "rows": rows, "goals": [], "notes": notes, "reports": replaced}


def _measure(subject: Subject, runs: int, backend: str | None, say: Say) -> tuple[list[Record], Report]:
    say(f"{subject.name}: comparing")
    found = compare(subject, lambda network: accelerate(network, backend=backend))
    status = "ok" if all(share <= 1 for share in found["of the bound"].values()) else "wrong"
    plain = subject.make(torch.float32)
    report = accelerate(copy.deepcopy(plain), backend=backend)
    rows = []
    for mode, call in MODES.items():
        row: Record = {"network": subject.name, "mode": mode, "status": status, "errors": found, "dtype": "float32"}
        row |= dict.fromkeys(("plain", "accelerated", "ratio", "memory_plain", "memory_accelerated"))
        if status == "ok":
            say(f"{subject.name}: timing, {mode.partition(':')[0]}")
            calls = [call(subject, network) for network in (plain, report.model)]
            theirs, mine = alternate(calls, runs)
            row |= {"plain": summary(theirs), "accelerated": summary(mine), "ratio": ratio(theirs, mine)}
            if refusal(CPU) is None:
                row["memory_plain"], row["memory_accelerated"] = (peak_extra(call) for call in calls)
        rows.append(row)
    return rows, report


def _about(subject: Subject, found: dict[str, Errors]) -> str:
    """Sentences on what was computed and how exactly."""
    place = subject.place
    atoms, edges = place.num_atoms, place.num_edges
    parts = [f"{key}: " + ", ".join(f"{q} {found[key][q]:.1e}" for q in QUANTITIES) for key in found]
    return (
        f"{subject.name}: {len(place.batch)} structures, {atoms} atoms, {edges} edges ({edges / atoms:.0f} an atom). "
        f"Largest differences from the plain network in float64, over the largest entry: {'; '.join(parts)}."
    )


def _cells(report: Report) -> list[list[str]]:
    """Place and class of all modules that were replaced or left."""
    return [
        [row.path or "(the model)", row.kind, row.replacement or f"left: {row.reason}", row.backend, number(row.error)]
        for row in report.rows
    ]
