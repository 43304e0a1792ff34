"""Rows of nodes are turned for kernels and back, where that gains something."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.run.forms import ColumnOrder, column_order_of
from tests.kernels.triton.run.test_compiling import program

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_orders_of_columns_are_kept_on_the_host_alone(monkeypatch):
    """A call may run in the memory pool of a CUDA graph, so nothing on the device outlives it."""
    order = ColumnOrder(program("mul_ir"))
    orders = {key: columns.numpy().copy() for key, columns in order._columns.on_host.items()}
    pinned: list[torch.Tensor] = []

    def pin(self):
        pinned.append(self.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking: (self.numpy().copy(), non_blocking))
    for _ in range(2):
        for operand, back in orders:
            found, at_once = order._columns.on_device((operand, back), torch.device("cuda"))
            assert (found == orders[operand, back]).all()
            assert at_once
    assert len(pinned) == len(orders) == 4
    assert all(columns.device.type == "cpu" for columns in order._columns.on_host.values())


@pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
def test_columns_are_in_the_other_order_and_come_back(programs: Any) -> None:
    """Columns between the slots stay where they are, and so do rows of edges."""
    specs = (("uvu", (5, 1, 0), (3, 3, 1)), ("uvu", (4, 1, 0), (1, 3, 5)))
    of = programs.random_program("mul_ir", True, specs)
    order = column_order_of(of, True)
    assert order is not None
    assert (order.program.layout, order.program.paths) == ("ir_mul", of.paths)
    for operand, width in (("x", of.widths[0]), ("z", of.widths[3])):
        rows = torch.arange(2.0 * width, device=DEVICE).view(2, width)
        turned, wanted = order.to(operand, rows), rows.cpu().numpy().copy()
        for slot in {getattr(path, operand) for path in of.paths}:
            wanted[:, slot.columns("ir_mul")] = rows.cpu().numpy()[:, slot.columns("mul_ir")]
        np.testing.assert_array_equal(turned.cpu().numpy(), wanted)
        assert not torch.equal(turned, rows)
        assert torch.equal(order.back(operand, turned), rows)
    weights = torch.ones(2, 3)
    assert order.to("w", weights) is weights
    assert order.to("x", weights[:0]).shape == (0, 3)


def of_one(x: Slot, y: Slot, axes: tuple[Axis, ...], layout: str = "mul_ir") -> Program:
    path = Path(x, y, x, None, axes, ((0, 0, 0, 1.0),))
    return Program((path,), (x.stop, y.stop, 0, x.stop), layout)


def test_rows_stay_where_nothing_is_gained() -> None:
    """Without a graph a row is read once; in the other layout, or with one component or channel, lines are whole."""
    vectors, one, along = Slot(0, 4, 3), Slot(0, 1, 1), Axis(4, x=1, z=1)
    assert column_order_of(of_one(vectors, one, (along,)), True) is not None
    assert column_order_of(of_one(vectors, one, (along,)), False) is None
    assert column_order_of(of_one(vectors, one, (along,), "ir_mul"), True) is None
    assert column_order_of(of_one(Slot(0, 4, 1), one, (along,)), True) is None
    assert column_order_of(of_one(Slot(0, 1, 3), one, ()), True) is None
    rows_of_edges = of_one(vectors, Slot(0, 2, 1), (along, Axis(2, y=1)))
    assert column_order_of(rows_of_edges, True) is None, "channels of rows that belong to edges"
