"""What layers in the frames of edges share: their map of packed rows, its weights, and the programs around it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...algebra import as_irreps
from ...checks import check_choice, check_flag, check_integer, check_optional, check_tensor
from ...errors import ShapeError
from ...forms.program import Form, FormCall
from ...functional.so2 import mix_orders
from ...lowering.layout import FlatLayout
from ...lowering.so2 import PARITIES, pack_program, packed_widths, so2_map, unpack_program
from .base import EquivariantModule


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
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in, self.irreps_out = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        self._in, self._out = FlatLayout(self.irreps_in, layout), FlatLayout(self.irreps_out, layout)
        self.mmax = check_optional(lambda name, value: check_integer(name, value, 0), "mmax", mmax)
        self.parity = check_choice("parity", parity, PARITIES)
        self._map = so2_map(self.irreps_in, self.irreps_out, self.mmax, parity)
        self.num_paths = len(self._map.blocks_in)
        self.num_scales, self._num_minus = packed_widths(self._map.blocks_in)
        self._shapes = self._map.shapes  # read at every call; compilers cannot trace what makes them
        self._orders = [block.m for block in self._map.blocks_in]
        self.weight_numel = sum(math.prod(shape) for shape in self._shapes)
        self.internal_weights = check_flag("internal_weights", internal_weights)
        if self.internal_weights:
            self.weight = torch.nn.Parameter(torch.randn(self.weight_numel))
        else:
            self.register_buffer("weight", torch.empty(0))

    def _lower(self, lmax: int | None) -> None:
        self._plain = Form(pack_program(self._map, self.layout, lmax, scaled=False))
        self._scaled = Form(pack_program(self._map, self.layout, lmax, scaled=True))
        self._back = Form(unpack_program(self._map, self.layout, lmax))

    def _weights(self, weight: Tensor | None) -> Tensor:
        """Those of a call."""
        if weight is None:
            if self.weight_numel and not self.internal_weights:
                raise ShapeError(
                    f"weight must be [{self.weight_numel}], the layer has no internal weights, got None. Pass weight=, "
                    f"or build it with internal_weights=True."
                )
            return self.weight
        if check_tensor("weight", weight, f"[{self.weight_numel}]").shape != (self.weight_numel,):
            raise ShapeError(
                f"weight must be [{self.weight_numel}], got {list(weight.shape)}. One set of weights serves all rows; "
                f"give factors of each as scales."
            )
        return weight

    def _check_scales(self, scales: Tensor) -> None:
        if check_tensor("scales", scales, f"[..., {self.num_scales}]").shape[-1:] != (self.num_scales,):
            raise ShapeError(
                f"scales must be [..., {self.num_scales}], one for each order m and input channel that has it, got "
                f"{list(scales.shape)}. Take the number from num_scales."
            )

    def _mixed(self, packed: Tensor, weight: Tensor) -> Tensor:
        return mix_orders(packed, weight, self._shapes, self._orders.count(0))

    def _for_both(self, scales: Tensor | None) -> Tensor | None:
        """Factors of all columns: those of m > 0 serve -m, too."""
        return None if scales is None else torch.cat([scales, scales[:, self.num_scales - self._num_minus :]], -1)

    def weight_views(self, weight: Tensor | None = None) -> Iterator[tuple[int, Tensor]]:
        """For each matrix product its order m and a view ``[matrices, in, out]`` of its weights.

        Two matrices are those of the identity and of J, without parity and for m > 0. There are two products for m = 0
        where there are irreps of both signs p (-1)^l, which do not mix.
        """
        parts = self._weights(weight).split([math.prod(shape) for shape in self._shapes])
        for m, part, shape in zip(self._orders, parts, self._shapes, strict=True):
            yield m, part.view(shape)

    def scale_slices(self) -> list[tuple[int, int, slice]]:
        """For each stretch of the scales the order m, the number of the group in irreps_in, and the columns."""
        found, start = [], 0
        for block in self._map.blocks_in:
            found += [(block.m, p.group, slice(start + p.start, start + p.start + p.mul)) for p in block.pieces]
            start += block.width
        return found

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, FormCall] | None:
        """The program in front of the matrix products; None without any."""
        if not self.num_paths:
            return None
        return self._before, FormCall(dtype, device.type, self._plain.key)

    def dense_paths(self) -> int:
        """All matrix products."""
        return self.num_paths

    def extra_repr(self) -> str:
        """Irreps, orders, parity, weights."""
        kind = self.parity if self.mmax is None else f"mmax {self.mmax}, {self.parity}"
        return f"{self.irreps_in} -> {self.irreps_out} | {kind} | {self.weight_numel} weights | {self._kind()}"
