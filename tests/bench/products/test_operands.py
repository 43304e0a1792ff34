"""Operands of a case: three directions that are derivatives of each other, bytes that are moved, columns of layouts."""

import pytest
import torch

from eqlayers.bench.products.operands import RESULTS, Columns, layout_form, prepare
from eqlayers.bench.products.peers import build_peer
from tests.bench.products.test_check import PROBLEMS, case_of, operands_of


def test_directions_are_derivatives() -> None:
    """The second direction against the first by central differences; both are e3nn's own otherwise."""
    case = case_of()
    operands = operands_of(case, torch.float64)
    right = build_peer("e3nn", case, operands)
    step, values = 1e-4, operands.values
    generator = torch.Generator().manual_seed(3)
    moves = {n: torch.randn(values[n].shape, generator=generator, dtype=torch.float64) for n in ("x", "y", "w", "gz")}

    def first(sign: float) -> float:
        moved = {n: v + sign * step * moves[n] if n in moves else v for n, v in values.items()}
        return sum(float((g * values[c]).sum()) for g, c in zip(prepare(right.fn, moved, "bwd")(), "abc", strict=True))

    second = prepare(right.fn, values, "double_bwd")()
    analytical = sum(float((h * moves[n]).sum()) for h, n in zip(second, ("x", "y", "w", "gz"), strict=True))
    assert (first(1) - first(-1)) / (2 * step) == pytest.approx(analytical, rel=1e-6)  # error of the step: 1e-8


def test_moved_bytes_count_operands_results_and_indices_once() -> None:
    operands = operands_of(case_of(operation="conv"))
    x, y, w, z = 5 * 16, 23 * 4, 23 * 16, 5 * 32
    index = 2 * 23 * 8
    assert operands.moved_bytes("fwd") == 4 * (x + y + w + z) + index
    assert operands.moved_bytes("bwd") == 4 * (2 * (x + y + w) + z) + index
    assert operands.moved_bytes("double_bwd") == 4 * (3 * (x + y + w) + 2 * z) + index
    assert {len(names) for names in RESULTS.values()} == {1, 3, 4}


def test_columns_there_and_back() -> None:
    columns = Columns(torch.tensor([2, 0, 1]), torch.tensor([1.0, -1.0, 1.0]))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert columns.into(x).tolist() == [[3.0, -1.0, 2.0]]
    assert columns.back(columns.into(x)).tolist() == x.tolist()
    form = layout_form(PROBLEMS[1], "ir_mul")
    assert form["x"].into(torch.arange(28.0))[:6].tolist() == [0.0, 1.0, 2.0, 3.0, 6.0, 9.0]
