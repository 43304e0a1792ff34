"""Multiplication of every irrep copy by a scalar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ...core.apply import run_by_row
from ...core.checks import check_choice, check_items, check_number, check_tensor, got
from ...core.dtypes import ACCUMULATE, broadcast_lead, of_one_dtype
from ...core.errors import ConfigError, ShapeError
from ...core.forms.description import Form
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ..base.module import FormModule, KeepsFloat64
from ..tensor_product.lower import scale_program


class SO3Scale(KeepsFloat64, FormModule):
    r"""Multiply every irrep copy by one scalar: :math:`y_{u m} = n_l\, s_u\, x_{u m}`.

    Args:
        irreps: Irreps of input and output.
        scale: 'fixed' (constants), 'learned' (a parameter, starting at 1) or 'external' (an argument of each call, as
            gates, attention weights and cutoff envelopes are).
        values: For 'fixed': a number, or ``num_scales`` of them.
        per: 'copy' for one scalar per irrep copy, 'group' for one per irreps group.
        normalization: 'component': :math:`n_l = 1`. 'norm': :math:`n_l = (2l + 1)^{-1/2}`, which takes features of unit
            component variance to features of unit norm.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        num_scales: Scalars per sample: ``irreps.num_irreps``, or ``len(irreps)`` per group.
        weight: ``[num_scales]`` parameter if learned, else absent.
        constants: ``[num_scales]`` float64 with the factor of the normalization if fixed, else absent.

    Raises:
        ConfigError: An unknown option, or values of another length.

    Example:
        >>> gate = SO3Scale("2x0e + 1x1o", scale="external")
        >>> gate(torch.ones(5), torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 2., 3., 3., 3.])
    """

    constants: Tensor
    weight: Tensor

    def __init__(
        self,
        irreps: Any,
        scale: str = "learned",
        values: float | Sequence[float] | None = None,
        *,
        per: str = "copy",
        normalization: str = "component",
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in = self.irreps_out = as_irreps(irreps)
        self.scale = check_choice("scale", scale, ("fixed", "learned", "external"))
        self.per = check_choice("per", per, ("copy", "group"))
        self.normalization = check_choice("normalization", normalization, ("component", "norm"))
        self.num_paths = len(self.irreps_in)
        self.num_scales = self.irreps_in.num_irreps if per == "copy" else len(self.irreps_in)
        self._flat = FlatLayout(self.irreps_in, layout)
        scalars = [(mul if per == "copy" else 1, "0e") for mul, _ in self.irreps_in]
        self._scalars = FlatLayout(o3.Irreps(scalars), "mul_ir")
        if (values is None) == (scale == "fixed"):
            expected = "must" if scale == "fixed" else "must not"
            raise ConfigError(
                f"values {expected} be given with scale={scale!r}, got {got(values)}. "
                f"Use scale='fixed' with values, or 'learned' and 'external' without."
            )
        norms = self._norms()
        if scale == "fixed":
            constants, norms = self._constants(values), [1.0] * self.num_paths
            self.register_buffer("constants", torch.from_numpy(constants), persistent=False)
            self.kept_in_float64 = ("constants",)
        self._form = Form(scale_program(self.irreps_in, self._scalars.irreps, norms, layout))
        if scale == "learned":
            self.weight = torch.nn.Parameter(torch.ones(self.num_scales))

    def _norms(self) -> list[float]:
        return [1.0 if self.normalization == "component" else ir.dim**-0.5 for _, ir in self.irreps_in]

    def _constants(self, values: Any) -> np.ndarray:
        """One constant per scale, times the factor of the normalization."""
        fix = f"Give one number, or a list of {self.num_scales}."
        many = isinstance(values, Iterable) and getattr(values, "ndim", 1) > 0
        items = check_items("values", values, "a number or a list of numbers", fix) if many else [values]
        numbers = np.array([check_number(f"values[{i}]", v, fix=fix) for i, v in enumerate(items)])
        if numbers.shape not in ((1,), (self.num_scales,)):
            raise ConfigError(
                f"values must hold 1 or {self.num_scales} numbers, one per {self.per} of {self.irreps_in}, "
                f"got shape {list(numbers.shape)}. Give one for each, or change per=."
            )
        scales = [mul if self.per == "copy" else 1 for mul, _ in self.irreps_in]
        return np.broadcast_to(numbers, (self.num_scales,)) * np.repeat(self._norms(), scales)

    def forward(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
        """Scale the features.

        Args:
            x: ``[..., irreps.dim]``.
            scales: ``[..., num_scales]`` for an external scale, in the order of the irreps; leading axes broadcast.

        Returns:
            ``[..., irreps.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
        """
        self._flat.check("x", x)
        if (scales is None) == (self.scale == "external"):
            expected = f"[..., {self.num_scales}]" if self.scale == "external" else "None"
            raise ShapeError(
                f"scales must be {expected} for scale={self.scale!r}, got {got(scales)}. "
                f"Build it with the scale that you call it with."
            )
        if self.scale == "fixed":
            constants = self.constants.to(x.device, ACCUMULATE[x.dtype])
            return run_by_row(self._form, x, constants, x.shape[:-1], self.backend)
        s = self.weight if scales is None else scales
        check_tensor("scales", s, f"[..., {self.num_scales}]")
        if s.shape[-1:] != (self.num_scales,):
            raise ShapeError(
                f"scales must be [..., {self.num_scales}], one per {self.per} of {self.irreps_in}, got "
                f"{list(s.shape)}. Check per= and the order of the axes."
            )
        x, s = of_one_dtype(x=x, scales=s)
        lead = broadcast_lead(x=x.shape[:-1], scales=s.shape[:-1])
        return run_by_row(self._form, x, s, lead, self.backend)

    def extra_repr(self) -> str:
        """Irreps, kind and number of scalars, layout and backend."""
        norm = "" if self.normalization == "component" else ", norm"
        return f"{self.irreps_in} | {self.scale}, {self.num_scales} scales per {self.per}{norm} | {self._kind()}"
