"""Weights of edges that are not stored: each row is a combination of consecutive rows of a table."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.forms.product import Reading

from ...core.backends.rows import taken
from ...core.checks import check_integer, check_tensor
from ...core.errors import ConfigError, DeviceError, DTypeError, ShapeError
from ...core.graph import Graph


class TabledWeights(NamedTuple):
    """Weights of edges by interpolation: ``w[e] = sum_k coefficients[e, k] table[orders * interval[e] + k]``.

    A convolution with a kernel interpolates rows inside the kernel, and never stores the weights ``[E, W]``.

    Attributes:
        table: ``[R, W]``.
        interval: ``[E]`` int64, the interval of the table that each edge reads.
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

    def weights(self) -> Tensor:
        """The weights ``[E, W]``, interpolated now."""
        first = self.interval * self.orders
        parts = [
            column.unsqueeze(1) * taken(self.table, first + k) for k, column in enumerate(self.coefficients.unbind(1))
        ]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def __mul__(self, factors: Any) -> TabledWeights:
        """The weights times one factor ``[E, 1]`` for each edge; ConfigError for other factors."""
        if not isinstance(factors, Tensor) or factors.shape != (len(self.interval), 1):
            self._refuse()
        return self._replace(coefficients=self.coefficients * factors.to(self.coefficients.dtype))

    def _refuse(self, *others: Any) -> Any:
        raise ConfigError(
            f"weights by interpolation must be read before arithmetic, got {len(self.interval)} of them where a tensor "
            f"[E, {self.table.shape[-1]}] is needed. Use weights.weights(), or leave out the table."
        )

    def check(self, graph: Graph, width: int) -> None:
        """Raise ShapeError, DTypeError or DeviceError unless they are weights of the graph's edges, or of its pairs."""
        table, interval, coefficients, orders = self
        for name, tensor in {"table": table, "interval": interval, "coefficients": coefficients}.items():
            check_tensor(name, tensor, "of weights by interpolation")
        check_integer("orders", orders, 1)
        reads = coefficients.shape[1] if coefficients.ndim == 2 else 0
        fits = table.ndim == 2 and table.shape[1] == width and 0 < orders <= reads
        if not fits or not Reading(reads, orders).intervals(len(table)):
            raise ShapeError(
                f"a table of weights must be [R, {width}] with {orders} rows more for each interval, got "
                f"{list(table.shape)} and coefficients {list(coefficients.shape)}. Make it by RadialTable."
            )
        edges = graph.num_edges
        if interval.ndim == 1 and graph.mirrored and 2 * interval.shape[0] == edges:
            edges = interval.shape[0]
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


for _name in ("__add__", "__radd__", "__rmul__"):
    setattr(TabledWeights, _name, TabledWeights._refuse)  # not the concatenation and repetition of tuples
