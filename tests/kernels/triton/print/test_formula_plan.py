"""A formula is cut into kernels that fit the registers: each term once, and little work twice."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.print.formula_plan import plan
from eqlayers_kernels.triton.print.schedule import schedule, terms_of
from tests.each import each

MADE = runpy.run_path(str(Path(__file__).parents[1] / "run" / "compile_formulas.py"))
polynomial, derivatives = MADE["polynomial"], MADE["derivatives"]
ON = tuning.PROCESSORS["cuda"]


@pytest.mark.parametrize(("order", "channels"), [("values", 128), ("gradients", 128), ("second gradients", 32)])
def test_kernels_of_a_contraction_repeat_little(order: str, channels: int) -> None:
    """With many channels, kernels of several channels a thread are planned as well."""
    base = derivatives(MADE["contraction"](channels))[order]
    kernels, whole = plan(base, False, ON), 0
    for traversal in {kernel.text.traversal for kernel in kernels}:
        stay = traversal == "by_src"
        slots = [
            (r, c)
            for r, one in enumerate(base.results)
            if (one.rows == "src") == stay
            for c, node in enumerate(base.outputs[r])
            if node is not None
        ]
        whole += schedule(base, terms_of(base, slots), stay).operations
    assert whole <= sum(kernel.text.order.operations for kernel in kernels) < 1.15 * whole


@each("channels, double", [(0, False), (40, False), (70, True), (128, False)])
def test_kernels_that_are_cut_hold_each_term_once(channels: int, double: bool) -> None:
    """A kernel adds to what one before it stored of the same component, and begins all others."""
    base = derivatives(polynomial(4, [(0, 0), (1, 1)], channels))["gradients"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "FORMULA_ACCESSES", 9)
        kernels = plan(base, double, ON)
    assert len(kernels) > 2
    slots = [(r, c) for r, part in enumerate(base.outputs) for c, node in enumerate(part) if node is not None]
    wanted = Counter(slot for slot, terms in terms_of(base, slots).items() for _ in terms)
    stored: dict[str, set[tuple[int, int]]] = {}
    totals: Counter[tuple[int, int]] = Counter()
    for kernel in kernels:
        before = stored.setdefault(kernel.text.traversal, set())
        assert kernel.text.begun == before
        before |= set(kernel.text.slots)
        totals.update(step.slot for step in kernel.text.order.steps if step.op == "total")
        if channels:
            assert kernel.block * (kernel.blocks - 1) < channels <= kernel.block * kernel.blocks
            assert kernel.text.masked == (channels < kernel.block * kernel.blocks)
    assert totals == wanted
