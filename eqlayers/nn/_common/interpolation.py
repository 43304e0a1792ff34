"""The rows of a table from values at its knots, and slopes there."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def spline_rows(values: Tensor, flat: bool = False) -> Tensor:
    """Coefficients ``[..., K + 2, W]`` of a cubic spline near ``[..., K, W]`` values, 0 with its slope at the end.

    With second differences d, the interpolating spline has the coefficients (1 + d / 6)^-1, of which three terms of the
    series are taken: they are exact for cubic polynomials, and each is a sum over five knots, so that a table that is
    made in every step solves nothing. Values are continued by a cubic before the first knot, and by 0 behind the last,
    where the curvature is that of the values, or 0 if it is said to be.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapter XII: approximations that reproduce polynomials.

    Example:
        >>> spline_rows(torch.ones(8, 1)).flatten()[:5]
        tensor([1., 1., 1., 1., 1.])
    """
    front = values.new_tensor(_CONTINUED) @ values[..., :4, :]
    values = torch.cat([front, values, torch.zeros_like(values[..., :1, :])], -2)
    near = [values.narrow(-2, n, values.shape[-2] - 4) for n in range(5)]
    found = (near[1] + near[3]) * _SPLINE[1] + near[2] * _SPLINE[2]
    found = found.add(near[0] + near[4], alpha=_SPLINE[0])
    if flat:
        return torch.cat([found[..., :-1, :], torch.zeros_like(found[..., :3, :])], -2)
    v = [values.narrow(-2, values.shape[-2] - n, 1) for n in (3, 4, 5)]  # from the last knot but one backwards
    last = 2 * v[0] - 0.5 * v[1] + (2 / 27) * v[2]  # a third of the curvature at the end
    return torch.cat([found[..., :-1, :], last, -0.5 * last, last], -2)


#: Coefficients of a spline from values two knots away, one away, and at the knot.
_SPLINE = (1 / 36, -10 / 36, 54 / 36)
#: Three values before the first knot, from the first four by a cubic.
_CONTINUED = ((20.0, -45.0, 36.0, -10.0), (10.0, -20.0, 15.0, -4.0), (4.0, -6.0, 4.0, -1.0))


def gradients() -> AbstractContextManager[object]:
    """Where slopes can be had, and what is made outlives `torch.inference_mode`; tensors from within it are cloned."""
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        return torch.inference_mode(False)
    return torch.enable_grad()


def slope(values: Tensor, at: Tensor, create_graph: bool) -> Tensor:
    """Derivative of every column ``[N, W]`` by the length of its row: that of a sum with factors, by the factors."""
    factors = torch.ones_like(values, requires_grad=True)
    (sums,) = torch.autograd.grad((values * factors).sum(), at, create_graph=True)
    (found,) = torch.autograd.grad(sums.sum(), factors, create_graph=create_graph)
    return found
