"""Envelopes that end at a cutoff, by how many of their derivatives are 0 there; beside PolynomialCutoff."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.jit import is_scripting  # type: ignore[attr-defined]

from ...core.checks import check_floating
from .cutoff_functions import check_cutoff, check_start, cosine, smooth


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
        self.cutoff = check_cutoff(cutoff)

    def forward(self, lengths: Tensor) -> Tensor:
        """``[...]`` Angstrom to ``[...]``; NaN stays NaN."""
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
        return cosine(lengths, self.cutoff)

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
        self.cutoff = check_cutoff(cutoff)
        self.start = check_start(start, self.cutoff, at_least=0, unit=" of Angstrom")

    def forward(self, lengths: Tensor) -> Tensor:
        """``[...]`` Angstrom to ``[...]``; NaN stays NaN."""
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
        return smooth(lengths, self.cutoff, self.start)

    def extra_repr(self) -> str:
        """Where it begins and ends."""
        return f"from {self.start} to {self.cutoff} A"
