"""Layers that leave parts out in training: copies of irreps, or a whole branch for some graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algebra import as_irreps
from ..checks import check_floating, check_integer, check_number, check_tensor
from ..errors import DTypeError, ShapeError
from ..graph import check_range
from ..lowering.layout import FlatLayout
from ..ops.call import check_same_kind
from ._common.base import EquivariantModule


def _drawn(like: Tensor, rows: int, columns: int, p: float) -> Tensor:
    """0 with probability p, else 1 / (1 - p), ``[rows, columns]``."""
    noise = like.new_empty(rows, columns)
    if p in (0.0, 1.0):
        return noise.fill_(1 - p)
    return noise.bernoulli_(1 - p).div_(1 - p)


class Dropout(EquivariantModule):
    r"""Leaves out whole irrep copies in training; a drop-in for ``e3nn.nn.Dropout``.

    .. math:: y_{nu} = \frac{b_{nu}}{1 - p}\, x_{nu}, \quad b_{nu} \in \{0, 1\}, \ P(b = 0) = p

    The first axis is the batch: what is left out is the same along the axes between. With one seed it is what e3nn
    leaves out. In evaluation nothing is.

    Args:
        irreps: Irreps of the features.
        p: Probability to leave a copy out, 0 to 1.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read, or no probability.

    Source:
        Srivastava et al. 2014, JMLR 15, 1929; e3nn, arXiv:2207.09453.

    Example:
        >>> drop = Dropout("2x1o", 0.5)
        >>> set(drop(torch.ones(50, 6)).unique().tolist())
        {0.0, 2.0}
        >>> bool((drop.eval()(torch.ones(5, 6)) == 1).all())
        True
    """

    _copies: Tensor

    def __init__(self, irreps: Any, p: float, *, layout: str = "mul_ir") -> None:
        super().__init__(layout)
        self.irreps = self.irreps_in = self.irreps_out = as_irreps(irreps)
        self.p = check_number("p", p, at_least=0.0, at_most=1.0, fix="Use a probability such as 0.1.")
        self._flat = FlatLayout(self.irreps, layout)
        self._muls = [mul for mul, _ in self.irreps]
        copies, first = [torch.zeros(0, dtype=torch.int64, device="cpu")], 0
        for mul, ir in self.irreps:
            numbers = torch.arange(first, first + mul, device="cpu")
            copies.append(numbers.repeat_interleave(ir.dim) if layout == "mul_ir" else numbers.repeat(ir.dim))
            first += mul
        #: Number of the copy in every column.
        self.register_buffer("_copies", torch.cat(copies), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, ..., irreps.dim]`` to the same; a row without batch is a batch of one.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        self._flat.check("x", x)
        check_same_kind(x=x)
        if not self.training or not x.numel():
            return x
        rows = x.shape[0] if x.ndim > 1 else 1
        # group by group, as e3nn draws them
        noise = torch.cat([_drawn(x, rows, mul, self.p) for mul in self._muls], -1).index_select(1, self._copies)
        if x.ndim != 2:
            noise = noise[0] if x.ndim == 1 else noise.reshape(rows, *[1] * (x.ndim - 2), self._flat.dim)
        return x * noise

    def extra_repr(self) -> str:
        """Irreps, probability and layout."""
        return f"{self.irreps}, p={self.p} | {self.layout}"


class DropPath(torch.nn.Module):
    r"""Leaves out a whole branch for some graphs of a batch in training: stochastic depth.

    .. math:: y_n = \frac{b_{g(n)}}{1 - p}\, x_n, \quad b_g \in \{0, 1\}, \ P(b = 0) = p

    To be used on what a block adds to its input, ``x + drop(block(x), batch)``. In evaluation nothing is left out.

    Args:
        p: Probability to leave a branch out, 0 to 1.

    Raises:
        ConfigError: No probability.

    Source:
        Huang et al. 2016, arXiv:1603.09382; as used in Equiformer, arXiv:2206.11990.

    Example:
        >>> drop = DropPath(0.5)
        >>> y = drop(torch.ones(6, 4), torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> bool((y[:3] == y[0]).all()), bool((y[3:] == y[3]).all())
        (True, True)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_number("p", p, at_least=0.0, at_most=1.0, fix="Use a probability such as 0.1.")

    def forward(self, x: Tensor, batch: Tensor | None = None, num_graphs: int | None = None) -> Tensor:
        """The features, those of some graphs 0.

        Args:
            x: ``[N, ...]``.
            batch: ``[N]`` int64, the graph of each row; None if every row is one.
            num_graphs: Graphs of the batch; None for as many as ``batch`` names, which has to be read from the device.

        Returns:
            ``[N, ...]``.

        Raises:
            ShapeError, DTypeError: The tensors do not fit each other.
            IndexRangeError: A graph is not among them (found on CPU only).
        """
        check_floating("x", x, "[N, ...]")
        if x.ndim == 0:
            raise ShapeError("x must be [N, ...], got a number. Give it an axis of rows.")
        if batch is not None:
            check_tensor("batch", batch, f"[{x.shape[0]}]")
            if batch.dtype != torch.int64:
                raise DTypeError(f"batch must be int64, got {batch.dtype}. Convert it with `.long()`.")
            if batch.ndim != 1 or batch.shape[0] != x.shape[0]:
                raise ShapeError(
                    f"batch must be [{x.shape[0]}], a graph for each row of x, got {list(batch.shape)}. "
                    f"Pass None if every row is a graph."
                )
        if not self.training or not x.numel():
            return x
        if batch is None:
            factors = _drawn(x, x.shape[0], 1, self.p)
        else:
            count = int(batch.max()) + 1 if num_graphs is None else check_integer("num_graphs", num_graphs, 1)
            check_range("batch", batch, count, "graphs")
            factors = _drawn(x, count, 1, self.p)[batch]
        return x * factors.reshape(-1, *[1] * (x.ndim - 1))

    def extra_repr(self) -> str:
        """Probability."""
        return f"p={self.p}"
