"""Envelopes that end at a cutoff: functions of lengths, which TorchScript reads, and modules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.jit import is_scripting  # type: ignore[attr-defined]

from ...core.checks import check_floating, check_number
from ...core.errors import ConfigError


def check_cutoff(cutoff: Any) -> float:
    """A length in Angstrom, or ConfigError."""
    return check_number("cutoff", cutoff, above=0, at_most=1e6, unit=" of Angstrom")


def check_power(p: Any) -> float:
    """Power of a polynomial envelope, a number from 2 to 100, or ConfigError."""
    return check_number("p", p, at_least=2, at_most=100, fix="The derivative must be continuous; 6 is usual.")


def check_start(start: Any, cutoff: float, at_least: float | None = None, unit: str = "") -> float:
    """The start of functions that end at the cutoff; ConfigError unless it is a number below the cutoff."""
    number = check_number("start", start, at_least=at_least, unit=unit, fix="0.0 is usual.")
    if number >= cutoff:
        raise ConfigError(f"start must be below the cutoff, {cutoff:g}, got {start}. 0.0 is usual.")
    return number


def vanishing(dtype: torch.dtype) -> float:
    r"""A number s, almost the largest for which :math:`e^{-1/s}` is below all normal numbers of the dtype."""
    if dtype == torch.float64:
        return 1 / 709
    return 1 / 10 if dtype == torch.float16 else 1 / 88


def polynomial(lengths: Tensor, cutoff: float, p: float) -> Tensor:
    """The envelope of `PolynomialCutoff`, ``[...]`` Angstrom to ``[...]``, without checks; TorchScript reads it."""
    # in float64: close to the cutoff it is a small difference of large numbers, which in float32 goes below 0
    r = lengths.to(torch.float64)
    u = torch.minimum(r / cutoff, r.new_ones(()))  # clamp() has no gradient of NaN
    # torch 2.6 has no gradient of a power that may change
    envelope = 1 - u**p * ((p + 1) * (p + 2) / 2 + u * (p * (p + 1) / 2 * u - p * (p + 2)))
    envelope = envelope - torch.minimum(envelope.detach(), r.new_zeros(()))  # rounding below 0; derivatives stay
    return (envelope * (r < cutoff).to(r.dtype)).to(lengths.dtype)


def cosine(lengths: Tensor, cutoff: float) -> Tensor:
    """The envelope of `CosineCutoff`, ``[...]`` Angstrom to ``[...]``, without checks; TorchScript reads it."""
    half = torch.cos(lengths * (0.5 * math.pi / cutoff))  # its square keeps its digits where it is small
    return torch.where(lengths >= cutoff, torch.zeros_like(lengths), half * half)


def smooth(lengths: Tensor, cutoff: float, start: float) -> Tensor:
    """The envelope of `SmoothCutoff`, ``[...]`` Angstrom to ``[...]``, without checks; TorchScript reads it."""
    v = (lengths - start) / (cutoff - start)
    least = vanishing(v.dtype)  # nearer to the ends than this, all derivatives round to the derivatives of a constant
    at = torch.minimum(torch.maximum(v, v.new_full((), least)), v.new_full((), 1 - least))
    exponent = 1 / (1 - at) - 1 / at
    first = (exponent < 0).to(v.dtype)
    # each half by the smaller of two sigmoids, whose derivatives keep their digits; where() is slow on CPUs
    smaller = torch.sigmoid((2 * first - 1) * exponent)
    return (first + (1 - 2 * first) * smaller) * (v < 1 - least).to(v.dtype)


def polynomial_cutoff(lengths: Tensor, cutoff: float = 5.0, p: float = 6) -> Tensor:
    """:class:`eqlayers.nn.PolynomialCutoff` as a function, ``[...]`` Angstrom to ``[...]``; DTypeError for no lengths.

    Example:
        >>> polynomial_cutoff(torch.tensor([0.0, 2.5, 5.0]), 5.0).tolist()
        [1.0, 0.85546875, 0.0]
    """
    return polynomial(check_floating("lengths", lengths, "[...]"), check_cutoff(cutoff), check_power(p))


def cosine_cutoff(lengths: Tensor, cutoff: float = 5.0) -> Tensor:
    """:class:`eqlayers.nn.CosineCutoff` as a function, ``[...]`` Angstrom to ``[...]``; DTypeError for no lengths.

    Example:
        >>> cosine_cutoff(torch.tensor([0.0, 2.0, 4.0, 7.0]), 4.0)
        tensor([1.0000, 0.5000, 0.0000, 0.0000])
    """
    return cosine(check_floating("lengths", lengths, "[...]"), check_cutoff(cutoff))


def smooth_cutoff(lengths: Tensor, cutoff: float = 5.0, start: float = 0.0) -> Tensor:
    """:class:`eqlayers.nn.SmoothCutoff` as a function, ``[...]`` Angstrom to ``[...]``; DTypeError for no lengths.

    Example:
        >>> smooth_cutoff(torch.tensor([0.0, 3.0, 4.0, 5.0]), 5.0, start=3.0).tolist()
        [1.0, 1.0, 0.5, 0.0]
    """
    end = check_cutoff(cutoff)
    start = check_start(start, end, at_least=0, unit=" of Angstrom")
    return smooth(check_floating("lengths", lengths, "[...]"), end, start)


class PolynomialCutoff(torch.nn.Module):
    r"""Polynomial envelope: 1 at r = 0, 0 beyond the cutoff; p - 1 derivatives are 0 at r = 0, two at the cutoff.

    .. math:: f(u) = 1 - \tfrac{(p+1)(p+2)}{2} u^p + p(p+2) u^{p+1} - \tfrac{p(p+1)}{2} u^{p+2}, \quad u = r / r_c

    Args:
        cutoff: :math:`r_c` in Angstrom.
        p: Power, a number from 2 to 100; 6 is usual.

    Raises:
        ConfigError: cutoff or p out of range.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 8.

    Example:
        >>> PolynomialCutoff(5.0)(torch.tensor([0.0, 5.0, 7.0])).tolist()
        [1.0, 0.0, 0.0]
    """

    continuous = 2  # derivatives at the cutoff

    def __init__(self, cutoff: float = 5.0, p: int = 6) -> None:
        super().__init__()
        self.cutoff, power = check_cutoff(cutoff), check_power(p)
        self.p = int(power) if power == int(power) else power  # an integer is a constant for every compiler

    def forward(self, lengths: Tensor) -> Tensor:
        """``[...]`` Angstrom to ``[...]``; NaN stays NaN."""
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
        return polynomial(lengths, self.cutoff, float(self.p))

    def extra_repr(self) -> str:
        """Cutoff and power."""
        return f"{self.cutoff} A, p={self.p}"


class CosineCutoff(torch.nn.Module):
    r"""Half a wave of a cosine: 1 at r = 0, 0 beyond the cutoff, with one continuous derivative.

    .. math:: f(r) = \tfrac{1}{2} \Big(1 + \cos \frac{\pi r}{r_c}\Big)

    The curvature jumps at the cutoff by :math:`\pi^2 / 2 r_c^2`, so forces have kinks there, and Hessians jump.

    Args:
        cutoff: :math:`r_c` in Angstrom.

    Raises:
        ConfigError: cutoff out of range.

    Source:
        Behler and Parrinello 2007, doi:10.1103/PhysRevLett.98.146401, eq. 4.

    Example:
        >>> CosineCutoff(4.0)(torch.tensor([0.0, 2.0, 4.0, 7.0]))
        tensor([1.0000, 0.5000, 0.0000, 0.0000])
    """

    continuous = 1  # derivative at the cutoff

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

    Raises:
        ConfigError: cutoff or start out of range.

    Source:
        Tu, An Introduction to Manifolds, 2011, section 13.1.

    Example:
        >>> SmoothCutoff(5.0, start=3.0)(torch.tensor([0.0, 3.0, 4.0, 5.0, 7.0])).tolist()
        [1.0, 1.0, 0.5, 0.0, 0.0]
    """

    continuous = math.inf  # derivatives at the cutoff

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
        """The lengths at which the cutoff begins and ends."""
        return f"from {self.start} to {self.cutoff} A"
