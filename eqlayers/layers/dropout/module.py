"""Dropout in training: of irrep copies, or of a whole branch for some graphs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_floating, check_integer, check_number, check_tensor
from ...core.dtypes import check_same_dtype
from ...core.errors import DTypeError, ShapeError
from ...core.graph import check_range
from ...e3nn_compat.torchscript import is_tracing, operator
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, FlatLayout
from ..base.module import EquivariantModule

_flat = lru_cache(maxsize=256)(FlatLayout)


@lru_cache(maxsize=256)
def copy_numbers(irreps: Irreps, layout: str) -> list[int]:
    """The index of the copy that each column of a flat row belongs to, counted over all groups."""
    numbers: list[int] = []
    first = 0
    for mul, ir in irreps:
        copies = range(first, first + mul)
        numbers += [u for u in copies for _ in range(ir.dim)] if layout == "mul_ir" else [*copies] * ir.dim
        first += mul
    return numbers


def check_probability(p: Any) -> float:
    """A number from 0 to 1, or ConfigError."""
    return check_number("p", p, at_least=0.0, at_most=1.0, fix="Use a probability such as 0.1.")


def _drawn(like: Tensor, rows: int, columns: int, p: float) -> Tensor:
    """Random factors ``[rows, columns]``: 0 with probability p, else 1 / (1 - p)."""
    noise = like.new_empty(rows, columns)
    if p in (0.0, 1.0):
        return noise.fill_(1 - p)
    return noise.bernoulli_(1 - p).div_(1 - p)


def drop_copies(x: Tensor, muls: list[int], numbers: Tensor, p: float) -> Tensor:
    """Set random copies to 0, by the `copy_numbers` of columns; random numbers are drawn group by group, as in e3nn."""
    rows = x.shape[0] if x.ndim > 1 else 1
    noise = torch.cat([_drawn(x, rows, mul, p) for mul in muls], -1).index_select(1, numbers)
    if x.ndim != 2:
        noise = noise[0] if x.ndim == 1 else noise.reshape(rows, *[1] * (x.ndim - 2), x.shape[-1])
    return x * noise


def drop_rows(x: Tensor, p: float, batch: Tensor | None, training: bool, num_graphs: int | None) -> Tensor:
    """Multiply the rows of each graph by one random factor; see `drop_path` for the arguments and errors."""
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
    if not training or not x.numel():
        return x
    if batch is None:
        factors = _drawn(x, x.shape[0], 1, p)
    else:
        count = int(batch.max()) + 1 if num_graphs is None else check_integer("num_graphs", num_graphs, 1)
        check_range("batch", batch, count, "graphs")
        factors = _drawn(x, count, 1, p)[batch]
    return x * factors.reshape(-1, *[1] * (x.ndim - 1))


@torch.compiler.assume_constant_result
def _read(irreps: Any, layout: str) -> FlatLayout:
    """The cached layout of irreps; compilers do not trace this."""
    return _flat(as_irreps(irreps), check_choice("layout", layout, LAYOUTS))


@torch.compiler.assume_constant_result
def _numbers(irreps: Any, layout: str, device: str) -> Tensor:
    return torch.tensor(copy_numbers(as_irreps(irreps), layout), dtype=torch.int64, device=device)


def dropout(x: Tensor, irreps: Any, p: float = 0.5, training: bool = True, *, layout: str = "mul_ir") -> Tensor:
    """:class:`eqlayers.nn.Dropout` as a function, ``[batch, ..., irreps.dim]`` to the same; errors as of the layer.

    Args:
        x: ``[batch, ..., irreps.dim]``; a row without batch is a batch of one.
        irreps, p, layout: See the layer.
        training: False for the features as they are.

    Example:
        >>> set(dropout(torch.ones(50, 6), "2x1o").unique().tolist())
        {0.0, 2.0}
    """
    p, training, flat = check_probability(p), check_flag("training", training), _read(irreps, layout)
    FlatLayout.check(flat, "x", x)  # compilers guard no methods of constants
    check_same_dtype(x=x)
    if not training or not x.numel():
        return x
    return drop_copies(x, [slot.mul for slot in flat.slots], _numbers(irreps, layout, str(x.device)), p)


def drop_path(
    x: Tensor, p: float = 0.5, batch: Tensor | None = None, training: bool = True, num_graphs: int | None = None
) -> Tensor:
    """:class:`eqlayers.nn.DropPath` as a function, ``[N, ...]`` to the same; errors as of the layer.

    Args:
        x, batch, num_graphs: See ``DropPath.forward``.
        p: Probability to leave a branch out, 0 to 1.
        training: False for the features as they are.

    Example:
        >>> y = drop_path(torch.ones(6, 4), 0.5, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> bool((y[:3] == y[0]).all()), bool((y[3:] == y[3]).all())
        (True, True)
    """
    return drop_rows(x, check_probability(p), batch, check_flag("training", training), num_graphs)


@compile_mode("script")  # for e3nn.util.jit
class Dropout(EquivariantModule):
    r"""Sets whole irrep copies to 0 at random in training; a drop-in for ``e3nn.nn.Dropout``.

    .. math:: y_{nu} = \frac{b_{nu}}{1 - p}\, x_{nu}, \quad b_{nu} \in \{0, 1\}, \ P(b = 0) = p

    The first axis is the batch; a copy is dropped along all axes between it and the last. With the same seed e3nn drops
    the same copies. In evaluation nothing is dropped.

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
        self._flat, self._muls = FlatLayout(self.irreps, layout), [mul for mul, _ in self.irreps]
        numbers = torch.tensor(copy_numbers(self.irreps, layout), dtype=torch.int64, device="cpu")
        self.register_buffer("_copies", numbers, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, ..., irreps.dim]`` or one row to the same; ShapeError or DTypeError for other features."""
        if is_tracing():
            return _layer_dropout(x, self._muls, self._copies, self.p, self.training)
        self._flat.check("x", x)
        check_same_dtype(x=x)
        if not self.training or not x.numel():
            return x
        return drop_copies(x, self._muls, self._copies, self.p)

    def extra_repr(self) -> str:
        """Irreps, probability and layout."""
        return f"{self.irreps}, p={self.p} | {self.layout}"


@operator("layer_dropout(Tensor x, int[] muls, Tensor copies, float p, bool training) -> Tensor")
def _layer_dropout(x: Tensor, muls: list[int], copies: Tensor, p: float, training: bool) -> Tensor:
    if x.ndim < 1 or x.shape[-1] != copies.shape[0]:
        raise ShapeError(f"x must be [..., {copies.shape[0]}], got {list(x.shape)}. Build the layer for this width.")
    return drop_copies(x, muls, copies, p) if training and x.numel() else x.clone()


class DropPath(torch.nn.Module):
    r"""Sets a whole branch to 0 for random graphs of a batch in training: stochastic depth.

    .. math:: y_n = \frac{b_{g(n)}}{1 - p}\, x_n, \quad b_g \in \{0, 1\}, \ P(b = 0) = p

    Apply it to the output of a block before the sum, ``x + drop(block(x), batch)``. In evaluation nothing is
    dropped.

    Args:
        p: Probability to drop a branch, 0 to 1.

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
            IndexRangeError: An index of a graph is out of range (checked on the CPU only).
        """
        return drop_rows(x, self.p, batch, self.training, num_graphs)

    def extra_repr(self) -> str:
        """Probability."""
        return f"p={self.p}"
