"""How a program is cut into kernels: what shares one, with how many channels per thread, and where its sums go."""

from collections import Counter

import pytest

pytest.importorskip("triton")

from eqlayers import TensorProduct, paths
from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.program import Program
from eqlayers_kernels.triton.print import groups, tuning

FORWARD = Task(0, ("z",))
BACKWARD = Task(1, ("x", "y", "w"))
DOUBLE = Task(2, ("x", "y", "w", "z"), ("x", "y", "w"))
MACE = ("128x0e+128x1o+128x2e", "0e+1o+2e+3o", "0e+1o+2e+3o")
NEQUIP = ("64x0o+64x0e+64x1o+64x1e+64x2o+64x2e", "0e+1o+2e", "64x0o+64x0e+64x1o+64x1e+64x2o+64x2e")


def program(*irreps: str) -> Program:
    out, instructions = paths(*irreps)
    options = {"shared_weights": False, "internal_weights": False, "layout": "ir_mul"}
    return TensorProduct(*irreps[:2], out, instructions, **options).plan.form.program


def cut(of: Program, task: Task, **changes: bool) -> groups.Plan:
    on = tuning.PROCESSORS["cuda"].planned(task.order, 4)
    return groups.plan(of, task, True, False, **{"double": False, **changes}, on=on)


def test_channels_per_thread_are_what_takes_less() -> None:
    """Forward both are one kernel: with two channels per thread, where so many values fit; else with one."""
    wide, narrow = cut(program(*MACE), FORWARD), cut(program(*NEQUIP), FORWARD)
    assert [(len(kernel.text.paths), kernel.block) for kernel in wide.kernels] == [(17, 64)]
    assert [(len(kernel.text.paths), kernel.block) for kernel in narrow.kernels] == [(30, 32)]
    # in one kernel of one channel per thread, mace-large's gradients would issue more than two kernels move
    assert [kernel.block for kernel in cut(program(*MACE), BACKWARD).kernels] == [64, 64]


@pytest.mark.parametrize("task", [FORWARD, BACKWARD, DOUBLE], ids=["values", "gradients", "second"])
@pytest.mark.parametrize("stored", [False, True])
def test_every_path_computes_every_result_once(task: Task, stored: bool) -> None:
    of = program(*NEQUIP)
    plan = cut(of, task, stored=stored)
    found = Counter(
        (path, name) for kernel in plan.kernels for path in kernel.text.paths for name in kernel.text.results
    )
    assert set(found.values()) == {1}
    assert len(found) == len(of.paths) * len(task.results)


def test_stored_gradients_of_x_have_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel adds to what an earlier one has stored of the same slot, and begins the others."""
    monkeypatch.setitem(tuning.PROCESSORS, "cuda", tuning.PROCESSORS["cuda"]._replace(accesses=40))
    plan = cut(program(*MACE), BACKWARD, stored=True)
    assert plan.parts["x"] == 1
    assert plan.covered["x"]
    begun: set[int] = set()
    seen = []
    for kernel in plan.kernels:
        slots = {path.x.start for path in kernel.text.paths}
        assert kernel.text.begun == begun
        assert ("tl.load(gx_n" in kernel.text.source) == bool(slots & begun)
        seen.append(bool(slots & begun))
        begun |= slots
    assert {True, False} == set(seen)


def test_parts_that_kernels_leave_out_are_zeros_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of y has a part for every kernel and block; one without some slot of y does not write it."""
    whole = cut(program(*MACE), BACKWARD)
    assert (whole.parts["y"], whole.covered["y"]) == (sum(kernel.blocks for kernel in whole.kernels), True)
    monkeypatch.setitem(tuning.PROCESSORS, "cuda", tuning.PROCESSORS["cuda"]._replace(accesses=40))
    assert not cut(program(*MACE), BACKWARD).covered["y"]
