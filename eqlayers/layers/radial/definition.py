"""The definitions of radial bases and cutoffs, in float64; r and the cutoff c in the unit of lengths."""

from __future__ import annotations

import math

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
