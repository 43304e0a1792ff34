"""The rows of a table from values at its knots, and slopes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ...core.errors import ConfigError
from ...core.torch_internals import is_plain


def knot_rows(values: Tensor, derivatives: Sequence[Tensor], behind: Sequence[Tensor] = ()) -> Tensor:
    """Rows ``[..., orders * K, W]`` of a table from ``[..., K, W]`` values and derivatives at its knots.

    Derivatives are of every order that the interpolation needs, in units of the distance of knots; ``behind`` are
    derivatives at the end of the interval that begins at a knot, if they differ from the next knot's.
    """
    steps = torch.cat([values[..., 1:, :] - values[..., :-1, :], torch.zeros_like(values[..., :1, :])], -2)
    return torch.stack([*derivatives, values, steps, *behind], -2).flatten(-3, -2)


def spline_rows(values: Tensor, end: str, kink: int | None = None) -> Tensor:
    """Rows of a table of a cubic spline near ``[..., K, W]`` values; no row depends on a value beyond a ``kink``."""
    if kink is None:
        return knot_rows(*_at_knots(spline(values, end)))
    sides = [_at_knots(spline(values[..., : kink + 1, :], "open")), _at_knots(spline(values[..., kink:, :], end))]
    both = [  # two estimates of the value and of the slope at the kink
        torch.cat([left[..., :-1, :], (left[..., -1:, :] + right[..., :1, :]) / 2, right[..., 1:, :]], -2)
        for left, right in zip(*[(one[0], *one[1]) for one in sides], strict=True)
    ]
    return knot_rows(both[0], both[1:])


def spline(values: Tensor, end: str) -> Tensor:
    """Coefficients ``[..., K + 2, W]`` of a cubic spline near ``[..., K, W]`` values at equally spaced knots.

    With second differences d, the interpolating spline has the coefficients (1 + d / 6)^-1, of which three terms of the
    series are taken: they are exact for cubic polynomials, and each is a sum over five knots, so that a table that is
    made in every step solves nothing. Values are continued by a cubic before the first knot, and behind the last if the
    end is 'open'. 'level' and 'flat': value and slope are 0 there, and the curvature comes from the values or is 0.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapter XII: approximations that reproduce polynomials.

    Example:
        >>> spline(torch.ones(8, 1), "open").flatten()
        tensor([1., 1., 1., 1., 1., 1., 1., 1., 1., 1.])
    """
    continued = values.new_tensor(_CONTINUED)
    back = torch.zeros_like(values[..., :1, :])
    if end == "open":
        back = continued.flip(0, 1) @ values[..., -4:, :]
    values = torch.cat([continued @ values[..., :4, :], values, back], -2)
    near = [values.narrow(-2, n, values.shape[-2] - 4) for n in range(5)]
    coefficients = (near[1] + near[3]) * _SPLINE[1] + near[2] * _SPLINE[2]
    coefficients = coefficients.add(near[0] + near[4], alpha=_SPLINE[0])
    if end == "open":
        return coefficients
    if end == "flat":
        return torch.cat([coefficients[..., :-1, :], torch.zeros_like(coefficients[..., :3, :])], -2)
    v = [values.narrow(-2, values.shape[-2] - n, 1) for n in (3, 4, 5)]  # from the last knot but one backwards
    last = 2 * v[0] - 0.5 * v[1] + (2 / 27) * v[2]  # a third of the curvature at the end
    return torch.cat([coefficients[..., :-1, :], last, -0.5 * last, last], -2)


#: Coefficients of a spline from values two knots away, one away, and at the knot.
_SPLINE = (1 / 36, -10 / 36, 54 / 36)
#: Three values before the first knot, from the first four by a cubic.
_CONTINUED = ((20.0, -45.0, 36.0, -10.0), (10.0, -20.0, 15.0, -4.0), (4.0, -6.0, 4.0, -1.0))


def _at_knots(coefficients: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Values and slopes at the knots of a spline, from its coefficients."""
    before, at, behind = (coefficients.narrow(-2, n, coefficients.shape[-2] - 2) for n in range(3))
    return (before + 4 * at + behind) / 6, [(behind - before) / 2]


def lagrange_rows(values: Tensor) -> Tensor:
    """Rows of a table of cubics through the four values around each interval, or the first or last four."""
    near = torch.stack([values.narrow(-2, n, values.shape[-2] - 3) for n in range(4)], -1)
    ends = values.new_tensor(_FOUR)  # slopes at each of four points
    first, inner, last = near[..., :1, :, :], near, near[..., -1:, :, :]
    left = torch.cat([first @ ends[0], inner @ ends[1], last @ ends[2]], -2)
    right = torch.cat([first @ ends[1], inner @ ends[2], last @ ends[3]], -2)
    none = torch.zeros_like(values[..., :1, :])
    return knot_rows(values, [torch.cat([left, none], -2)], [torch.cat([right, none], -2)])


