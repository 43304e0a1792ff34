"""Radial bases other than Bessel functions: bumps at equally spaced lengths, waves and polynomials."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_flag
from . import functions
from .module import RadialBasis


class _Spaced(RadialBasis):
    """Bases of e3nn's `soft_one_hot_linspace`; with ``inside``, functions are (nearly) 0 at start and cutoff."""

    _function: Any  # of distances from the start, the number of functions, cutoff - start, and `inside`
    _fewest = 2  # functions without `inside`

    def __init__(
        self,
        num_basis: int = 8,
        cutoff: float = 5.0,
        p: int | None = 6,
        *,
        start: float = 0.0,
        inside: bool = True,
        envelope: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(num_basis, cutoff, p, start=start, envelope=envelope)
        self.inside = check_flag("inside", inside)
        functions.check_num_basis(num_basis, cutoff, 1 if self.inside else self._fewest)
        if self.envelope is None and not self.inside:
            self.continuous = -1

    def functions(self, x: Tensor) -> Tensor:
        """Values ``[..., num_basis]`` without the envelope; x ``[...]`` is the length minus ``start``, in Angstrom."""
        values: Tensor = self._function(x, self.num_basis, self.cutoff - self.start, self.inside)
        return values

    def extra_repr(self) -> str:
        """Number of functions, start and cutoff, and options that are not the default."""
        return super().extra_repr() + ("" if self.inside else ", on the ends")


class GaussianBasis(_Spaced):
    r"""Gaussians around equally spaced lengths: :math:`b_n(r) = e^{-(r - r_n)^2 / \Delta^2} f(r) / 1.12`.

    Without the envelope it is ``e3nn.math.soft_one_hot_linspace(..., basis="gaussian", cutoff=inside)``: the squares
    add up to about 1.

    Args:
        num_basis, cutoff, p, start, envelope: See :class:`RadialBasis`, also for errors; f is the envelope.
        inside: Whether all lengths :math:`r_n` lie between start and cutoff; else the first and last are at these.

    Source:
        Schuett et al. 2018, arXiv:1712.06113, eq. 9; widths and factor of e3nn.

    Example:
        >>> GaussianBasis(8, 5.0)(torch.rand(10)).shape
        torch.Size([10, 8])
    """

    _function = staticmethod(functions.gaussian)


class CosineBasis(_Spaced):
    r"""Half waves around equally spaced lengths: :math:`b_n(r) = \cos(\tfrac{\pi}{2} d)\, f(r)` where :math:`|d| < 1`.

    Here :math:`d = (r - r_n) / \Delta`. Without the envelope it is ``e3nn.math.soft_one_hot_linspace(...,
    basis="cosine", cutoff=inside)``: the squares add up to 1. Slopes jump where a function ends, at :math:`d = \pm 1`,
    so forces do, too; there derivatives are taken from the right. Prefer another basis for potentials.

    Args:
        num_basis, cutoff, p, start, inside, envelope: See :class:`GaussianBasis`, also for errors.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453.

    Example:
        >>> CosineBasis(3, 4.0, p=None)(torch.tensor([1.0, 2.5])).square().sum(-1)
        tensor([1.0000, 1.0000])
    """

    _function = staticmethod(functions.cosine)
    _ends = 0


class SmoothFiniteBasis(_Spaced):
    r"""Bumps with continuous derivatives of every order: :math:`b_n(r) = 1.14136\, e^{-2 d^2 / (1 - d^2)}`.

    Here :math:`d = (r - r_n) / \Delta`, and a function is 0 where :math:`|d| \ge 1`. It is
    ``e3nn.math.soft_one_hot_linspace(..., basis="smooth_finite", cutoff=inside)``: the squares add up to about 1. All
    derivatives are 0 at the cutoff, so no envelope is needed.

    Args:
        num_basis, cutoff, start, inside, envelope: See :class:`GaussianBasis`, also for errors.
        p: Power of a polynomial envelope, None for none.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453.

    Example:
        >>> SmoothFiniteBasis(3, 4.0)(torch.tensor([2.0, 4.0])).tolist()[1]
        [0.0, 0.0, 0.0]
    """

    _function = staticmethod(functions.smooth_finite)
    _ends = math.inf

    def __init__(
        self,
        num_basis: int = 8,
        cutoff: float = 5.0,
        p: int | None = None,
        *,
        start: float = 0.0,
        inside: bool = True,
        envelope: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(num_basis, cutoff, p, start=start, inside=inside, envelope=envelope)


class FourierBasis(_Spaced):
    r"""Waves between start and cutoff: :math:`b_n(r) = \sin(n \pi u)\, f(r) / \sqrt{1/4 + N/2}`, from n = 1.

    Here :math:`u = (r - r_0) / (r_c - r_0)`, and the functions are 0 outside. With ``inside=False`` they are cosines
    from n = 0, which go on. Without the envelope it is ``e3nn.math.soft_one_hot_linspace(..., basis="fourier",
    cutoff=inside)``.

    Args:
        num_basis, cutoff, p, start, envelope: See :class:`RadialBasis`, also for errors.
        inside: Sines, or cosines.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453.

    Example:
        >>> FourierBasis(2, 4.0, p=None)(torch.tensor([1.0, 4.0]))
        tensor([[0.6325, 0.8944],
                [0.0000, 0.0000]])
    """

    _function = staticmethod(functions.fourier)
    _ends, _fewest = 0, 1


class ChebyshevBasis(RadialBasis):
    r"""Chebyshev polynomials with an envelope: :math:`b_n(r) = T_n(1 - 2u)\, f(r)`, from n = 0.

    Here :math:`u = (r - r_0) / (r_c - r_0)`. They are computed by their recurrence, so that they are polynomials at the
    ends, too, where the arc cosine has no derivatives.

    Args:
        num_basis, cutoff, p, start, envelope: See :class:`RadialBasis`, also for errors.

    Source:
        Shapeev 2016, arXiv:1512.06054, section 5.

    Example:
        >>> ChebyshevBasis(4, 4.0, p=None)(torch.tensor([0.0, 4.0])).tolist()
        [[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]]
    """

    _grows = True

    def functions(self, x: Tensor) -> Tensor:
        """Values ``[..., num_basis]`` without the envelope; x ``[...]`` is the length minus ``start``, in Angstrom."""
        return functions.chebyshev(x, self.num_basis, self.cutoff - self.start)
