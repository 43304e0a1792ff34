"""Spline tables of a network, recomputed when its weights have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core.torch_internals import is_plain
from ..tensor_product.tabled_weights import TabledWeights
from .knots import spline, spline_rows, whole
from .lower import TO_COEFFICIENTS
from .tabled_basis import KnotBasis

#: A network that runs at knots, and computes splines of its features: from a function that makes rows of splines
#: of values, functions at the knots, and tensors in place of the network's own (None: its own) to rows of a table.
Rows = Callable[[Callable[[Tensor], Tensor], Tensor, Sequence[Tensor] | None], Tensor]
_FEW = 320


class SplineTable:
    """The spline coefficients of a network over knot intervals.

    The table is computed in every call in training, in a trace, and under a transform of torch.func.
    Otherwise it is cached until a tensor has other values. Values are compared, not versions: averages of
    weights are swapped in and out without a new version. Gradients reach the tensors of a cached table: a backward pass
    that needs them computes the table again, with its graph. Copies have no cached table.

    A table computed in every call holds coefficients of B-splines, up to 320 knots: a third of the rows, and so
    has its gradient. Their slopes are differences of coefficients over the distance of knots: in float32 1e-5 of the
    largest slope is rounding with 256 knots, 1e-4 with 8,192. Half precision has too few digits.

    Args:
        precise: Whether slopes have full precision in training, too.
        on_gpus: Whether tables are cached on GPUs, where each comparison waits for the device.

    Example:
        >>> from eqlayers.nn import BesselBasis, TabledBasis
        >>> weight, calls = torch.ones(8, 2, dtype=torch.float64), []
        >>> at = TabledBasis(BesselBasis(8, 5.0), 128)(torch.tensor([1.0, 4.0]))
        >>> table = SplineTable()
        >>> for factor in (1.0, 1.0, 2.0):
        ...     rows = lambda spline, functions, tensors: calls.append(0) or spline(functions @ tensors[0])
        ...     read = table(at, rows, [factor * weight], False, torch.float32)
        >>> len(calls), read.weights().shape
        (2, torch.Size([2, 2]))
    """

    def __init__(self, precise: bool = False, on_gpus: bool = False) -> None:
        self.precise, self.on_gpus = precise, on_gpus
        self.last: tuple[list[Tensor], Tensor] | None = None  # set at once, as threads may share a model

    def __call__(
        self, at: KnotBasis, rows: Rows, tensors: Sequence[Tensor], training: bool, dtype: torch.dtype
    ) -> TabledWeights:
        """The weights of edges, from the table, in ``dtype``, of a network with these tensors."""
        if tensors and (self.on_gpus or all(t.is_cpu for t in tensors)) and may_be_kept(tensors, training):
            return at.weights(self._cached(at, rows, tensors, dtype))
        few = dtype is torch.float64 or (dtype is torch.float32 and at.knots <= _FEW)
        if few and not at.kink and not self.precise:
            return _of_coefficients(at, rows(lambda values: _coefficients(at, values), at.functions, None).to(dtype))
        return at.weights(rows(at.rows, at.functions, None).to(dtype))

    def _cached(self, at: KnotBasis, rows: Rows, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        def make(of: Sequence[Tensor]) -> Tensor:
            return tabulate(at._replace(functions=of[0]), rows, of[1:], dtype)

        tensors = [at.functions, *tensors]
        values, last = [t.detach() for t in tensors], self.last
        if last is None or last[1].dtype != dtype or not _same(last[0], values):
            with torch.inference_mode(False), torch.no_grad():
                last = self.last = [t.clone() for t in values], make(values)
        graph = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        return _Connected.apply(last[1], make, *tensors) if graph else last[1]

    def __deepcopy__(self, memo: Any) -> SplineTable:
        return SplineTable(self.precise, self.on_gpus)

    def __reduce__(self) -> Any:
        return SplineTable, (self.precise, self.on_gpus)


class _Connected(torch.autograd.Function):
    """A cached table as a differentiable function of the tensors that it was computed from."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, make: Callable[[Sequence[Tensor]], Tensor], *tensors: Tensor) -> Tensor:
        ctx.make = make
        ctx.save_for_backward(*tensors)
        return table.view_as(table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            tensors = [t.view_as(t) for t in ctx.saved_tensors]  # hooks of the tensors run once, after this backward
            table = ctx.make(tensors)
        inputs = [t for t, need in zip(tensors, needed, strict=True) if need]
        live = torch.is_grad_enabled()
        results = iter(torch.autograd.grad(table, inputs, gradient, create_graph=live, allow_unused=True))
        return None, None, *(next(results) if need else None for need in needed)


def tabulate(at: KnotBasis, rows: Rows, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The table ``[R, W]`` of a network with these tensors, computed in float64 and rounded to ``dtype``.

    Pairs of species are computed one by one, as all of them might take gigabytes in float64.
    """
    exact = [t.double() if t.is_floating_point() else t for t in tensors]
    splines = partial(spline_rows, end=at.end, kink=at.kink)
    return whole(torch.cat([rows(splines, one, exact).to(dtype) for one in at.functions.split(at.knots)]))


def may_be_kept(tensors: Sequence[Tensor], training: bool) -> bool:
    """Whether a table of ``tensors`` may be cached: no training, no trace, no transform of torch.func."""
    trained = training and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return not trained and is_plain(tensors, observed=True)


def _same(known: list[Tensor], values: list[Tensor]) -> bool:
    """Whether tensors have the same numbers, of one dtype and device."""
    return len(known) == len(values) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(known, values, strict=True)
    )


def _coefficients(at: KnotBasis, values: Tensor) -> Tensor:
    """Coefficients ``[pairs * (K + 2), W]`` of B-splines, from values ``[pairs * K, W]`` at the knots."""
    return spline(values.unflatten(0, (-1, at.knots)), at.end).flatten(0, 1)


def _of_coefficients(at: KnotBasis, table: Tensor) -> TabledWeights:
    """Weights of edges from a table of coefficients of B-splines, four of which overlap in an interval."""
    coefficients, interval = at.coefficients @ at.coefficients.new_tensor(TO_COEFFICIENTS), at.interval
    if at.pairs > 1:  # each has two more than knots
        interval = interval + 2 * torch.div(interval, at.knots, rounding_mode="floor")
    return TabledWeights(table, interval, coefficients.to(table.dtype))
