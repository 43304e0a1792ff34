"""The norm of every irrep, with e3nn's signature, numbers and state dict; mean squares of norms."""

from __future__ import annotations

from typing import Any

from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_choice, check_flag
from ...e3nn_compat.torchscript import Scriptable, checked, is_tracing, narrowed, widened
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ..tensor_product.module import TensorProduct
from .copies import CopyModule
from .functions import in_float32, root


@compile_mode("trace")  # for e3nn.util.jit
class Norm(Scriptable):
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
        >>> import torch
        >>> Norm("2x1o")(torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0, 2.0])).tolist()
        [5.0, 2.0]
    """

    _torchscript = "traced"

    def __init__(
        self, irreps_in: Any, squared: bool = False, *, layout: str = "mul_ir", backend: str | None = None
    ) -> None:
        super().__init__()
        irreps = as_irreps(irreps_in, "irreps_in").simplify()
        scalars = Irreps([(mul, "0e") for mul, _ in irreps])
        paths = [(i, i, i, "uuu", False, ir.dim) for i, (_, ir) in enumerate(irreps)]
        self.tp = TensorProduct(irreps, irreps, scalars, paths, layout=layout, backend=backend)
        self.irreps_in, self.irreps_out = irreps, scalars.simplify()
        self._flat = FlatLayout(irreps, layout)
        self.squared = check_flag("squared", squared)

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        features = checked(self._flat, "features", features)
        if is_tracing():
            return narrowed(self._found(widened(features)), features)
        (given,), dtype = in_float32(features=features)
        assert given is not None
        return self._found(given).to(dtype)

    def _found(self, features: Tensor) -> Tensor:
        squares: Tensor = self.tp(features, features)
        return squares if self.squared else root(squares)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.irreps_in} | {self.tp.layout}, backend {self.tp.backend or 'auto'})"


class MeanSquaredNorm(CopyModule):
    r"""Mean of squared norms over the copies of each irreps group, or over the batch.

    .. math:: \nu_g = \langle |x_{nu}|^2 \rangle_{u \in g} \ \text{('copies')}, \qquad
              \nu_u = \langle |x_{nu}|^2 \rangle_n \ \text{('batch')}

    Args:
        irreps: Irreps of the features.
        over: 'copies' or 'batch', which is all leading axes.
        scaled: Whether squared norms are divided by 2l + 1, so that features of unit variance have the mean 1.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        irreps_out: One ``0e`` for each group that is not empty, or for each copy.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read, or an option.

    Example:
        >>> import torch
        >>> MeanSquaredNorm("2x1o", scaled=False)(torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0, 1.0]))
        tensor([13.])
    """

    def __init__(
        self,
        irreps: Any,
        over: str = "copies",
        scaled: bool = True,
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        kind = "component" if check_flag("scaled", scaled) else "norm"
        super().__init__(irreps, layout, backend, normalization=kind)
        self.over, self.scaled = check_choice("over", over, ("copies", "batch")), bool(scaled)
        count = self.irreps_in.num_irreps if over == "batch" else len(self._counts[False])
        self.irreps_out, self._out = Irreps([(count, "0e")]), count

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to ``[..., irreps_out.dim]``, or over the batch to ``[irreps_out.dim]``: 0 of no row.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        self._flat.check("features", features)
        (wide,), dtype = in_float32(features=features)
        assert wide is not None
        squares = self._squares(wide)[1]
        if self.over == "batch":
            rows = squares.reshape(-1, self._out) if squares.numel() else squares.new_zeros(1, self._out)
            return rows.mean(0).to(dtype)
        return (self._group_means(squares) if self._counts[False] else squares).to(dtype)

    def extra_repr(self) -> str:
        """Irreps, what the mean is over, and layout."""
        return f"{self.irreps_in}, over={self.over}, scaled={self.scaled} | {self._kind()}"
