"""Envelopes that end at a cutoff, by how many of their derivatives are 0 there; beside PolynomialCutoff."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.jit import is_scripting  # type: ignore[attr-defined]

from ..checks import check_floating, check_number
from ..errors import ConfigError


class CosineCutoff(torch.nn.Module):
    r"""Half a wave of a cosine: 1 at r = 0, 0 beyond the cutoff, with one continuous derivative.

    .. math:: f(r) = \tfrac{1}{2} \Big(1 + \cos \frac{\pi r}{r_c}\Big)

    The curvature jumps at the cutoff by :math:`\pi^2 / 2 r_c^2`, so forces have kinks there, and Hessians jump.

    Args:
        cutoff: :math:`r_c` in Angstrom.

    Attributes:
        continuous: Derivatives that are continuous at the cutoff.

    Raises:
        ConfigError: cutoff out of range.

    Source:
        Behler and Parrinello 2007, doi:10.1103/PhysRevLett.98.146401, eq. 4.

    Example:
        >>> CosineCutoff(4.0)(torch.tensor([0.0, 2.0, 4.0, 7.0]))
        tensor([1.0000, 0.5000, 0.0000, 0.0000])
    """

    continuous = 1

    def __init__(self, cutoff: float = 5.0) -> None:
        super().__init__()
        self.cutoff = check_number("cutoff", cutoff, above=0, at_most=1e6, unit=" of Angstrom")

    def forward(self, lengths: Tensor) -> Tensor:
        """``[...]`` Angstrom to ``[...]``; NaN stays NaN."""
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
        half = torch.cos(lengths * (0.5 * math.pi / self.cutoff))  # its square keeps its digits where it is small
        return torch.where(lengths >= self.cutoff, torch.zeros_like(lengths), half * half)

    def extra_repr(self) -> str:
        """Cutoff."""
        return f"{self.cutoff} A"


class SmoothCutoff(torch.nn.Module):
    r"""A step with continuous derivatives of every order: 1 up to a start, 0 beyond the cutoff.

    .. math:: f(r) = \frac{g(1 - v)}{g(v) + g(1 - v)}, \quad g(v) = e^{-1/v}, \quad v = \frac{r - r_0}{r_c - r_0}

    All derivatives are 0 at the start and at the cutoff, so the envelope adds no kink to any derivative of an energy.

    Args:
        cutoff: :math:`r_c` in Angstrom.
        start: :math:`r_0` in Angstrom, where it begins to fall.

    Attributes:
        continuous: Derivatives that are continuous at the cutoff, infinitely many.

    Raises:
        ConfigError: cutoff or start out of range.

    Source:
        Tu, An Introduction to Manifolds, 2011, section 13.1.

    Example:
        >>> SmoothCutoff(5.0, start=3.0)(torch.tensor([0.0, 3.0, 4.0, 5.0, 7.0])).tolist()
        [1.0, 1.0, 0.5, 0.0, 0.0]
    """

    continuous = math.inf

    def __init__(self, cutoff: float = 5.0, start: float = 0.0) -> None:
        super().__init__()
        self.cutoff = check_number("cutoff", cutoff, above=0, at_most=1e6, unit=" of Angstrom")
        self.start = check_number("start", start, at_least=0, unit=" of Angstrom", fix="0.0 is usual.")
        if self.start >= self.cutoff:
            raise ConfigError(f"start must be below the cutoff, {self.cutoff:g}, got {start}. 0.0 is usual.")

    def forward(self, lengths: Tensor) -> Tensor:
        """``[...]`` Angstrom to ``[...]``; NaN stays NaN."""
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
        v = (lengths - self.start) / (self.cutoff - self.start)
        least = vanishing(v.dtype)  # nearer to the ends than this, all derivatives round to those of a constant
        inside = (v > least) & (v < 1 - least)
        at = torch.where(inside, v, 0.5)  # the branch not taken must be finite, or its gradient is NaN
        fallen = torch.sigmoid(1 / (1 - at) - 1 / at)
        left = torch.sigmoid(1 / at - 1 / (1 - at))
        # each half by the smaller of the two, whose derivatives keep their digits
        found = torch.where(at < 0.5, 1 - fallen, left)
        outside = (v < 0.5).to(v.dtype)
        return torch.where(inside, found, torch.where(torch.isnan(v), v, outside))

    def extra_repr(self) -> str:
        """Where it begins and ends."""
        return f"from {self.start} to {self.cutoff} A"


def vanishing(dtype: torch.dtype) -> float:
    r"""Largest s of which :math:`e^{-1/s}` is below all numbers of the dtype, but for those with fewer digits.

    Example:
        >>> 0.1 < math.exp(-1 / vanishing(torch.float64)) / torch.finfo(torch.float64).tiny < 1
        True
    """
    if dtype == torch.float64:
        return 1 / 709
    return 1 / 10 if dtype == torch.float16 else 1 / 88
