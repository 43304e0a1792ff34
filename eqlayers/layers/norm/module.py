"""Norms of irreps, normalisation of each sample by itself, and the base of all layers of norms."""

from __future__ import annotations

from typing import Any

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_number
from ...core.dtypes import ACCUMULATE
from ...e3nn_compat.torchscript import Scriptable, checked, is_tracing, narrowed, widened
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ..base.columns import joined
from ..base.module import FormulaModule
from ..tensor_product.module import TensorProduct
from .functions import CopyPlan, group_means, in_float32, root, run_layer_norm, run_rms_norm, squares_of


class CopyModule(FormulaModule):
    """Base of the layers that compute with one number for each irrep copy; see `CopyPlan` for the arguments."""

    def __init__(
        self, irreps: Any, layout: str, backend: str | None, *, has_mean: bool = False, normalization: str = "norm"
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in = as_irreps(irreps, "irreps")
        self.num_paths = len(self.irreps_in)
        self._plan = plan = CopyPlan(self.irreps_in, layout, has_mean, normalization)
        self._flat, self._counts = plan.flat, plan.counts
        #: Empty if all copies are scalars with a mean: torch computes these.
        self._formulas = [plan.squares, *plan.scaled.values()] if plan.counts[False] else []

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> Any:
        """The formulas; None if all copies are scalars with a mean. Half precision is computed in float32."""
        return super().whole_call(ACCUMULATE.get(dtype, dtype), device)


class Normalization(CopyModule):
    """Base of the layers that divide copies by roots of mean squares; ``zero``: whether ``eps`` may be 0."""

    weight: Tensor | None

    def __init__(
        self,
        irreps: Any,
        eps: float,
        affine: bool,
        normalization: str,
        layout: str,
        backend: str | None,
        *,
        has_mean: bool = False,
        zero: bool = False,
    ) -> None:
        super().__init__(irreps, layout, backend, has_mean=has_mean, normalization=normalization)
        self.irreps_out = self.irreps_in
        self.eps = check_number("eps", eps, above=None if zero else 0, at_least=0 if zero else None, fix="Use 1e-5.")
        self.affine, self.normalization = check_flag("affine", affine), normalization
        self.weight = torch.nn.Parameter(torch.ones(self.irreps_in.num_irreps)) if self.affine else None

    def _options(self) -> list[str]:
        """Numbers and options that `extra_repr` shows."""
        return [f"eps={self.eps}"]

    def extra_repr(self) -> str:
        """Irreps, numbers, options that are not the default, and layout."""
        words = [str(self.irreps_in), *self._options()]
        words += [] if self.affine else ["without weights"]
        words += [] if self.normalization == "component" else [self.normalization]
        return f"{', '.join(words)} | {self._kind()}"


@compile_mode("trace")  # for e3nn.util.jit
class Norm(Scriptable):
    r"""Norm of each irrep copy, :math:`\sqrt{\sum_m x_{um}^2}`; a drop-in for ``e3nn.o3.Norm``.

    The gradient at a norm of zero is zero. Norms below the root of the smallest number of the dtype are zero.

    Args:
        irreps_in: Irreps of the input; simplified first in 'mul_ir'.
        squared: Whether to return squares of norms.
        layout, backend: See :class:`eqlayers.TensorProduct`.

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
        irreps = joined(as_irreps(irreps_in, "irreps_in"), layout)
        scalars = Irreps([(mul, "0e") for mul, _ in irreps])
        paths = [(i, i, i, "uuu", False, ir.dim) for i, (_, ir) in enumerate(irreps)]
        self.tp = TensorProduct(irreps, irreps, scalars, paths, layout=layout, backend=backend)
        self.irreps_in, self.irreps_out = irreps, scalars.simplify()
        self._flat = FlatLayout(irreps, layout)
        self.squared = check_flag("squared", squared)

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError for other features."""
        features = checked(self._flat, "features", features)
        if is_tracing():
            return narrowed(self._norms(widened(features)), features)
        wide, _, dtype = in_float32("features", features)
        return self._norms(wide).to(dtype)

    def _norms(self, features: Tensor) -> Tensor:
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
        layout, backend: See :class:`eqlayers.TensorProduct`.

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
        norm = "component" if check_flag("scaled", scaled) else "norm"
        super().__init__(irreps, layout, backend, normalization=norm)
        self.over, self.scaled = check_choice("over", over, ("copies", "batch")), bool(scaled)
        count = self.irreps_in.num_irreps if over == "batch" else len(self._counts[False])
        self.irreps_out, self._out = Irreps([(count, "0e")]), count

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to ``[..., irreps_out.dim]``, or over the batch to ``[irreps_out.dim]``: 0 of no row.

        Raises:
            ShapeError, DTypeError: The features do not fit the layer.
        """
        self._flat.check("features", features)
        wide, _, dtype = in_float32("features", features)
        squares = squares_of(self._plan, wide, self.backend)[1]
        if self.over == "batch":
            rows = squares.reshape(-1, self._out) if squares.numel() else squares.new_zeros(1, self._out)
            return rows.mean(0).to(dtype)
        return (group_means(squares, self._counts[False]) if self._counts[False] else squares).to(dtype)

    def extra_repr(self) -> str:
        """Irreps, what the mean is over, and layout."""
        return f"{self.irreps_in}, over={self.over}, scaled={self.scaled} | {self._kind()}"


class LayerNorm(Normalization):
    r"""Layer norm of each irreps group: even scalars as usual, other irreps by the norms of their copies.

    .. math:: y_u = w_u\, \frac{x_u - \langle x_v \rangle_v}{\sqrt{\langle |x_v - \langle x \rangle|^2 \rangle_v
              + \epsilon}} + b_u \quad (0e), \qquad
              y_u = w_u\, \frac{x_u}{\sqrt{\langle |x_v|^2 / (2l+1) \rangle_v + \epsilon}} \quad \text{(others)}

    The mean is over the copies v of the group. There is no division by zero: a feature of zeros stays zero, with finite
    derivatives of every order.

    Args:
        irreps: Irreps of the features; each group is normalised as one, so ``simplify()`` joins groups of equal irreps.
        eps: Added to the mean squares.
        affine: Whether there are weights and, for even scalars, biases.
        normalization: 'component' (squares over 2l + 1, as in Equiformer's code) or 'norm' (as in its paper).
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        weight: ``[num_irreps]``, None without affine.
        bias: ``[number of even scalars]``, None without affine.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read, or an option.

    Source:
        Liao and Smidt 2023, Equiformer, arXiv:2206.11990, section 4.1.

    Example:
        >>> norm = LayerNorm("8x0e + 4x1o")
        >>> y = norm(3 + 5 * torch.randn(50, 20))
        >>> y[:, 8:].square().mean().round(decimals=1).item(), abs(y[:, :8].mean().item()) < 1e-6
        (1.0, True)
    """

    bias: Tensor | None

    def __init__(
        self,
        irreps: Any,
        eps: float = 1e-5,
        affine: bool = True,
        normalization: str = "component",
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(irreps, eps, affine, normalization, layout, backend, has_mean=True)
        self.bias = torch.nn.Parameter(torch.zeros(sum(self._counts[True]))) if self.affine else None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same; ShapeError, DTypeError or DeviceError if the features do not fit."""
        return run_layer_norm(self._plan, x, self.weight, self.bias, self.eps, self.backend)


class RMSNorm(Normalization):
    r"""Divides each sample by the root of a mean square, of each irreps group or of all groups together.

    .. math:: y_u = w_u\, x_u / \sqrt{\nu + \epsilon}, \quad
              \nu_g = \langle |x_v|^2 / (2l+1) \rangle_{v \in g} \ \text{('irrep')}, \qquad
              \nu = \langle \nu_g \rangle_g \ \text{('all')}

    With 'all' every group counts alike, whatever its degree and its number of copies: the balance of degrees of
    EquiformerV2. Relative sizes of groups are preserved. No mean is subtracted.

    Args:
        irreps, eps, affine, normalization, layout, backend: See :class:`LayerNorm`, also for errors; no biases.
        over: 'irrep' or 'all'.

    Attributes:
        weight: ``[num_irreps]``, None without affine.

    Source:
        Liao et al. 2024, EquiformerV2, arXiv:2306.12059, the norm ``rms_norm_sh`` of its code;
        Zhang and Sennrich 2019, arXiv:1910.07467.

    Example:
        >>> RMSNorm("1x0e + 1x1o", over="all", affine=False, eps=1e-12)(torch.tensor([1.0, 3.0, 0.0, 0.0]))
        tensor([0.7071, 2.1213, 0.0000, 0.0000])
    """

    def __init__(
        self,
        irreps: Any,
        over: str = "irrep",
        eps: float = 1e-5,
        affine: bool = True,
        normalization: str = "component",
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(irreps, eps, affine, normalization, layout, backend)
        self.over = check_choice("over", over, ("irrep", "all"))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same; ShapeError, DTypeError or DeviceError if the features do not fit."""
        return run_rms_norm(self._plan, x, self.weight, self.over, self.eps, self.backend)

    def _options(self) -> list[str]:
        return [f"over={self.over}", f"eps={self.eps}"]
