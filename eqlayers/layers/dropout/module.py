"""Layers that leave parts out in training: copies of irreps, or a whole branch for some graphs."""

from __future__ import annotations

from typing import Any

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.dtypes import check_same_kind
from ...core.errors import ShapeError
from ...e3nn_compat.torchscript import is_tracing, operator
from ...irreps.algebra import as_irreps
from ..base.module import EquivariantModule
from .functions import CopyNumbers, check_probability, drop_copies, drop_rows


@compile_mode("script")  # for e3nn.util.jit
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

    _torchscript = (("forward", "layer_dropout(x, self._muls, self._copies, self.p, self.training)"),)
    _copies: Tensor

    def __init__(self, irreps: Any, p: float, *, layout: str = "mul_ir") -> None:
        super().__init__(layout)
        self.irreps = self.irreps_in = self.irreps_out = as_irreps(irreps)
        self.p = check_probability(p)
        copies = CopyNumbers(self.irreps, layout)
        self._flat, self._muls = copies.flat, copies.muls
        #: Number of the copy in every column.
        self.register_buffer("_copies", torch.tensor(copies.numbers, dtype=torch.int64, device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, ..., irreps.dim]`` to the same; a row without batch is a batch of one.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        if is_tracing():
            drawn: Tensor = torch.ops.eqlayers.layer_dropout(x, self._muls, self._copies, self.p, self.training)
            return drawn
        self._flat.check("x", x)
        check_same_kind(x=x)
        if not self.training or not x.numel():
            return x
        return drop_copies(x, self._muls, self._copies, self.p)

    def extra_repr(self) -> str:
        """Irreps, probability and layout."""
        return f"{self.irreps}, p={self.p} | {self.layout}"


@operator("layer_dropout(Tensor x, int[] muls, Tensor copies, float p, bool training) -> Tensor")
def _run_dropout(x: Tensor, muls: list[int], copies: Tensor, p: float, training: bool) -> Tensor:
    if x.ndim < 1 or x.shape[-1] != copies.shape[0]:
        raise ShapeError(f"x must be [..., {copies.shape[0]}], got {list(x.shape)}. Build the layer for this width.")
    return drop_copies(x, muls, copies, p) if training and x.numel() else x.clone()


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
        self.p = check_probability(p)

    def forward(self, x: Tensor, batch: Tensor | None = None, num_graphs: int | None = None) -> Tensor:
        """The features, with zeros for some graphs.

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
        return drop_rows(x, self.p, batch, self.training, num_graphs)

    def extra_repr(self) -> str:
        """Probability."""
        return f"p={self.p}"
