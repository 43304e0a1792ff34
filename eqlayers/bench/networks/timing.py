"""Times, memory and parts of all implementations of one network, at one size after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cases import why_refused
from ..measure import Call, alternate, free_memory, peak_extra, ratio, refusal, summary, threads
from ..peers.networks import Subject
from ..results import OURS, Record, Say
from .check import Bounds, Errors, Outcome, compare, force_loss, run
from .entrants import COMPILED, MODES, PEER, TRAINING, Entrant, Maker, Tables, enter, makers
from .parts import time_by_part

SPARE = 0.8  # of the free memory that a row may need
GROWTH = 1.1  # of memory by atom from one size to the next
SLOW = 2.0  # seconds; memory of longer calls is measured once
WRONG = "differs from the reference by more than is allowed"


def training_step(entrant: Entrant) -> Call:
    """Forward, force loss, backward and optimizer, as one call."""
    optimizer = torch.optim.Adam(entrant.network.parameters(), lr=1e-5)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = force_loss(entrant.evaluate(entrant.network, True)[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@dataclass
class Series:
    """One network at growing sizes: where and how it is measured, and what the largest size so far has told."""

    name: str
    device: torch.device
    runs: int
    threads: Sequence[int]
    say: Say
    wrong: set[str] = field(default_factory=set)  # rows that differ from the reference in float64
    peaks: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # (row, mode) -> atoms, bytes
    #: (row, mode) -> atoms, errors, and whether they are within the bounds
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
    rows: Mapping[str, Maker] | None = None,
) -> Iterator[Record]:
    """All rows of one size, or some, the reference first: compared, then timed in turn."""
    place, all_makers = subject.place, makers(subject, tuple(peers)) if rows is None else rows
    series.say(f"{series.name}, {place.num_atoms} atoms: building")
    entrants = {name: enter(name, maker, subject, tables, series.device) for name, maker in all_makers.items()}
    reference = next(iter(all_makers))
    for mode in modes:
        chosen = {name: entrants[name] for name, maker in all_makers.items() if mode in maker.modes}
        ready = {name: entrant for name, entrant in chosen.items() if isinstance(entrant, Entrant)}
        reasons = {name: entrant for name, entrant in chosen.items() if isinstance(entrant, str)}
        reasons |= {name: why for name in ready if (why := series.no_room(name, mode, place.num_atoms)) is not None}
        ready = {name: entrant for name, entrant in ready.items() if name not in reasons}
        series.say(f"{series.name}, {place.num_atoms} atoms, {mode}: comparing")
        reasons |= _check(series, ready, reference, mode, known, place.num_atoms)
        head = {"network": series.name, "atoms": place.num_atoms, "edges": place.num_edges, "what": mode}
        yield from timed_rows(series, head, [one for name, one in ready.items() if name not in reasons], reference)
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
    right: Outcome | None = run(ready[reference], mode == TRAINING) if reference in ready else None
    for name, entrant in ready.items():
        if right is not None:
            try:
                series.checked[name, mode] = (atoms, *compare(entrant, right, known))
            except Exception as error:
                reasons[name] = why_refused(name if entrant.kind == PEER else OURS, error)
                continue
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


def timed_rows(series: Series, head: Mapping[str, Any], timed: Sequence[Entrant], reference: str) -> Iterator[Record]:
    """Rows of the entrants, timed in turn for each number of threads."""
    mode, device = head["what"], series.device
    calls: dict[str, Callable[[], Any]] = {}
    for entrant in timed:
        entrant.prepare(mode == TRAINING)
        if mode == TRAINING:
            calls[entrant.name] = entrant.step or training_step(entrant)
        else:
            calls[entrant.name] = partial(entrant.evaluate, entrant.network, False)
    for number, count in enumerate(series.threads):
        series.say(f"{series.name}, {head['atoms']} atoms, {mode}: timing, threads: {count}")
        with threads(count):
            here = [entrant for entrant in timed if entrant.threads in (0, count)]
            measured = alternate([calls[one.name] for one in here], series.runs, device, warmup=1)
            seconds = {one.name: times for one, times in zip(here, measured, strict=True)}
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
