"""Normalisation by statistics of the batch, with running ones for evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_number
from ...core.dtypes import ACCUMULATE
from ..pointwise.run import run_formula
from .copies import CopyModule
from .functions import in_float32
from .lower import centred_formula


def _samples(rows: Tensor, batch: int) -> Tensor:
    """``[rows, copies]`` to ``[batch, rows of a sample, copies]``; of no copies, too."""
    return rows.reshape(batch, rows.shape[0] // batch, rows.shape[1])


class _OfBatch(CopyModule):
    """Keeps running statistics in float32 where the layer is in half precision, in which squares may be infinite."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = {name: value for name, value in self._buffers.items() if value is not None}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            moved = self.get_buffer(name)
            wide = ACCUMULATE.get(moved.dtype, moved.dtype)
            if wide != moved.dtype:
                same = torch.empty_like(moved, dtype=wide) if value.is_meta else value.to(moved.device, wide)
                setattr(self, name, same)
        return self

    def _statistics(self, x: Tensor, name: str) -> Tensor | None:
        """Running statistics that must have the dtype of features; features in half precision need not."""
        found: Tensor | None = getattr(self, name)
        return None if found is not None and ACCUMULATE.get(x.dtype) == found.dtype != x.dtype else found


class BatchNorm(_OfBatch):
    r"""Batch norm of each irrep copy; a drop-in for ``e3nn.nn.BatchNorm``.

    .. math:: y_{nu} = w_u\, \frac{x_{nu} - \mu_u}{\sqrt{\nu_u + \epsilon}} + b_u, \quad
              \nu_u = \langle |x_{nu} - \mu_u|^2 / (2l+1) \rangle_n

    Means :math:`\mu` and biases b exist for even scalars; other irreps have none, which would not turn with them.
    In evaluation :math:`\mu` and :math:`\nu` are the running ones. A batch without rows leaves these as they are.

    Args:
        irreps: Irreps of the features.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics, 0 to 1.
        affine: Whether there are weights and biases.
        reduce: What becomes of the axes between the first, the batch, and the last: 'mean' or 'max' of the squares.
        instance: Whether statistics are of each element of the first axis, over the axes between, always.
        include_bias: Whether even scalars have a bias.
        normalization: 'component' (squares over 2l + 1) or 'norm'.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        weight: ``[num_irreps]``, None without affine.
        bias: ``[number of even scalars]``, None without affine, absent without include_bias.
        running_mean: ``[number of even scalars]``, None with instance.
        running_var: ``[num_irreps]``, None with instance.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read, or an option.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453; Ioffe and Szegedy 2015, arXiv:1502.03167.

    Example:
        >>> norm = BatchNorm("8x0e + 4x1o")
        >>> norm(3 + torch.randn(50, 20)).square().mean().round(decimals=1).item()
        1.0
    """

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(
        self,
        irreps: Any,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        reduce: str = "mean",
        instance: bool = False,
        include_bias: bool = True,
        normalization: str = "component",
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(irreps, layout, backend, apart=True, normalization=normalization)
        self.irreps = self.irreps_out = self.irreps_in
        self.eps = check_number("eps", eps, at_least=0.0, fix="Use 1e-5.")
        self.momentum = check_number("momentum", momentum, at_least=0.0, at_most=1.0, fix="Use 0.1.")
        self.affine, self.instance = check_flag("affine", affine), check_flag("instance", instance)
        self.include_bias = check_flag("include_bias", include_bias)
        self.reduce = check_choice("reduce", reduce, ("mean", "max"))
        self.normalization = normalization
        self._centred = centred_formula(self._groups, layout)
        self._formulas = [*self._formulas, self._centred] if self._flat.dim else []
        scalars, copies = sum(self._counts[True]), self.irreps.num_irreps
        self.register_buffer("running_mean", None if self.instance else torch.zeros(scalars))
        self.register_buffer("running_var", None if self.instance else torch.ones(copies))
        self.weight = torch.nn.Parameter(torch.ones(copies)) if self.affine else None
        if self.include_bias:
            self.bias = torch.nn.Parameter(torch.zeros(scalars)) if self.affine else None

    def forward(self, input: Tensor) -> Tensor:
        """``[batch, ..., irreps.dim]`` to the same; a row without batch is a batch of one.

        Raises:
            ShapeError, DTypeError, DeviceError: The features do not fit the layer.
        """
        self._flat.check("input", input)
        bias = self.bias if self.affine and self.include_bias else None
        (given, weight, bias, _), dtype = in_float32(
            input=input, weight=self.weight, bias=bias, running_var=self._statistics(input, "running_var")
        )
        assert given is not None
        if not given.numel():
            return given.to(dtype, copy=True)
        x = given.reshape(-1, self._flat.dim)
        batch = given.shape[0] if given.ndim > 1 else 1
        if not self.instance and not self.training:
            return self._by_running(x, weight, bias).reshape(given.shape).to(dtype)
        scalars, squares = self._squares(x)
        mean = _samples(scalars, batch).mean(1) if self.instance else scalars.mean(0)
        scalars = scalars - self._to_rows(mean, x.shape[0])
        var = self._joined(self._reduced(scalars.square(), batch), self._reduced(squares, batch))
        if not self.instance:
            self._keep(mean, var)
        numbers = self._to_rows(self._factors(var, weight), x.shape[0])
        own, others = self._of(numbers, True), self._of(numbers, False)
        scalars = scalars * own if bias is None else torch.addcmul(bias, scalars, own)
        return self._scaled(x, others, scalars).reshape(given.shape).to(dtype)

    def _factors(self, var: Tensor, weight: Tensor | None) -> Tensor:
        numbers = (var + self.eps).rsqrt()
        return numbers if weight is None else numbers * weight

    def _by_running(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Normalise by the running statistics: one formula."""
        assert self.running_mean is not None
        assert self.running_var is not None
        operands = [x, self._factors(self.running_var.to(x.dtype), weight)]
        if self._counts[True]:
            mean = self.running_mean.to(x.dtype)
            operands += [mean, torch.zeros_like(mean) if bias is None else bias]
        (z,) = run_formula(self._centred, operands, None, self.backend)
        return z

    def _reduced(self, squares: Tensor, batch: int) -> Tensor:
        """``[rows, copies]`` to ``[copies]``, or to ``[batch, copies]`` with instance."""
        if self.reduce == "mean" and not self.instance:
            return squares.mean(0)
        samples = _samples(squares, batch)
        found = samples.mean(1) if self.reduce == "mean" else samples.max(1).values
        return found if self.instance else found.mean(0)

    def _to_rows(self, numbers: Tensor, rows: int) -> Tensor:
        """``[batch, copies]`` to ``[rows, copies]``; those that serve all stay as they are."""
        if numbers.ndim == 1:
            return numbers
        batch, copies = numbers.shape
        return numbers.unsqueeze(1).expand(batch, rows // batch, copies).reshape(rows, copies)

    def _keep(self, mean: Tensor, var: Tensor) -> None:
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            assert running is not None
            running.copy_((1 - self.momentum) * running + self.momentum * new.detach())

    def extra_repr(self) -> str:
        """Irreps, numbers, and what is not the default."""
        chosen = "" if self.reduce == "mean" else ", reduce=max"
        chosen += ", instance" if self.instance else ""
        chosen += "" if self.affine else ", without weights"
        return f"{self.irreps}, eps={self.eps}, momentum={self.momentum}{chosen} | {self._kind()}"


class BatchRMSNorm(_OfBatch):
    r"""Divides every irrep copy by the root of its mean square in the batch, without means and biases.

    .. math:: y_{nu} = w_u\, x_{nu} / \sqrt{\nu_u + \epsilon}, \quad \nu_u = \langle |x_{nu}|^2 / (2l+1) \rangle_n

    In evaluation :math:`\nu` are the running mean squares. A batch without rows leaves these as they are.

    Args:
        irreps: Irreps of the features.
        eps: Added to the mean squares.
        momentum: Weight of a batch in the running mean squares, 0 to 1.
        affine: Whether there are weights.
        normalization: 'component' (squares over 2l + 1) or 'norm'.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        weight: ``[num_irreps]``, None without affine.
        running_squared_norm: ``[num_irreps]``.

    Raises:
        IrrepsError, ConfigError: The irreps cannot be read, or an option.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467, over the batch in place of the channels.

    Example:
        >>> norm = BatchRMSNorm("4x1o")
        >>> norm(7 * torch.randn(50, 12)).square().mean().round(decimals=1).item()
        1.0
    """

    weight: Tensor | None
    running_squared_norm: Tensor

    def __init__(
        self,
        irreps: Any,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        normalization: str = "component",
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(irreps, layout, backend, normalization=normalization)
        self.irreps_out = self.irreps_in
        self.eps = check_number("eps", eps, at_least=0.0, fix="Use 1e-5.")
        self.momentum = check_number("momentum", momentum, at_least=0.0, at_most=1.0, fix="Use 0.1.")
        self.affine, self.normalization = check_flag("affine", affine), normalization
        copies = self.irreps_in.num_irreps
        self.register_buffer("running_squared_norm", torch.ones(copies))
        self.weight = torch.nn.Parameter(torch.ones(copies)) if self.affine else None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same; all leading axes are the batch.

        Raises:
            ShapeError, DTypeError, DeviceError: The features do not fit the layer.
        """
        self._flat.check("x", x)
        (given, weight, _), dtype = in_float32(
            x=x, weight=self.weight, running_squared_norm=self._statistics(x, "running_squared_norm")
        )
        assert given is not None
        if not given.numel():
            return given.to(dtype, copy=True)
        x = given.reshape(-1, self._flat.dim)
        if self.training:
            mean = self._squares(x)[1].mean(0)
            kept = self.running_squared_norm
            kept.copy_((1 - self.momentum) * kept + self.momentum * mean.detach())
        else:
            mean = self.running_squared_norm.to(x.dtype)
        numbers = (mean + self.eps).rsqrt()
        if weight is not None:
            numbers = numbers * weight
        return self._scaled(x, numbers, x.narrow(-1, 0, 0)).reshape(given.shape).to(dtype)

    def extra_repr(self) -> str:
        """Irreps, numbers and layout."""
        chosen = "" if self.affine else ", without weights"
        return f"{self.irreps_in}, eps={self.eps}, momentum={self.momentum}{chosen} | {self._kind()}"
