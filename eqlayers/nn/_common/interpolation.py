"""Interpolation between equally spaced knots: coefficients of an edge, and the rows of a table that they combine."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Interpolation(NamedTuple):
    """A way to interpolate.

    Attributes:
        orders: Derivatives at a knot that the table holds, one row each; also rows from interval to interval.
        reads: Rows that a length reads, one after the other.
        extra: Rows of the table beside ``orders`` for each knot.
        smooth: Continuous derivatives.
        coefficients: From ``[E]`` places between two knots, 0 to 1, and the distance of knots to ``[E, reads]``.
    """

    orders: int
    reads: int
    extra: int
    smooth: int
    coefficients: Callable[[Tensor, float], Tensor]


def _lagrange(u: Tensor, step: float) -> Tensor:
    below, above, beyond = u + 1, u - 1, u - 2
    parts = (u * above * beyond / -6, below * above * beyond / 2, below * u * beyond / -2, below * u * above / 6)
    return torch.stack(parts, -1)


def _spline(u: Tensor, step: float) -> Tensor:
    v = 1 - u
    parts = (v * v * v / 6, u * u * (u - 2) / 2 + 2 / 3, v * v * (v - 2) / 2 + 2 / 3, u * u * u / 6)
    return torch.stack(parts, -1)


def _hermite(u: Tensor, step: float) -> Tensor:
    v = 1 - u
    return torch.stack((v * v * (1 + 2 * u), step * u * v * v, u * u * (1 + 2 * v), -step * u * u * v), -1)


def _quintic(u: Tensor, step: float) -> Tensor:
    v, square = 1 - u, step * step / 2
    value = v**3 * (1 + 3 * u + 6 * u * u), u**3 * (1 + 3 * v + 6 * v * v)
    slope = step * u * v**3 * (1 + 3 * u), -step * v * u**3 * (1 + 3 * v)
    curve = square * u * u * v**3, square * v * v * u**3
    return torch.stack((value[0], slope[0], curve[0], value[1], slope[1], curve[1]), -1)


#: The ways to interpolate. Where two are equally exact, the first has the smallest table.
INTERPOLATIONS = {
    "spline": Interpolation(1, 4, 2, 2, _spline),
    "hermite": Interpolation(2, 4, 0, 1, _hermite),
    "quintic": Interpolation(3, 6, 0, 2, _quintic),
    "lagrange": Interpolation(1, 4, 0, 0, _lagrange),
}


def spline_rows(values: Tensor) -> Tensor:
    """Coefficients ``[..., K + 2, W]`` of a cubic spline near ``[..., K, W]`` values, 0 with its slope at the end.

    With second differences d, the interpolating spline has the coefficients (1 + d / 6)^-1, of which three terms of the
    series are taken: they are exact for cubic polynomials, and each is a sum over five knots, so that a table that is
    made in every step solves nothing. Values are continued by a cubic before the first knot, and by 0 behind the last.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapter XII: approximations that reproduce polynomials.

    Example:
        >>> spline_rows(torch.ones(8, 1)).flatten()[:5]
        tensor([1., 1., 1., 1., 1.])
    """
    first = values[..., :6, :]
    front = torch.stack(
        [
            sum(factor * first[..., n, :] for n, factor in enumerate(factors))  # type: ignore[misc]
            for factors in _CONTINUED
        ],
        -2,
    )
    values = torch.cat([front, values, torch.zeros_like(values[..., :1, :])], -2)
    count = values.shape[-2] - 4
    found = sum(factor * values[..., n : n + count, :] for n, factor in enumerate(_SPLINE))
    last = found[..., -1:, :]  # type: ignore[index]
    return torch.cat([found, -0.5 * last, last], -2)  # type: ignore[list-item]


#: Coefficients of a spline from five values in a row.
_SPLINE = (1 / 36, -10 / 36, 54 / 36, -10 / 36, 1 / 36)
#: Three values before the first knot, from the first four by a cubic.
_CONTINUED = ((20.0, -45.0, 36.0, -10.0), (10.0, -20.0, 15.0, -4.0), (4.0, -6.0, 4.0, -1.0))


def slope(values: Tensor, at: Tensor, create_graph: bool) -> Tensor:
    """Derivative of every column ``[N, W]`` by the length of its row: that of a sum with factors, by the factors."""
    factors = torch.ones_like(values, requires_grad=True)
    (sums,) = torch.autograd.grad((values * factors).sum(), at, create_graph=True)
    (found,) = torch.autograd.grad(sums.sum(), factors, create_graph=create_graph)
    return found
