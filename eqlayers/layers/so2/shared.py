"""Shared code of layers in the frames of edges: the map of packed rows, its weights, and the programs around it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_integer, check_optional
from ...core.errors import ShapeError
from ...core.forms.program import FormCall
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS
from ...sparse import ProgramInfos, infos_of
from ..base.module import EquivariantModule
from .functions import SO2Plan, check_weight
from .lower import PARITIES


class SO2Layer(EquivariantModule):
    """A map of packed rows with the programs before and after it."""

    _before = "sorting by order m"  # what is done to features, and undone to results, as explain() says
    weight: Tensor

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        mmax: int | None,
        parity: str,
        internal_weights: bool,
        layout: str,
        backend: str | None,
        lmax: int | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in, self.irreps_out = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        check_choice("layout", layout, LAYOUTS)
        self.mmax = check_optional(lambda name, value: check_integer(name, value, 0), "mmax", mmax)
        self.parity = check_choice("parity", parity, PARITIES)
        self._plan = SO2Plan(self.irreps_in, self.irreps_out, self.mmax, parity, layout, lmax)
        self.num_paths, self.num_scales = len(self._plan.orders), self._plan.num_scales
        self.weight_numel = self._plan.weight_numel
        self.internal_weights = check_flag("internal_weights", internal_weights)
        if self.internal_weights:
            self.weight = torch.nn.Parameter(torch.randn(self.weight_numel))
        else:
            self.register_buffer("weight", torch.empty(0))

    def _weights(self, weight: Tensor | None) -> Tensor:
        """The weights of a call."""
        if weight is None:
            if self.weight_numel and not self.internal_weights:
                raise ShapeError(
                    f"weight must be [{self.weight_numel}], the layer has no internal weights, got None. Pass weight=, "
                    f"or build it with internal_weights=True."
                )
            return self.weight
        return check_weight(self._plan, weight)

    def weight_views(self, weight: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
        """The order m of each matrix product, and a view ``[matrices, in, out]`` of its weights.

        Two matrices multiply the identity and J, without parity and for m > 0. There are two products for m = 0
        where there are irreps of both signs p (-1)^l, which do not mix.
        """
        parts = self._weights(weight).split([math.prod(shape) for shape in self._plan.shapes])
        for m, part, shape in zip(self._plan.orders, parts, self._plan.shapes, strict=True):
            yield m, part.view(shape)

    def scale_slices(self) -> list[tuple[int, int, slice]]:
        """The order m of each stretch of the scales, the number of the group in irreps_in, and the columns."""
        found, start = [], 0
        for block in self._plan.map.blocks_in:
            found += [(block.m, p.group, slice(start + p.start, start + p.start + p.mul)) for p in block.pieces]
            start += block.width
        return found

    @property
    def infos(self) -> tuple[ProgramInfos, ProgramInfos]:
        """The programs before and after the matrix products, as infos of sparse products.

        The first sorts the components of the features by order m, the second puts them back. Both take a 1 as their
        second operand in a frame of the edge, or the rotation to the edge.
        """
        return infos_of(self._plan.plain.program), infos_of(self._plan.back.program)

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, FormCall] | None:
        """The program in front of the matrix products; None without any."""
        if not self.num_paths:
            return None
        return self._before, FormCall(dtype, device.type, self._plan.plain.key)

    def dense_paths(self) -> int:
        """All matrix products."""
        return self.num_paths

    def extra_repr(self) -> str:
        """Irreps, orders, parity, weights."""
        kind = self.parity if self.mmax is None else f"mmax {self.mmax}, {self.parity}"
        return f"{self.irreps_in} -> {self.irreps_out} | {kind} | {self.weight_numel} weights | {self._kind()}"
