"""The definition of an interpolated radial function: a cubic spline near its values at the knots, in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def cubic_spline(function: Callable[[Tensor], Tensor], r: Tensor, cutoff: float, knots: int) -> Tensor:
    """``[E]`` to ``[E, width]`` for a function of lengths ``[K]`` to ``[K, width]``: sum_j c_j B(r / h - j).

    B is the cubic B-spline, the third difference of truncated powers. The coefficients c_j are sums over values at five
    knots, (1, -10, 54, -10, 1) / 36; beyond the ends, values continue the cubics through the last four knots.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapters IX and XII.
    """
    step = cutoff / (knots - 1)
    index = torch.arange(-3, knots + 3, dtype=r.dtype)
    values = function((index[3:-3]) * step)
    for _ in range(3):  # the fourth difference of a cubic is 0
        before = 4 * values[0] - 6 * values[1] + 4 * values[2] - values[3]
        behind = 4 * values[-1] - 6 * values[-2] + 4 * values[-3] - values[-4]
        values = torch.cat([before[None], values, behind[None]])
    factors = (1 / 36, -10 / 36, 54 / 36, -10 / 36, 1 / 36)
    coefficients = sum(f * values[n : n + knots + 2] for n, f in enumerate(factors))
    x = (r / step)[:, None] - index[2:-2]
    powers = [(x + 2 - n).clamp(min=0) ** 3 for n in range(5)]
    return (powers[0] - 4 * powers[1] + 6 * powers[2] - 4 * powers[3] + powers[4]) / 6 @ coefficients
