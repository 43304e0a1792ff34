"""Weights of edges that are not stored: each row is a combination of consecutive rows of a table."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.forms.product import Reading

from ...core.backends.rows import taken
from ...core.checks import check_integer, check_tensor
from ...core.errors import ConfigError, DeviceError, DTypeError, ShapeError


class TabledWeights(NamedTuple):
    """Weights of edges by interpolation: ``w[e] = sum_k coefficients[e, k] table[orders * interval[e] + k]``.

    A convolution that gets them combines the rows inside its kernel, where it has one, and never stores ``[E, W]``.

    Attributes:
        table: ``[R, W]``.
        interval: ``[E]`` int64.
        coefficients: ``[E, reads]``.
        orders: Rows of the table from interval to interval.

    Example:
        >>> made = TabledWeights(torch.eye(3), torch.tensor([0, 1]), torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        >>> made.weights()
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.2500, 0.7500]])
    """

    table: Tensor
    interval: Tensor
    coefficients: Tensor
    orders: int = 1

    @property
    def reading(self) -> Reading:
        """How rows are read."""
        return Reading(self.coefficients.shape[1], self.orders)

    def weights(self) -> Tensor:
        """``[E, W]``, stored."""
        first = self.interval * self.orders
        parts = [
            column.unsqueeze(1) * taken(self.table, first + k) for k, column in enumerate(self.coefficients.unbind(1))
        ]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def check(self, edges: int, width: int) -> None:
        """Raise ShapeError, DTypeError or DeviceError unless they are weights of so many edges."""
        table, interval, coefficients, orders = self
        for name, tensor in zip(self._fields, self[:3], strict=False):
            check_tensor(name, tensor, "of weights by interpolation")
        check_integer("orders", orders, 1)
        reads = coefficients.shape[1] if coefficients.ndim == 2 else 0
        fits = table.ndim == 2 and table.shape[1] == width and 0 < orders <= reads
        if not fits or not self.reading.intervals(len(table)):
            raise ShapeError(
                f"a table of weights must be [R, {width}] with {orders} rows more for each interval, got "
                f"{list(table.shape)} and coefficients {list(coefficients.shape)}. Make it by RadialTable."
            )
        if interval.shape != (edges,) or coefficients.shape[0] != edges:
            raise ShapeError(
                f"intervals and coefficients must be [{edges}] and [{edges}, {reads}], one for each edge, got "
                f"{list(interval.shape)} and {list(coefficients.shape)}. Look up the lengths of these edges."
            )
        if interval.dtype is not torch.int64:
            raise DTypeError(f"intervals must be int64, got {interval.dtype}. Convert them.")
        if {interval.device, coefficients.device} != {table.device}:
            raise DeviceError(
                f"intervals and coefficients must be on the device of the table, {table.device}, got "
                f"{interval.device} and {coefficients.device}. Move them."
            )


def _refuse(self: TabledWeights, *others: Any) -> Any:
    raise ConfigError(
        f"weights by interpolation must be read before arithmetic, got {len(self.interval)} of them where a tensor "
        f"[E, {self.table.shape[-1]}] is needed. Use weights.weights(), or leave out the table."
    )


def _refuse_function(of: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Functions of torch, which asks its operands for this: `torch.mul(weights, 2)`, `torch.cat([weights])`."""
    waiting = [*args, *(kwargs or {}).values()]
    while not isinstance(one := waiting.pop(), of):
        waiting += one if isinstance(one, (list, tuple)) else []
    _refuse(one)


def _refuse_name(self: TabledWeights, name: str) -> Any:
    if hasattr(Tensor, name) and not name.startswith("_"):
        raise AttributeError(
            f"weights by interpolation must be read before {name!r} is asked for, got {len(self.interval)} of them. "
            "Use weights.weights(), or leave out the table."
        )
    raise AttributeError(f"'TabledWeights' object has no attribute {name!r}")


_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "pow")
for _name in (*_TWO, *(f"r{_two}" for _two in _TWO), "neg", "abs", "lt", "le", "gt", "ge", "array"):
    setattr(TabledWeights, f"__{_name}__", _refuse)  # a tuple would be repeated by 2, and added to another
TabledWeights.__torch_function__ = classmethod(_refuse_function)  # type: ignore[attr-defined]
TabledWeights.__getattr__ = _refuse_name  # type: ignore[attr-defined]
