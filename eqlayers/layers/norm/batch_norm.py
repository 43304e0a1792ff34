"""Normalisation by statistics of the batch, with running ones for evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_number
from ...core.dtypes import ACCUMULATE
from ..base.module import run_formula
from .functions import centred_formula, in_float32, numbers_of, scaled_by, squares_of
from .module import Normalization


def _samples(rows: Tensor, batch: int) -> Tensor:
    """``[rows, copies]`` to ``[batch, rows of a sample, copies]``, also for 0 copies."""
    return rows.reshape(batch, rows.shape[0] // batch, rows.shape[1])


class _BatchNormalization(Normalization):
    """Base of batch norms: running statistics stay in float32 in half precision, where squares overflow."""

    def __init__(self, momentum: float, *options: Any, has_mean: bool) -> None:
        super().__init__(*options, has_mean=has_mean, zero=True)
        self.momentum = check_number("momentum", momentum, at_least=0.0, at_most=1.0, fix="Use 0.1.")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        stored = {name: value for name, value in self._buffers.items() if value is not None}
        super()._apply(fn, recurse)
        for name, value in stored.items():
            moved = self.get_buffer(name)
            wide = ACCUMULATE.get(moved.dtype, moved.dtype)
            if wide != moved.dtype:
                same = torch.empty_like(moved, dtype=wide) if value.is_meta else value.to(moved.device, wide)
                setattr(self, name, same)
        return self

    def _statistics(self, x: Tensor, name: str) -> Tensor | None:
        """Running statistics, for a check of their dtype; None if they are float32 and features half precision."""
        running: Tensor | None = getattr(self, name)
        return None if running is not None and ACCUMULATE.get(x.dtype) == running.dtype != x.dtype else running

    def _update(self, running: Tensor | None, new: Tensor) -> None:
        """Move running statistics towards the statistics of a batch."""
        assert running is not None
        running.copy_((1 - self.momentum) * running + self.momentum * new.detach())

    def _factors(self, var: Tensor, weight: Tensor | None) -> Tensor:
        """Factors of copies, from their mean squares and weights."""
        numbers = (var + self.eps).rsqrt()
        return numbers if weight is None else numbers * weight

    def _options(self) -> list[str]:
        return [f"eps={self.eps}", f"momentum={self.momentum}"]


class BatchNorm(_BatchNormalization):
    r"""Batch norm of each irrep copy; a drop-in for ``e3nn.nn.BatchNorm``.

    .. math:: y_{nu} = w_u\, \frac{x_{nu} - \mu_u}{\sqrt{\nu_u + \epsilon}} + b_u, \quad
              \nu_u = \langle |x_{nu} - \mu_u|^2 / (2l+1) \rangle_n

    Means :math:`\mu` and biases b exist for even scalars only; for other irreps they would not be equivariant.
    In evaluation running :math:`\mu` and :math:`\nu` are used. A batch without rows does not change them.

    Args:
        irreps: Irreps of the features.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics, 0 to 1.
        affine: Whether there are weights and biases.
        reduce: How squares are reduced over the axes between the first (the batch) and the last: 'mean' or 'max'.
        instance: Whether statistics are of each element of the first axis, over the axes between, also in evaluation.
        include_bias: Whether even scalars have a bias.
        normalization: 'component' (squares over 2l + 1) or 'norm'.
        layout, backend: See :class:`eqlayers.TensorProduct`.

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
        super().__init__(momentum, irreps, eps, affine, normalization, layout, backend, has_mean=True)
        self.irreps = self.irreps_in
        self.instance, self.include_bias = check_flag("instance", instance), check_flag("include_bias", include_bias)
        self.reduce = check_choice("reduce", reduce, ("mean", "max"))
        self._centred = centred_formula(self._plan.groups, layout)
        self._formulas = [*self._formulas, self._centred] if self._flat.dim else []
        scalars = sum(self._counts[True])
        self.register_buffer("running_mean", None if self.instance else torch.zeros(scalars))
        self.register_buffer("running_var", None if self.instance else torch.ones(self.irreps.num_irreps))
        if self.include_bias:
            self.bias = torch.nn.Parameter(torch.zeros(scalars)) if self.affine else None

    def forward(self, input: Tensor) -> Tensor:
        """``[batch, ..., irreps.dim]`` or one row to the same; ShapeError, DTypeError or DeviceError for others."""
        self._flat.check("input", input)
        bias = self.bias if self.affine and self.include_bias else None
        running = self._statistics(input, "running_var")
        wide, (weight, bias, _), dtype = in_float32("input", input, weight=self.weight, bias=bias, running_var=running)
        if not wide.numel():
            return wide.to(dtype, copy=True)
        x = wide.reshape(-1, self._flat.dim)
        batch = wide.shape[0] if wide.ndim > 1 else 1
        if not self.instance and not self.training:
            return self._by_running(x, weight, bias).reshape(wide.shape).to(dtype)
        scalars, squares = squares_of(self._plan, x, self.backend)
        mean = _samples(scalars, batch).mean(1) if self.instance else scalars.mean(0)
        scalars = scalars - self._to_rows(mean, x.shape[0])
        var = self._joined(self._reduced(scalars.square(), batch), self._reduced(squares, batch))
        if not self.instance:
            self._update(self.running_mean, mean)
            self._update(self.running_var, var)
        numbers = self._to_rows(self._factors(var, weight), x.shape[0])
        factors, others = numbers_of(self._plan, numbers, True), numbers_of(self._plan, numbers, False)
        scalars = scalars * factors if bias is None else torch.addcmul(bias, scalars, factors)
        return scaled_by(self._plan, x, others, scalars, self.backend).reshape(wide.shape).to(dtype)

    def _joined(self, has_mean: Tensor, others: Tensor) -> Tensor:
        """Numbers of all copies ``[..., num_irreps]`` from numbers of scalars with a mean and of other copies."""
        parts = {flag: iter(t.split(self._counts[flag], -1)) for flag, t in ((True, has_mean), (False, others))}
        return torch.cat([next(parts[group.has_mean]) for group in self._plan.groups], -1)

    def _by_running(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Normalise by the running statistics, in one formula."""
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
        reduced = samples.mean(1) if self.reduce == "mean" else samples.max(1).values
        return reduced if self.instance else reduced.mean(0)

    def _to_rows(self, numbers: Tensor, rows: int) -> Tensor:
        """``[batch, copies]`` to ``[rows, copies]``; numbers ``[copies]`` for all rows stay as they are."""
        if numbers.ndim == 1:
            return numbers
        batch, copies = numbers.shape
        return numbers.unsqueeze(1).expand(batch, rows // batch, copies).reshape(rows, copies)

    def _options(self) -> list[str]:
        options = ["reduce=max"] * (self.reduce == "max") + ["instance"] * self.instance
        return [*super()._options(), *options]


class BatchRMSNorm(_BatchNormalization):
    r"""Divides every irrep copy by the root of its mean square in the batch, without means and biases.

    .. math:: y_{nu} = w_u\, x_{nu} / \sqrt{\nu_u + \epsilon}, \quad \nu_u = \langle |x_{nu}|^2 / (2l+1) \rangle_n

    In evaluation :math:`\nu` are the running mean squares. A batch without rows does not change these.

    Args:
        irreps, eps, momentum, affine, normalization, layout, backend: See :class:`BatchNorm`, also for errors.

    Attributes:
        weight: ``[num_irreps]``, None without affine.
        running_squared_norm: ``[num_irreps]``.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467, over the batch in place of the channels.

    Example:
        >>> norm = BatchRMSNorm("4x1o")
        >>> norm(7 * torch.randn(50, 12)).square().mean().round(decimals=1).item()
        1.0
    """

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
        super().__init__(momentum, irreps, eps, affine, normalization, layout, backend, has_mean=False)
        self.register_buffer("running_squared_norm", torch.ones(self.irreps_in.num_irreps))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to the same; all leading axes are the batch. Errors as of :class:`BatchNorm`."""
        self._flat.check("x", x)
        running = self._statistics(x, "running_squared_norm")
        wide, (weight, _), dtype = in_float32("x", x, weight=self.weight, running_squared_norm=running)
        if not wide.numel():
            return wide.to(dtype, copy=True)
        x = wide.reshape(-1, self._flat.dim)
        if self.training:
            squares = squares_of(self._plan, x, self.backend)[1].mean(0)
            self._update(self.running_squared_norm, squares)
        else:
            squares = self.running_squared_norm.to(x.dtype)
        factors = self._factors(squares, weight)
        return scaled_by(self._plan, x, factors, x.narrow(-1, 0, 0), self.backend).reshape(wide.shape).to(dtype)
