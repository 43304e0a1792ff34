"""Normalisation of each sample by itself: layer norm and root mean squares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_number
from .copies import CopyModule
from .functions import run_layer_norm, run_rms_norm


class LayerNorm(CopyModule):
    r"""Layer norm of each irreps group: even scalars as usual, other irreps by the norms of their copies.

    .. math:: y_u = w_u\, \frac{x_u - \langle x_v \rangle_v}{\sqrt{\langle |x_v - \langle x \rangle|^2 \rangle_v
              + \epsilon}} + b_u \quad (0e), \qquad
              y_u = w_u\, \frac{x_u}{\sqrt{\langle |x_v|^2 / (2l+1) \rangle_v + \epsilon}} \quad \text{(others)}

    The mean is over the copies v of the group. There is no division by zero: a feature of zeros stays zero, with finite
    derivatives of every order.

    Args:
        irreps: Irreps of the features; a group of them is normalised as one, so ``simplify()`` joins what belongs
            together.
        eps: Added to the mean squares.
        affine: Whether there are weights and, for even scalars, biases.
        normalization: 'component' (squares over 2l + 1, as in Equiformer's code) or 'norm' (as in its paper).
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

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

    weight: Tensor | None
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
        super().__init__(irreps, layout, backend, apart=True, normalization=normalization)
        self.irreps_out = self.irreps_in
        self.eps = check_number("eps", eps, above=0.0, fix="Use 1e-5.")
        self.affine, self.normalization = check_flag("affine", affine), normalization
        scalars, copies = sum(self._counts[True]), self.irreps_in.num_irreps
        self.weight = torch.nn.Parameter(torch.ones(copies)) if self.affine else None
        self.bias = torch.nn.Parameter(torch.zeros(scalars)) if self.affine else None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same.

        Raises:
            ShapeError, DTypeError, DeviceError: The features do not fit the layer.
        """
        return run_layer_norm(self._plan, x, self.weight, self.bias, self.eps, self.backend)

    def extra_repr(self) -> str:
        """Irreps, numbers and layout."""
        chosen = "" if self.affine else ", without weights"
        chosen += "" if self.normalization == "component" else f", {self.normalization}"
        return f"{self.irreps_in}, eps={self.eps}{chosen} | {self._kind()}"


class RMSNorm(CopyModule):
    r"""Divides each sample by the root of a mean square, of each irreps group or of all groups together.

    .. math:: y_u = w_u\, x_u / \sqrt{\nu + \epsilon}, \quad
              \nu_g = \langle |x_v|^2 / (2l+1) \rangle_{v \in g} \ \text{('irrep')}, \qquad
              \nu = \langle \nu_g \rangle_g \ \text{('all')}

    With 'all' every group counts alike, whatever its degree and its number of copies: the balance of degrees of
    EquiformerV2. Sizes of groups relative to each other are kept. No mean is subtracted.

    Args:
        irreps: Irreps of the features; see :class:`LayerNorm`.
        over: 'irrep' or 'all'.
        eps: Added to the mean squares.
        affine: Whether there are weights.
        normalization: 'component' (squares over 2l + 1) or 'norm'.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        weight: ``[num_irreps]``, None without affine.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read, or an option.

    Source:
        Liao et al. 2024, EquiformerV2, arXiv:2306.12059, the norm ``rms_norm_sh`` of its code;
        Zhang and Sennrich 2019, arXiv:1910.07467.

    Example:
        >>> RMSNorm("1x0e + 1x1o", over="all", affine=False, eps=1e-12)(torch.tensor([1.0, 3.0, 0.0, 0.0]))
        tensor([0.7071, 2.1213, 0.0000, 0.0000])
    """

    weight: Tensor | None

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
        super().__init__(irreps, layout, backend, normalization=normalization)
        self.irreps_out = self.irreps_in
        self.over = check_choice("over", over, ("irrep", "all"))
        self.eps = check_number("eps", eps, above=0.0, fix="Use 1e-5.")
        self.affine, self.normalization = check_flag("affine", affine), normalization
        self.weight = torch.nn.Parameter(torch.ones(self.irreps_in.num_irreps)) if self.affine else None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same.

        Raises:
            ShapeError, DTypeError, DeviceError: The features do not fit the layer.
        """
        return run_rms_norm(self._plan, x, self.weight, self.over, self.eps, self.backend)

    def extra_repr(self) -> str:
        """Irreps, numbers and layout."""
        chosen = "" if self.affine else ", without weights"
        chosen += "" if self.normalization == "component" else f", {self.normalization}"
        return f"{self.irreps_in}, over={self.over}, eps={self.eps}{chosen} | {self._kind()}"
