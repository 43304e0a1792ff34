"""Products as forms: their derivatives of any order are forms again, and tables of weights have rows of intervals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.product import TABLED, ProductForm, Reading, SumForm
from tests.by_hand import contract
from tests.each import each

#: Paths with weights and one without.
SPECS = (("uvu", (4, 1, 0), (3, 3, 1)), ("uuu", (3, 3, 0), (1, 3, 3)), ("uvw", (2, 1, 3), (3, 1, 3)))


@pytest.fixture(scope="module")
def form(programs: Any) -> ProductForm:
    program = programs.random_program("mul_ir", True, SPECS)
    path = program.paths[1]._replace(weight=None)
    path = path._replace(axes=tuple(axis._replace(w=0) for axis in path.axes))
    return ProductForm(type(program)((program.paths[0], path, *program.paths[2:]), program.widths, "mul_ir"))


def of_product(form: ProductForm, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results from the definition of `Kind`."""
    out = []
    for wanted in form.task.results:
        moves = form.task.tangents if form.task.order == 2 else ("",)
        total = np.zeros((2, dict(zip("xywz", form.program.widths, strict=True))[wanted]))
        for moving in (name for name in moves if name != wanted):
            operands = {name: arrays["g" if name == "z" else name] for name in "xywz" if name != wanted}
            operands |= {moving: arrays[f"d{moving}"]} if moving else {}
            total += contract((form.weighted if moving == "w" else form).program, wanted, **operands)
        out.append(total)
    return out


def results(form: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    assert [a.shape[1] for a in operands] == [one.width for one in form.operands]
    if not isinstance(form, SumForm):
        return of_product(form, dict(zip(form.names, operands, strict=True)))
    out = [np.zeros((2, one.width)) for one in form.results]
    for part in form.parts:
        values = results(part.form, [operands[pick] for pick in part.picks])
        for target, value in zip(part.targets, values, strict=True):
            out[target] = out[target] + value
    return out


def draw(operands: Any, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, one.width)) for one in operands]


@each("order", [0, 1, 2, 3])
def test_derivatives_are_those_of_finite_differences(form: ProductForm, order: int) -> None:
    """Along tangents, and as gradients of all operands."""
    current: Any = form
    for _ in range(order):
        current = current.vjp([True] * len(current.results), [True] * len(current.operands))
    operands, tangents, step = draw(current.operands, 1), draw(current.operands, 2), 1e-4
    along = current.jvp([True] * len(operands))
    ahead, behind = (
        results(current, [a + s * t for a, t in zip(operands, tangents, strict=True)]) for s in (step, -step)
    )
    changes = results(along, [*operands, *tangents])
    for change, a, b in zip(changes, ahead, behind, strict=True):
        np.testing.assert_allclose(change, (a - b) / (2 * step), rtol=0, atol=1e-5)
    gradient, cotangents = current.vjp([True] * len(changes), [True] * len(operands)), draw(along.results, 3)
    gradients = results(gradient, [*operands, *cotangents])
    left = sum((c * d).sum() for c, d in zip(cotangents, changes, strict=True))
    assert left == pytest.approx(sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True)), rel=1e-10)


def test_operands_and_results_follow_from_the_kind(form: ProductForm) -> None:
    x, y, w, z = form.program.widths
    gradient = form.vjp([True], [True, False, True])
    assert isinstance(gradient, ProductForm)
    assert gradient.task == Task(1, ("x", "w"))
    assert [(one.name, one.width) for one in gradient.operands] == [("x", x), ("y", y), ("w", w), ("g", z)]
    assert [one.name for one in gradient.results] == ["gradient of x", "gradient of w"]
    second = gradient.vjp([False, True], [True, False, False, True])
    assert [(one.name, one.width) for one in second.operands[4:]] == [("dw", w)]
    assert [one.width for one in second.results] == [x, z]
    assert len(form.weighted.program.paths) == len(form.program.paths) - 1
    assert form.vjp([True], [True] * 3).name != gradient.name == form.vjp([True], [True, False, True]).name
    assert form.with_rows(("src", "each", "one"), ("dst",)).shared


def test_weights_of_a_table_are_read_by_interval(form: ProductForm) -> None:
    """Cubic polynomials by knots, and values with two derivatives at both ends of an interval."""
    for reads, orders in ((4, 1), (6, 3)):
        reading = Reading(reads, orders)
        for intervals in (1, 2, 9):
            assert reading.intervals(reading.rows(intervals)) == intervals
        assert reading.rows(2) == reads + orders
        assert [reading.intervals(rows) for rows in (0, reads - 1)] == [0, 0]
    assert Reading(6, 3).intervals(8) == 0, "no number of rows of a table"
    parts = torch.arange(1.0, 9.0).view(2, 4)  # of two intervals of four rows, one column
    assert Reading(4, 1).folded(parts).flatten().tolist() == [1, 2 + 5, 3 + 6, 4 + 7, 8]
    assert Reading(4, 3).folded(parts).flatten().tolist() == [1, 2, 3, 4 + 5, 6, 7, 8]
    tabled = form.tabled(4, 1)
    assert tabled.rows == TABLED
    assert [(one.name, one.rows) for one in tabled.operands] == list(zip("xytc", TABLED, strict=False))
    assert [one.width for one in tabled.operands[2:]] == [form.program.widths[2], 4]
    assert tabled.name != form.tabled(6, 3).name
