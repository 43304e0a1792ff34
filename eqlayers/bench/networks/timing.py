"""Measure time, memory and parts of all implementations of a network, size by size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cases import why_refused
from ..measure import Call, alternate, free_memory, peak_extra, ratio, refusal, summary, threads, time_by_part
from ..results import OURS, Record, Say
from .check import Bounds, Errors, Outcome, compare, force_loss, run
from .entrants import COMPILED, MODES, PEER, TRAINING, Entrant, Maker, Tables, enter, makers
from .packages import Subject

MEMORY_SHARE = 0.8  # of free memory that a row may use
GROWTH = 1.1  # allowed growth of memory per atom from one size to the next
SLOW = 2.0  # seconds; memory of longer calls is measured once
WRONG = "differs from the reference by more than is allowed"


def training_step(entrant: Entrant) -> Call:
    """A call that runs forward, force loss, backward and optimizer."""
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
    """Settings for one network at growing sizes, and results of the sizes so far."""

    name: str
    device: torch.device
    runs: int
    threads: Sequence[int]
    say: Say
    wrong: set[str] = field(default_factory=set)  # rows that differ from the reference in float64
    peaks: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # (row, mode) -> atoms, bytes
    #: (row, mode) -> atoms, errors, and whether they are within the bounds
    checked: dict[tuple[str, str], tuple[int, Errors, bool]] = field(default_factory=dict)

    def too_large(self, row: str, mode: str, atoms: int) -> str | None:
        """Reason to skip a row whose memory, extrapolated from the previous size, does not fit; else None."""
        if (row, mode) not in self.peaks:
            return None
        before, peak = self.peaks[row, mode]
        need, free = GROWTH * peak * atoms / before, free_memory(self.device)
        if free is None or need <= MEMORY_SHARE * free:
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
    """Compare and time the rows of one size, the reference first; yield their results."""
    sample, all_makers = subject.sample, makers(subject, tuple(peers)) if rows is None else rows
    series.say(f"{series.name}, {sample.num_atoms} atoms: building")
    entrants = {name: enter(name, maker, subject, tables, series.device) for name, maker in all_makers.items()}
    reference = next(iter(all_makers))
    for mode in modes:
        chosen = {name: entrants[name] for name, maker in all_makers.items() if mode in maker.modes}
        ready = {name: entrant for name, entrant in chosen.items() if isinstance(entrant, Entrant)}
        reasons = {name: entrant for name, entrant in chosen.items() if isinstance(entrant, str)}
        reasons |= {name: why for name in ready if (why := series.too_large(name, mode, sample.num_atoms)) is not None}
        ready = {name: entrant for name, entrant in ready.items() if name not in reasons}
        series.say(f"{series.name}, {sample.num_atoms} atoms, {mode}: comparing")
        reasons |= _check(series, ready, reference, mode, known, sample.num_atoms)
        head = {"network": series.name, "atoms": sample.num_atoms, "edges": sample.num_edges, "what": mode}
        yield from timed_rows(
            series, head, [entrant for name, entrant in ready.items() if name not in reasons], reference
        )
        for name, reason in reasons.items():
            checked = series.checked.get((name, mode))
            wrong = name in series.wrong or (checked is not None and not checked[2])
            row = new_row(head, name, all_makers[name].kind, series.threads[0]) | {"reason": reason}
            yield row | {"status": "wrong" if wrong else "skipped", "errors": checked[1] if checked else None}


def _check(
    series: Series, ready: Mapping[str, Entrant], reference: str, mode: str, known: Bounds, atoms: int
) -> dict[str, str]:
    """Compare rows with the reference; return reasons for rows that must not be timed."""
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
    """A row without measurements."""
    empty = dict.fromkeys(("seconds", "ratio", "memory_bytes", "shares", "operators", "errors", "compared_at"))
    return {**head, "threads": count, "implementation": name, "kind": kind, **empty, "status": "ok", "reason": ""}


def timed_rows(series: Series, head: Mapping[str, Any], timed: Sequence[Entrant], reference: str) -> Iterator[Record]:
    """Time entrants in alternation for each number of threads; yield rows."""
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
            measured = alternate([calls[entrant.name] for entrant in here], series.runs, device, warmup=1)
            seconds = {entrant.name: times for entrant, times in zip(here, measured, strict=True)}
            for entrant in here:
                name, call = entrant.name, calls[entrant.name]
                row = new_row(head, name, entrant.kind, count) | {"seconds": summary(seconds[name])}
                row["reason"] = getattr(entrant.network, "about", "")
                if name != reference and reference in seconds:
                    row["ratio"] = ratio(seconds[reference], seconds[name])
                if (name, mode) in series.checked:
                    row["compared_at"], row["errors"], _ = series.checked[name, mode]
                if not number:  # almost independent of threads
                    native = entrant.threads > 0  # no operators of torch, and permanent memory
                    if not (native or name.endswith(COMPILED)):
                        row["shares"], row["operators"] = time_by_part(call)
                    if refusal(device) is None and not native:
                        row["memory_bytes"] = peak_extra(call, device, 1 if row["seconds"]["median"] > SLOW else 3)
                        series.peaks[name, mode] = (head["atoms"], row["memory_bytes"])
                yield row
