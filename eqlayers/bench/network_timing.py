"""Times, memory and parts of all implementations of one network, at one size after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .accelerate import inference, training_step
from .goals import Record
from .implementation import OURS, why_refused
from .machine import threads
from .measure import alternate, ratio, summary
from .memory import free_memory, peak_extra, refusal
from .network_check import Bounds, Errors, Outcome, compare, run
from .network_entrants import COMPILED, MODES, PEER, TRAINING, Entrant, Tables, enter, makers
from .parts import time_by_part
from .run import Say
from .subject import Subject

SPARE = 0.8  # of the free memory that a row may need
GROWTH = 1.1  # of memory by atom from one size to the next
SLOW = 2.0  # seconds; memory of longer calls is measured once
WRONG = "differs from the reference by more than is allowed"


@dataclass
class Series:
    """One network at growing sizes: what the largest size so far has told.

    Attributes:
        name: Of the network.
        device: Where it runs.
        runs: Timed runs of each row.
        threads: Of torch.
        say: Called with a few words before every step.
        wrong: Rows that differ from the reference in float64.
        peaks: Row and what is timed -> atoms and bytes.
        checked: Row and what is timed -> atoms, errors, and whether they are within the bounds.
    """

    name: str
    device: torch.device
    runs: int
    threads: Sequence[int]
    say: Say
    wrong: set[str] = field(default_factory=set)
    peaks: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    checked: dict[tuple[str, str], tuple[int, Errors, bool]] = field(default_factory=dict)

    def no_room(self, row: str, mode: str, atoms: int) -> str | None:
        """Why a row is not run: memory by atom at the size before says that it would not fit."""
        if (row, mode) not in self.peaks:
            return None
        before, peak = self.peaks[row, mode]
        need, free = GROWTH * peak * atoms / before, free_memory(self.device)
        if free is None or need <= SPARE * free:
            return None
        return (
            f"would need about {need / 2**30:.1f} GiB, as {before} atoms took {peak / 2**30:.1f}; "
            f"{free / 2**30:.1f} GiB are free"
        )


def measure(
    series: Series,
    subject: Subject,
    known: Bounds,
    tables: Tables,
    peers: Sequence[str],
    modes: Sequence[str] = MODES,
) -> Iterator[Record]:
    """All rows of one size: compared first, then timed in turn."""
    place, all_makers = subject.place, makers(subject, tuple(peers))
    series.say(f"{series.name}, {place.num_atoms} atoms: building")
    found = {name: enter(name, maker, subject, tables, series.device) for name, maker in all_makers.items()}
    reference = next(iter(all_makers))
    for mode in modes:
        chosen = {name: found[name] for name, maker in all_makers.items() if mode in maker.modes}
        reasons = {name: entrant for name, entrant in chosen.items() if isinstance(entrant, str)}
        ready = {name: entrant for name, entrant in chosen.items() if isinstance(entrant, Entrant)}
        for name in list(ready):
            reason = series.no_room(name, mode, place.num_atoms)
            if reason is not None:
                reasons[name] = reason
                del ready[name]
        series.say(f"{series.name}, {place.num_atoms} atoms, {mode}: comparing")
        reasons |= _check(series, ready, reference, mode, known, place.num_atoms)
        head = {"network": series.name, "atoms": place.num_atoms, "edges": place.num_edges, "what": mode}
        timed = [entrant for name, entrant in ready.items() if name not in reasons]
        yield from _time(series, head, timed, reference)
        for name, reason in reasons.items():
            checked = series.checked.get((name, mode))
            wrong = name in series.wrong or (checked is not None and not checked[2])
            row = new_row(head, name, all_makers[name].kind, series.threads[0]) | {"reason": reason}
            yield row | {"status": "wrong" if wrong else "skipped", "errors": checked[1] if checked else None}


def _check(
    series: Series, ready: Mapping[str, Entrant], reference: str, mode: str, known: Bounds, atoms: int
) -> dict[str, str]:
    """Compare all rows with the first; the reasons of those that must not be timed."""
    reasons: dict[str, str] = {}
    right: Outcome | None = None
    if reference in ready:
        right = run(ready[reference], mode == TRAINING)
    for name, entrant in ready.items():
        if right is not None:
            try:
                errors, fits = compare(entrant, right, known)
            except Exception as error:
                reasons[name] = why_refused(name if entrant.kind == PEER else OURS, error)
                continue
            series.checked[name, mode] = (atoms, errors, fits)
        if (name, mode) not in series.checked:
            reasons[name] = f"{reference} did not run, so there is nothing to compare with"
        elif name in series.wrong:
            reasons[name] = f"{WRONG} in float64"
        elif not series.checked[name, mode][2]:
            reasons[name] = WRONG
    return reasons


def new_row(head: Mapping[str, Any], name: str, kind: str, count: int) -> Record:
    """A row with nothing measured yet."""
    empty = dict.fromkeys(("seconds", "ratio", "memory_bytes", "shares", "operators", "errors", "compared_at"))
    return {**head, "threads": count, "implementation": name, "kind": kind, **empty, "status": "ok", "reason": ""}


def _time(series: Series, head: Mapping[str, Any], timed: Sequence[Entrant], reference: str) -> Iterator[Record]:
    mode, device = head["what"], series.device
    calls: dict[str, Callable[[], Any]] = {}
    for entrant in timed:
        entrant.prepare(mode == TRAINING)
        calls[entrant.name] = (training_step if mode == TRAINING else inference)(entrant, entrant.network)
    for number, count in enumerate(series.threads):
        series.say(f"{series.name}, {head['atoms']} atoms, {mode}: timing, threads: {count}")
        with threads(count):
            here = [entrant for entrant in timed if entrant.threads in (0, count)]
            chosen = [calls[entrant.name] for entrant in here]
            seconds = dict(
                zip((one.name for one in here), alternate(chosen, series.runs, device, warmup=1), strict=True)
            )
            for entrant in here:
                name, call = entrant.name, calls[entrant.name]
                row = new_row(head, name, entrant.kind, count) | {"seconds": summary(seconds[name])}
                row["reason"] = getattr(entrant.network, "about", "")
                if name != reference and reference in seconds:
                    row["ratio"] = ratio(seconds[reference], seconds[name])
                if (name, mode) in series.checked:
                    row["compared_at"], row["errors"], _ = series.checked[name, mode]
                if not number:  # they hardly depend on threads
                    native = entrant.threads > 0  # without operators of torch, and with memory that it keeps
                    if not (native or name.endswith(COMPILED)):
                        row["shares"], row["operators"] = time_by_part(call)
                    if refusal(device) is None and not native:
                        row["memory_bytes"] = peak_extra(call, device, 1 if row["seconds"]["median"] > SLOW else 3)
                        series.peaks[name, mode] = (head["atoms"], row["memory_bytes"])
                yield row
