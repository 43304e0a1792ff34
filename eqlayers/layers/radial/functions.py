"""Radial functions without an envelope, by name; functions that layers call must be valid TorchScript.

Arguments are x, the distance from the start; the number of functions; the distance from the start to the cutoff; and
whether functions are 0 at start and cutoff, or have maxima there.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.jit import is_scripting  # type: ignore[attr-defined]

from ...core.checks import check_choice, check_flag, check_floating, check_integer
from ...core.errors import ConfigError
from ...core.torch_internals import is_plain
from .cutoffs import check_cutoff, check_start, vanishing


def bessel(x: Tensor, number: int, length: float) -> Tensor:
    r"""Bessel functions ``[..., number]``, :math:`\sqrt{2/r_c}\,\sin(n \pi x / r_c) / x` of lengths x ``[...]``."""
    n = torch.arange(1, number + 1, dtype=x.dtype, device=x.device)
    k = math.pi / length * n
    scale, near = (2 / length) ** 0.5 * k, 0.2
    if not is_scripting():  # noqa: SIM102 -- TorchScript leaves out a block below this condition alone
        if all_between(x, 1.01 * near * length / math.pi, math.inf):
            t = x[..., None] * k
            return scale * (t.sin() / t)  # the same numbers as below
    end = torch.where(x == math.inf, length, x)  # the sine of infinity is NaN; all functions are 0 at the cutoff
    return scale * sin_over(end[..., None] * k, near)


def all_between(x: Tensor, least: float, most: float) -> bool:
    """True if all values lie in (least, most); False if they cannot be read: on a GPU, in a trace, under torch.func."""
    if not (x.is_cpu and is_plain((x,)) and x.numel()):
        return False
    low, high = x.detach().aminmax()
    return float(low) > least and float(high) < most


def sin_over(t: Tensor, near: float) -> Tensor:
    """``sin(t) / t`` with finite derivatives of every order at 0; torch.sinc has NaN there from the second.

    Below ``near`` they come from its series, because differences of large numbers lose digits there.
    """
    small = t.abs() < near
    s = torch.where(small, t * t, 0.0)  # the series leaves 0.2**12 / 13! = 7e-19
    series = 1 - s / 6 * (1 - s / 20 * (1 - s / 42 * (1 - s / 72 * (1 - s / 110))))
    away = torch.where(small, 1.0, t)  # the branch not taken must be finite, or its gradient is NaN
    return torch.where(small, series, away.sin() / away)


def _steps(x: Tensor, number: int, length: float, inside: bool) -> Tensor:
    """Distances of x to the centres of the functions, in units of the distance between two centres."""
    steps = number + (1 if inside else -1)
    centre = torch.arange(number, dtype=x.dtype, device=x.device) + (1 if inside else 0)
    return x[..., None] * (steps / length) - centre


def gaussian(x: Tensor, number: int, length: float, inside: bool) -> Tensor:
    """Gaussians ``exp(-d^2) / 1.12`` of the distance d from a centre."""
    d = _steps(x, number, length, inside)
    return torch.exp(-d * d) / 1.12


def cosine(x: Tensor, number: int, length: float, inside: bool) -> Tensor:
    """Half a wave of a cosine around each centre, else 0."""
    d = _steps(x, number, length, inside)
    return torch.where((d >= -1) & (d < 1), torch.cos(0.5 * math.pi * d), torch.zeros_like(d))


def smooth_finite(x: Tensor, number: int, length: float, inside: bool) -> Tensor:
    """Smooth bumps around each centre, 0 at a distance of 1 and more."""
    d = _steps(x, number, length, inside)
    s = (1 - d) * (1 + d)
    between = s > vanishing(d.dtype)  # nearer to the ends, all derivatives round to 0
    at = torch.where(between, s, 1.0)  # the branch not taken must be finite, or its gradient is NaN
    return torch.where(between, 1.14136 * torch.exp(2 - 2 / at), torch.zeros_like(d))


def fourier(x: Tensor, number: int, length: float, inside: bool) -> Tensor:
    """Sines that are 0 at start and cutoff, or cosines."""
    u = x[..., None] / length
    n = torch.arange(number, dtype=x.dtype, device=x.device)
    factor = (0.25 + number / 2) ** -0.5
    if not inside:
        return torch.cos(math.pi * n * u) * factor
    u = torch.where((u >= 0) & (u < 1), u, torch.zeros_like(u))  # at the start, the slope is taken from the right
    return torch.sin(math.pi * (n + 1) * u) * factor


def chebyshev(x: Tensor, number: int, length: float) -> Tensor:
    """Chebyshev polynomials by the recurrence, which has derivatives at start and cutoff, too."""
    t = 1 - 2 * x / length
    polynomials = [torch.ones_like(t), t]
    while len(polynomials) < number:
        polynomials.append(2 * t * polynomials[-1] - polynomials[-2])
    return torch.stack(polynomials[:number], -1)


#: Bases with equally spaced centres, and the other bases.
_SPACED = {"gaussian": gaussian, "cosine": cosine, "smooth_finite": smooth_finite, "fourier": fourier}
_OTHERS = {"bessel": bessel, "chebyshev": chebyshev}


def check_num_basis(num_basis: Any, cutoff: Any, at_least: int) -> int:
    """The number of functions, or ConfigError, with a hint if number and cutoff are exchanged."""
    swapped = isinstance(num_basis, float) and isinstance(cutoff, int)
    fix = f"Write num_basis={cutoff}, cutoff={num_basis}: num_basis comes first." if swapped else "8 is usual."
    return check_integer("num_basis", num_basis, at_least, fix=fix)


def radial_basis(
    lengths: Tensor,
    basis: str = "bessel",
    num_basis: int = 8,
    cutoff: float = 5.0,
    *,
    start: float = 0.0,
    inside: bool = True,
) -> Tensor:
    """Functions of lengths without an envelope, ``[...]`` Angstrom to ``[..., num_basis]``.

    Multiply by an envelope, as ``radial_basis(r) * polynomial_cutoff(r)[..., None]``; the layers do so.

    Args:
        lengths, num_basis, cutoff, start: See :class:`eqlayers.nn.GaussianBasis`.
        basis: 'bessel', 'gaussian', 'cosine', 'smooth_finite', 'fourier' or 'chebyshev', of
            :class:`eqlayers.nn.BesselBasis` and the other bases.
        inside: See :class:`eqlayers.nn.GaussianBasis`; True for 'bessel' and 'chebyshev'.

    Raises:
        ConfigError: An unknown basis, or a number out of range. DTypeError: No lengths.

    Example:
        >>> radial_basis(torch.tensor([0.0, 4.0]), "chebyshev", 3, 4.0).tolist()
        [[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]]
    """
    x, end = check_floating("lengths", lengths, "[...]"), check_cutoff(cutoff)
    name = check_choice("basis", basis, (*_OTHERS, *_SPACED))
    begin, between = check_start(start, end), check_flag("inside", inside)
    least = 1 if between or name not in _SPACED or name == "fourier" else 2  # bumps on both ends
    number = check_num_basis(num_basis, cutoff, least)
    x = x - begin if begin else x
    if name in _SPACED:
        return _SPACED[name](x, number, end - begin, between)
    if not between:
        raise ConfigError(f"inside must be True for basis={name!r}, got False. Leave it out.")
    return _OTHERS[name](x, number, end - begin)
