"""The norm of every irrep, with e3nn's signature, numbers and state dict."""

from __future__ import annotations

from typing import Any

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from ..algebra import as_irreps
from ..checks import check_flag
from .tensor_product import TensorProduct


@compile_mode("trace")  # for e3nn.util.jit
class Norm(torch.nn.Module):
    r"""Norm of each irrep copy, :math:`\sqrt{\sum_m x_{um}^2}`; a drop-in for ``e3nn.o3.Norm``.

    The gradient of the norm of a zero is zero. Norms below the root of the smallest number of the dtype are zero.

    Args:
        irreps_in: Irreps of the input; simplified first.
        squared: Whether to return squares of norms.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        irreps_out: One ``0e`` per irrep copy.
        tp: The product of the input with itself.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read, or an option.

    Example:
        >>> Norm("2x1o")(torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0, 2.0])).tolist()
        [5.0, 2.0]
    """

    def __init__(
        self, irreps_in: Any, squared: bool = False, *, layout: str = "mul_ir", backend: str | None = None
    ) -> None:
        super().__init__()
        irreps = as_irreps(irreps_in, "irreps_in").simplify()
        scalars = Irreps([(mul, "0e") for mul, _ in irreps])
        paths = [(i, i, i, "uuu", False, ir.dim) for i, (_, ir) in enumerate(irreps)]
        self.tp = TensorProduct(irreps, irreps, scalars, paths, layout=layout, backend=backend)
        self.irreps_in, self.irreps_out = irreps, scalars.simplify()
        self.squared = check_flag("squared", squared)

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        squares: Tensor = self.tp(features, features)
        return squares if self.squared else squares.relu().sqrt()  # relu cuts the root's infinite slope off at zero

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.irreps_in} | {self.tp.layout}, backend {self.tp.backend or 'auto'})"
