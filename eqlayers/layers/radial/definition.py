"""The definitions of radial bases, cutoffs and splines, in float64; r and the cutoff c in the unit of lengths."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def bessel(r: Tensor, cutoff: float, number: int) -> Tensor:
    """``[E]`` to ``[E, number]``: sqrt(2 / c) sin(n pi r / c) / r.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 7.
    """
    n = torch.arange(1, number + 1, dtype=r.dtype)
    return math.sqrt(2 / cutoff) * (n * math.pi * r[:, None] / cutoff).sin() / r[:, None]


def polynomial_cutoff(r: Tensor, cutoff: float, p: int) -> Tensor:
    """1 at 0, and 0 with two derivatives at the cutoff.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 8.
    """
    u = r / cutoff
    inside = 1 - (p + 1) * (p + 2) / 2 * u**p + p * (p + 2) * u ** (p + 1) - p * (p + 1) / 2 * u ** (p + 2)
    return torch.where(u < 1, inside, torch.zeros_like(u))


def cosine_cutoff(r: Tensor, cutoff: float) -> Tensor:
    """(1 + cos(pi r / c)) / 2 inside the cutoff.

    Source:
        Behler and Parrinello 2007, Phys. Rev. Lett. 98, 146401, eq. 2.
    """
    return torch.where(r < cutoff, (1 + (math.pi * r / cutoff).cos()) / 2, torch.zeros_like(r))


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
    cubic = values.new_tensor([[4, -6, 4, -1]])  # the fourth difference of a cubic is 0
    for _ in range(3):
        values = torch.cat([cubic @ values[:4], values, cubic.flip(1) @ values[-4:]])
    coefficients = sum(f / 36 * values[n : n + knots + 2] for n, f in enumerate((1, -10, 54, -10, 1)))
    x = (r / step)[:, None] - index[2:-2]
    powers = [(x + 2 - n).clamp(min=0) ** 3 for n in range(5)]
    return (powers[0] - 4 * powers[1] + 6 * powers[2] - 4 * powers[3] + powers[4]) / 6 @ coefficients
