"""Spherical harmonics of vectors, with e3nn's signature and numbers."""

from __future__ import annotations

import json
from typing import Any

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_choice, check_flag
from ...e3nn_compat.torchscript import described, is_tracing, operator
from ..base.module import FormulaModule
from .functions import run_harmonics
from .lower import NORMALIZATIONS, harmonics_formula, read_degrees


@compile_mode("trace")  # for e3nn.util.jit
class SphericalHarmonics(FormulaModule):
    r"""Real spherical harmonics :math:`Y_l(r)` as polynomials; a drop-in for ``e3nn.o3.SphericalHarmonics``.

    Derivatives of every order are finite everywhere. With ``normalize`` the zero vector has no direction: its harmonics
    of l = 0 are the same as of any vector, the others and all derivatives are 0. Vectors shorter than 1e-9 in float32
    and 1e-50 in float64 count as zero, and so do vectors whose square overflows, beyond 1e19 in float32. Half precision
    is computed in float32.

    Args:
        irreps_out: Irreps, one degree, or a list of degrees in any order, also repeated, each up to 20.
        normalize: Whether harmonics of the direction, :math:`Y_l(r / |r|)`; else homogeneous polynomials of degree l.
        normalization: 'component': :math:`|Y_l|^2 = 2 l + 1` on the sphere. 'norm': 1. 'integral': the integral of
            each component's square over the sphere is 1.
        irreps_in: '1o' or '1e'; None for '1e' if irreps_out holds even irreps of odd l, else '1o'.
        backend: Name of a backend, or None for the best of the device.

    Attributes:
        irreps_in: Of the vector. irreps_out: Of the harmonics, simplified.

    Raises:
        IrrepsError, ConfigError: Invalid degrees, parities or options, or an unknown backend.

    Source:
        See :mod:`eqlayers.layers.harmonics.lower`.

    Example:
        >>> sh = SphericalHarmonics("0e + 1o", normalize=True, normalization="norm")
        >>> sh(torch.tensor([0.0, 3.0, 4.0]))
        tensor([1.0000, 0.0000, 0.6000, 0.8000])
    """

    _torchscript = (("forward", "layer_harmonics(self.spec, x)"),)

    def __init__(
        self,
        irreps_out: Any,
        normalize: bool,
        normalization: str = "integral",
        irreps_in: Any = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__(backend=backend)
        self.normalize = check_flag("normalize", normalize)
        self.normalization = check_choice("normalization", normalization, NORMALIZATIONS)
        degrees, self.irreps_in, self.irreps_out = read_degrees(irreps_out, irreps_in)
        self._ls_list, self._lmax = list(degrees), max(degrees)
        self._is_range_lmax = self._ls_list == list(range(max(degrees) + 1))
        self._prof_str = f"spherical_harmonics({self._ls_list})"
        self._formulas = (harmonics_formula(degrees, self.normalize, self.normalization),)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., 3]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError for other vectors."""
        if is_tracing():
            return _layer_harmonics(self._spec(), x)
        return run_harmonics(self._formulas[0], x, self.backend)

    def _spec(self) -> str:
        options = (self.normalize, self.normalization, str(self.irreps_in), self.backend)
        return json.dumps([self._ls_list, *options])

    def extra_repr(self) -> str:
        """Irreps, options and backend."""
        of = "directions" if self.normalize else "vectors"
        return (
            f"{self.irreps_in} -> {self.irreps_out} | of {of}, {self.normalization}, backend {self.backend or 'auto'}"
        )


@described
def _layer(spec: Any) -> SphericalHarmonics:
    """A layer from the description that `SphericalHarmonics._spec` writes."""
    *options, backend = spec
    return SphericalHarmonics(*options, backend=backend)


@operator("layer_harmonics(str spec, Tensor x) -> Tensor")
def _run(spec: str, x: Tensor) -> Tensor:
    layer = _layer(spec)
    return run_harmonics(layer._formulas[0], x, layer.backend)


_layer_harmonics = torch.ops.eqlayers.layer_harmonics.default
