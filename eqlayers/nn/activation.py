"""Activations scaled to unit second moment, and the gate that applies them equivariantly."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ..algebra import as_irreps
from ..checks import check_choice, check_floating
from ..lowering.layout import FlatLayout
from ._common.base import EquivariantModule
from .so3_scale import SO3Scale

#: name -> (function, whether f(-x) = -f(x), so that it may act on odd scalars)
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "silu": (torch.nn.functional.silu, False),
    "sigmoid": (torch.sigmoid, False),
    "tanh": (torch.tanh, True),
}


@cache
def second_moment(name: str) -> float:
    r"""Mean of :math:`f(z)^2` for standard normal z, by Gauss-Hermite quadrature in float64.

    Example:
        >>> round(second_moment("silu"), 6)
        0.355776
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    values = ACTIVATIONS[name][0](torch.from_numpy(nodes)).numpy()
    return float((weights * values**2).sum() / weights.sum())


class NormalizedActivation(torch.nn.Module):
    r"""An activation divided by the root of its second moment, so that unit variance stays unit variance.

    Args:
        name: 'silu', 'sigmoid' or 'tanh'.

    Raises:
        ConfigError: Another name.

    Example:
        >>> NormalizedActivation("tanh")(torch.zeros(2)).tolist()
        [0.0, 0.0]
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = check_choice("activation", name, ACTIVATIONS)
        self.factor = second_moment(name) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return ACTIVATIONS[self.name][0](check_floating("x", x, "[...]")) * self.factor

    def extra_repr(self) -> str:
        """Name."""
        return self.name


class GatedNonlinearity(EquivariantModule):
    r"""Scalars through an activation; other irreps times an activated scalar each.

    The input carries, before the irreps of the output, one even scalar per irrep copy that is gated.

    Args:
        irreps_out: Irreps of the output; even scalars get ``even``, odd ones ``odd``.
        even, odd, gate: Activations of even scalars, odd scalars and gates.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        irreps_in: Gates, then ``irreps_out``.

    Raises:
        ConfigError: An unknown activation, or one for odd scalars that is not odd.

    Source:
        Weiler et al. 2018, arXiv:1807.02547, section 4.

    Example:
        >>> GatedNonlinearity("8x0e + 4x1o").irreps_in
        4x0e+8x0e+4x1o
    """

    def __init__(
        self,
        irreps_out: Any,
        even: str = "silu",
        odd: str = "tanh",
        gate: str = "sigmoid",
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_out = as_irreps(irreps_out, "irreps_out")
        check_choice("odd", odd, [name for name, (_, is_odd) in ACTIVATIONS.items() if is_odd])
        self._gated = o3.Irreps([(mul, ir) for mul, ir in self.irreps_out if ir.l > 0])
        gates = [(self._gated.num_irreps, "0e")] if len(self._gated) else []
        self.irreps_in = o3.Irreps(gates) + self.irreps_out
        self.num_paths = len(self.irreps_out)
        self._flat = FlatLayout(self.irreps_in, layout)
        self._num_gates = self._gated.num_irreps
        #: Width and parity of each group of scalars, and width and 0 of what is gated between them.
        self._runs: list[tuple[int, int]] = []
        for mul, ir in self.irreps_out:
            width, parity = mul * ir.dim, 0 if ir.l else ir.p
            if parity == 0 and self._runs and self._runs[-1][1] == 0:
                width += self._runs.pop()[0]
            self._runs.append((width, parity))
        self.even, self.odd, self.gate = (NormalizedActivation(name) for name in (even, odd, gate))
        self.scale = SO3Scale(self._gated, "external", layout=layout, backend=backend)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        self._flat.check("x", x)
        widths, parities = [width for width, _ in self._runs], [parity for _, parity in self._runs]
        gates, *parts = x.split([self._num_gates, *widths], -1)
        turning = [part for part, parity in zip(parts, parities, strict=True) if parity == 0]
        if turning:
            gated = self.scale(torch.cat(turning, -1) if len(turning) > 1 else turning[0], self.gate(gates))
            back = iter(gated.split([part.shape[-1] for part in turning], -1) if len(turning) > 1 else (gated,))
        pieces = [
            next(back) if parity == 0 else (self.even if parity == 1 else self.odd)(part)
            for part, parity in zip(parts, parities, strict=True)
        ]
        return torch.cat(pieces, -1) if len(pieces) > 1 else pieces[0] if pieces else x

    def extra_repr(self) -> str:
        """Irreps, layout and backend."""
        return f"{self.irreps_in} -> {self.irreps_out} | {self._kind()}"
