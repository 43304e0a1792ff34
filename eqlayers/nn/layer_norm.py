"""Normalisation of each sample by itself: layer norm and root mean squares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import check_choice, check_flag, check_number
from ..ops.call import check_same_kind, widest_under_autocast
from ._common.copies import CopyModule


def _spread(factors: list[Tensor], muls: list[int]) -> Tensor:
    """One number ``[..., 1]`` for each group to one for each copy."""
    return torch.cat([one.expand(*one.shape[:-1], mul) for one, mul in zip(factors, muls, strict=True)], -1)


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
        self._flat.check("x", x)
        weight = bias = None
        if self.weight is not None and self.bias is not None:
            x, weight, bias = widest_under_autocast(x, self.weight, self.bias)
        check_same_kind(x=x, **({} if weight is None or bias is None else {"weight": weight, "bias": bias}))
        if not x.numel():
            return x.clone()
        scalars, squares = self._squares(x)
        if self._counts[True]:
            scalars = self._standard(scalars, None if weight is None else self._of(weight, True), bias)
        if self._counts[False]:
            factors = [(mean + self.eps).rsqrt() for mean in self._group_means(squares)]
            squares = _spread(factors, self._counts[False])
            squares = squares if weight is None else squares * self._of(weight, False)
        return self._scaled(x, squares, scalars)

    def _standard(self, scalars: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Torch's layer norm of each group."""
        muls = self._counts[True]
        weights, biases = (
            [None] * len(muls) if all_of is None else all_of.split(muls, -1) for all_of in (weight, bias)
        )
        parts = [
            torch.nn.functional.layer_norm(part, (mul,), w, b, self.eps).to(scalars.dtype)
            for part, mul, w, b in zip(scalars.split(muls, -1), muls, weights, biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def extra_repr(self) -> str:
        """Irreps, numbers and layout."""
        chosen = "" if self.affine else ", without weights"
        chosen += "" if self.normalization == "component" else f", {self.normalization}"
        return f"{self.irreps_in}, eps={self.eps}{chosen} | {self._kind()}"


class RMSNorm(CopyModule):
    r"""Each sample over the root of a mean square: that of each irreps group, or one for all of them.

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
        self._flat.check("x", x)
        weight = None
        if self.weight is not None:
            x, weight = widest_under_autocast(x, self.weight)
        check_same_kind(x=x, **({} if weight is None else {"weight": weight}))
        if not x.numel():
            return x.clone()
        means, muls = self._group_means(self._squares(x)[1]), self._counts[False]
        if self.over == "all":
            means, muls = [torch.cat(means, -1).mean(-1, keepdim=True)], [sum(muls)]
        numbers = _spread([(mean + self.eps).rsqrt() for mean in means], muls)
        return self._scaled(x, numbers if weight is None else numbers * weight, x.narrow(-1, 0, 0))

    def extra_repr(self) -> str:
        """Irreps, numbers and layout."""
        chosen = "" if self.affine else ", without weights"
        chosen += "" if self.normalization == "component" else f", {self.normalization}"
        return f"{self.irreps_in}, over={self.over}, eps={self.eps}{chosen} | {self._kind()}"