#: Slope of a cubic at each of four points, from its values there.
_FOUR = (
    (-11 / 6, 3.0, -3 / 2, 1 / 3), (-1 / 3, -1 / 2, 1.0, -1 / 6),
    (1 / 6, -1.0, 1 / 2, 1 / 3), (-1 / 3, 3 / 2, -3.0, 11 / 6),
)  # fmt: skip


class Kept:
    """A table that is made again only if the tensors that it depends on have other values.

    Values are compared, not versions: averages of weights are swapped in and out without a new version. Copies keep no
    table. Gradients reach the tensors: a backward pass that asks for them makes the table once more, with its graph.

    Example:
        >>> kept, weight, made = Kept(), torch.ones(2), []
        >>> for factor in (1.0, 1.0, 2.0):
        ...     rows = kept([factor * weight], lambda tensors: made.append(0) or 3 * tensors[0])
        >>> len(made), rows.tolist()
        (2, [6.0, 6.0])
    """

    def __init__(self) -> None:
        self._last: tuple[list[Tensor], Tensor] | None = None  # set at once, as threads may share a model

    def __call__(self, tensors: Sequence[Tensor], make: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
        """The table that ``make`` gives for ``tensors``, on which alone it depends."""
        now = [t.detach() for t in tensors]
        last = self._last
        if last is None or not _same(last[0], now):
            with torch.inference_mode(False), torch.no_grad():
                last = self._last = [t.clone() for t in now], make(now)
        graph = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        return _Connected.apply(last[1], make, *tensors) if graph else last[1]

    def __deepcopy__(self, memo: Any) -> Kept:
        return Kept()

    def __reduce__(self) -> Any:
        return Kept, ()


class _Connected(torch.autograd.Function):
    """A table without a graph as a function of the tensors that it was made of."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, make: Callable[[Sequence[Tensor]], Tensor], *tensors: Tensor) -> Tensor:
        ctx.make = make
        ctx.save_for_backward(*tensors)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            tensors = [t.view_as(t) for t in ctx.saved_tensors]  # hooks of the tensors themselves run once, behind this
            rows = ctx.make(tensors)
        inputs = [t for t, need in zip(tensors, needed, strict=True) if need]
        live = torch.is_grad_enabled()
        results = iter(torch.autograd.grad(rows, inputs, gradient, create_graph=live, allow_unused=True))
        return None, None, *(next(results) if need else None for need in needed)


def may_be_kept(tensors: Sequence[Tensor], training: bool) -> bool:
    """Whether a table of these may be kept: they are not trained, and no trace or transform goes over them."""
    trained = training and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return not trained and is_plain(tensors, observed=True)


def _same(known: list[Tensor], now: list[Tensor]) -> bool:
    """Whether tensors have the same numbers, of one dtype and device."""
    return len(known) == len(now) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(known, now, strict=True)
    )


def gradients() -> AbstractContextManager[object]:
    """Enable gradients and leave `torch.inference_mode`; tensors from within it are cloned."""
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        return torch.inference_mode(False)
    return torch.enable_grad()


_NO_SLOPES = (
    "a radial network must be one that autograd goes through to the lengths, got values that differ and have no "
    "slopes. Leave out detach, rounding and NumPy, or compute in torch."
)


def slope(values: Tensor, at: Tensor, create_graph: bool = False) -> Tensor:
    """Derivative of every column ``[N, W]`` by the length of its row, as the derivative of a sum with factors.

    Columns that depend on no length have the slope 0. ConfigError: values differ and autograd does not know how, or it
    goes through the network once only.
    """
    factors = torch.ones_like(values, requires_grad=True)
    (sums,) = torch.autograd.grad((values * factors).sum(), at, create_graph=True, allow_unused=True)
    if sums is None or not sums.requires_grad:
        if bool((values != values[:1]).any()):
            raise ConfigError(_NO_SLOPES)
        return torch.zeros_like(values)
    (slopes,) = torch.autograd.grad(sums.sum(), factors, create_graph=create_graph, allow_unused=True)
    if slopes is None:
        raise ConfigError(
            "a radial network must be one that autograd goes through twice, got a function whose gradient has none. "
            "Leave out once_differentiable, or use interpolation='spline' with knots=."
        )
    return slopes


def check_slopes(values: Tensor, slopes: Tensor) -> None:
    """Raise ConfigError where a column differs from row to row and has no slope anywhere."""
    if bool(((slopes == 0).all(0) & (values != values[:1]).any(0)).any()):
        raise ConfigError(_NO_SLOPES)
