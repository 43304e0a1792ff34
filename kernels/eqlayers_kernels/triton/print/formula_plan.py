"""Divides a formula into kernels whose values fit into the registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...forms.formula import Formula, traversal_of
from . import tuning
from .formula import FormulaText, preloaded
from .schedule import Order, Slot, Term, popularity, schedule, terms_of
from .tuning import Cost, Processor


@dataclass(frozen=True)
class PlannedFormula:
    """One kernel of a formula, with its block size and number of blocks."""

    text: FormulaText
    block: int  # channels of one program of the grid, or rows
    blocks: int  # programs per run of rows


def plan(base: Formula, double: bool, on: Processor) -> tuple[PlannedFormula, ...]:
    """Kernels that compute all results of a formula, in order: a kernel may add to an earlier one's result."""
    kernels: list[PlannedFormula] = []
    for traversal, slots in _traversals(base):
        stay = traversal != "lanes" and base.results[slots[0][0]].rows != "each"
        per_thread = (1,) if double or base.channels <= on.lanes else (2, 1)
        cuts = {lanes: list(_groups(base, slots, stay, lanes, double, on)) for lanes in per_thread}
        work = {lanes: sum(order.operations + order.accesses for order in cut) for lanes, cut in cuts.items()}
        # more channels per thread give wider loads; they are not worth much repeated work
        lanes = next(lanes for lanes in cuts if work[lanes] <= tuning.TWICE * min(work.values()))
        begun: set[Slot] = set()
        for order in cuts[lanes]:
            block = _block(base, order, stay, double, on)
            masked = bool(base.channels) and base.channels % block != 0
            blocks = -(-base.channels // block) if base.channels else 1
            text = FormulaText(base, order, frozenset(begun), traversal, double, masked)
            kernels.append(PlannedFormula(text, block, blocks))
            begun |= set(text.slots)
    return tuple(kernels)


def _traversals(base: Formula) -> Iterator[tuple[str, list[Slot]]]:
    """Traversals, and the components of results that each computes."""
    for rows in (("each",), ("one",), ("src",), ("dst",)) if base.channels else (("each", "one", "src", "dst"),):
        numbers = [number for number, result in enumerate(base.results) if result.rows in rows]
        slots = [(number, c) for number in numbers for c, node in enumerate(base.outputs[number]) if node is not None]
        if slots:
            yield traversal_of(rows[0]) if base.channels else "lanes", slots


def _block(base: Formula, order: Order, stay: bool, double: bool, on: Processor) -> int:
    if not base.channels:
        return on.lanes * tuning.LANE_WARPS
    # registers for loads in flight and pointers, beside live values; sums over rows wait for few loads
    more = 0 if stay else tuning.FORMULA_RUN + tuning.FORMULA_POINTERS
    return tuning.channel_block(Cost(order.alive + more, 0, order.accesses), base.channels, double, on)


def _groups(
    base: Formula, slots: Sequence[Slot], stay: bool, lanes: int, double: bool, on: Processor
) -> Iterator[Order]:
    """Orders of statements, one per kernel, with as many terms each as the registers hold.

    A sum over rows is computed by one kernel.
    """
    terms, popular = terms_of(base, slots), popularity(base)
    most = min(on.registers, tuning.FORMULA_REGISTERS)
    steps = schedule(base, terms, stay, preloaded(base, stay), popular).steps
    remaining = list(dict.fromkeys((step.slot, -1 if stay else step.rank) for step in steps if step.op == "total"))

    def attempt(count: int) -> tuple[Order, bool]:
        some: dict[Slot, tuple[Term, ...]] = {}
        for slot, rank in remaining[:count]:
            some[slot] = some.get(slot, ()) + tuple(term for term in terms[slot] if rank in (-1, term[1]))
        order = schedule(base, some, stay, preloaded(base, stay), popular)
        fits = Cost(order.alive, 0, order.accesses).registers(lanes, double) <= most
        return order, fits and order.accesses <= tuning.FORMULA_ACCESSES

    guess = len(remaining)
    while remaining:
        size, good, bad = min(guess, len(remaining)), 0, len(remaining) + 1
        best = attempt(size)  # scheduling too many terms is slow: start with the last number that fitted
        while True:
            if best[1] or size == 1:  # one term may be too much for a kernel
                good, order = size, best[0]
            else:
                bad = size
            if bad - good == 1:
                break
            size = min((good + bad) // 2, max(2 * good, 1) if bad > len(remaining) else bad - 1)
            best = attempt(size)
        yield order
        remaining, guess = remaining[good:], good
