"""Norms of irrep copies: formulas of squares and of features times a number for each copy, and functions of both.

A layer reads its features twice: for the squares and for the result. In between, torch computes with one number for
each copy. Even scalars may have means and biases (``has_mean``): torch computes with these directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula
from eqlayers_kernels.forms.program import Slot

from ...core.apply import as_rows
from ...core.backends import check_backend
from ...core.checks import check_choice, check_flag, check_floating, check_number
from ...core.dtypes import ACCUMULATE, of_one_dtype
from ...core.errors import ShapeError
from ...core.forms.description import register_formula
from ...core.torch_internals import is_plain, under_autocast
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, FlatLayout
from ..base.columns import joined
from ..base.module import run_formula
from ..gate.lower import Source, blocks_of, common_channels


class CopyGroup(NamedTuple):
    """An irreps group: copies, components of a copy, whether it has a mean and bias, and a factor of its squares."""

    mul: int
    dim: int
    has_mean: bool = False
    factor: float = 1.0


class _Row:
    """Collects consecutive blocks of a row of an operand or a result."""

    def __init__(self) -> None:
        self.width, self.components = 0, 0
        self.blocks: list[Block] = []

    def add(self, mul: int, dim: int, channels: int, layout: str) -> list[list[int]]:
        """Append a group; returns the indices of its components, for each block of its copies."""
        new = blocks_of(Source(Slot(self.width, mul, dim)), mul, channels, layout)
        self.blocks += new
        self.width += mul * dim
        first = self.components
        self.components += len(new) * dim
        return [list(range(start, start + dim)) for start in range(first, self.components, dim)]

    def operand(self, name: str, rows: str = "each") -> Operand:
        """The collected row as an operand or a result of a formula."""
        return Operand(name, self.width, tuple(self.blocks), rows)


@lru_cache(maxsize=256)
def squares_formula(groups: tuple[CopyGroup, ...], layout: str) -> Formula:
    """The formula from features to even scalars with a mean, and to squared norms of other copies, if there are any."""
    channels = common_channels(group.mul for group in groups)
    expr, x, direct, squares = Expression(), _Row(), _Row(), _Row()
    values: tuple[list[int | None], list[int | None]] = ([], [])
    for mul, dim, has_mean, factor in groups:
        (direct if has_mean else squares).add(mul, 1, channels, layout)
        for block in x.add(mul, dim, channels, layout):
            loads = [expr.load(0, i) for i in block]
            values[not has_mean].append(
                loads[0] if has_mean else expr.scale(factor, expr.add(*(expr.multiply(v, v) for v in loads)))
            )
    rows = [(direct.operand("scalars"), values[0]), (squares.operand("squares"), values[1])]
    present = [(row, nodes) for row, nodes in rows if row.width]
    results, outputs = [row for row, _ in present], [nodes for _, nodes in present]
    return register_formula(formula(expr, [x.operand("x")], results, outputs, channels))


@lru_cache(maxsize=256)
def scaled_formula(groups: tuple[CopyGroup, ...], layout: str, rows: str) -> Formula:
    """The formula that multiplies copies without a mean by factors, and replaces scalars that have a mean.

    ``rows``: whether factors are of 'each' row, or of 'one' row for all. Operands without columns are left out.
    """
    channels = common_channels(group.mul for group in groups)
    expr, x, numbers, scalars = Expression(), _Row(), _Row(), _Row()
    outputs: list[int | None] = []
    some = any(not group.has_mean for group in groups)
    for mul, dim, has_mean, _ in groups:
        components = (scalars if has_mean else numbers).add(mul, 1, channels, layout)
        for block, (k,) in zip(x.add(mul, dim, channels, layout), components, strict=True):
            if has_mean:
                outputs.append(expr.load(1 + some, k))
            else:
                outputs += [expr.multiply(expr.load(0, i), expr.load(1, k)) for i in block]
    blocks = [x.operand("x"), numbers.operand("numbers", rows), scalars.operand("scalars")]
    operands = [row for row in blocks if row.width or row.name == "x"]
    return register_formula(formula(expr, operands, [x.operand("z")], [outputs], channels))


@lru_cache(maxsize=256)
def centred_formula(groups: tuple[CopyGroup, ...], layout: str) -> Formula:
    """The formula that subtracts means of scalars (`has_mean`), multiplies each copy by a factor, and adds biases.

    All operands but the features are shared by all rows. Operands without columns are left out.
    """
    channels = common_channels(group.mul for group in groups)
    expr, x, numbers, means = Expression(), _Row(), _Row(), _Row()
    outputs: list[int | None] = []
    for mul, dim, has_mean, _ in groups:
        factors = [expr.load(1, k) for (k,) in numbers.add(mul, 1, channels, layout)]
        blocks = x.add(mul, dim, channels, layout)
        if has_mean:
            for (i,), (k,), factor in zip(blocks, means.add(mul, 1, channels, layout), factors, strict=True):
                centred = expr.add(expr.load(0, i), expr.scale(-1.0, expr.load(2, k)))
                outputs.append(expr.add(expr.multiply(centred, factor), expr.load(3, k)))
        else:
            for block, factor in zip(blocks, factors, strict=True):
                outputs += [expr.multiply(expr.load(0, i), factor) for i in block]
    operands = [x.operand("x"), numbers.operand("numbers", "one")]
    operands += [means.operand(name, "one") for name in ("means", "biases") if means.width]
    return register_formula(formula(expr, operands, [x.operand("z")], [outputs], channels))


NORMALIZATIONS = ("component", "norm")


class CopyPlan:
    """The columns of irrep copies, and the formulas that compute with one number for each copy.

    Even scalars have a mean and bias if ``has_mean``. ``counts`` are copies of each group, ``ranges`` the first copy
    and number of copies of consecutive groups with a mean, and of the others. The normalization is
    'component' for squared norms over 2l + 1, 'norm' for squared norms.
    """

    def __init__(self, irreps: Irreps, layout: str, has_mean: bool = False, normalization: str = "norm") -> None:
        self.flat = FlatLayout(irreps, layout)
        by_component = check_choice("normalization", normalization, NORMALIZATIONS) == "component"
        self.groups = tuple(
            CopyGroup(mul, ir.dim, has_mean and ir.is_scalar(), 1 / ir.dim if by_component else 1.0)
            for mul, ir in irreps
            if mul
        )
        self.counts = {flag: [g.mul for g in self.groups if g.has_mean == flag] for flag in (True, False)}
        self.ranges: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        first = 0
        for flag, group in groupby(self.groups, lambda g: g.has_mean):
            count = sum(g.mul for g in group)
            self.ranges[flag].append((first, count))
            first += count
        self.squares = squares_formula(self.groups, layout)
        self.scaled = {rows: scaled_formula(self.groups, layout, rows) for rows in ("each", "one")}


_plan = lru_cache(maxsize=256)(CopyPlan)


def root(squares: Tensor) -> Tensor:
    """Square roots, with derivatives of every order 0 where the square is 0."""
    none = squares <= 0  # False for NaN, which stays NaN
    zero = squares.new_zeros(())
    # two `where`: a single one would pass on the derivative of the root of 0, infinite or NaN
    return torch.where(none, zero, torch.where(none, 1 + zero, squares).sqrt())


def in_float32(name: str, x: Tensor, **others: Tensor | None) -> tuple[Tensor, list[Tensor | None], torch.dtype]:
    """Features and other operands of a norm in float32 at least, and the dtype of its result.

    The result has the dtype of the features; under autocast the dtype of the computation. In float16 the square of 300
    is infinite, and the square of 1e-4 is 0; torch's own norms compute in float32, too.
    """
    if x.is_cpu and not torch.is_autocast_enabled("cpu") and x.dtype in (torch.float32, torch.float64):
        for t in others.values():
            if t is not None and not (t.dtype is x.dtype and t.is_cpu):
                break
        else:
            return x, list(others.values()), x.dtype
    operands = {name: x, **{key: value for key, value in others.items() if value is not None}}
    mixed, operands = under_autocast(x.device.type), dict(zip(operands, of_one_dtype(**operands), strict=True))
    dtype = operands[name].dtype
    wide = ACCUMULATE[dtype]
    if wide == dtype and not mixed:
        return x, list(others.values()), wide
    operands = {key: value.to(wide) for key, value in operands.items()}
    return operands[name], [operands.get(key) for key in others], wide if mixed else dtype


def numbers_of(plan: CopyPlan, numbers: Tensor, has_mean: bool) -> Tensor:
    """Select from ``[..., num_irreps]`` the numbers of copies with a mean (even scalars), or of the others."""
    ranges = plan.ranges[has_mean]
    if len(ranges) == 1:
        return numbers.narrow(-1, *ranges[0])
    parts = [numbers.narrow(-1, first, count) for first, count in ranges]
    return torch.cat(parts, -1) if parts else numbers.narrow(-1, 0, 0)


def squares_of(plan: CopyPlan, x: Tensor, backend: str | None) -> tuple[Tensor, Tensor]:
    """Even scalars with a mean, and squared norms of all other copies, ``[..., copies]`` each, of x ``[..., dim]``."""
    none = x.narrow(-1, 0, 0)
    if not plan.counts[False]:
        return x, none
    lead = x.shape[:-1]
    results = run_formula(plan.squares, [as_rows(x, lead)], None, backend)
    results = results if len(lead) == 1 else tuple(t.reshape(*lead, t.shape[-1]) for t in results)
    return (results[0], results[1]) if len(results) == 2 else (none, results[0])


def scaled_by(plan: CopyPlan, x: Tensor, numbers: Tensor, scalars: Tensor, backend: str | None) -> Tensor:
    """Features ``[..., dim]``: copies of x times ``numbers [..., copies]``, or ``[copies]`` for all rows.

    Even scalars with a mean are ``scalars [..., scalars]``; even scalars of x are not read.
    """
    if not plan.counts[False]:
        return scalars
    lead = x.shape[:-1]
    shared = numbers.ndim == 1 and len(lead) > 0
    operands = [as_rows(x, lead), numbers if shared else as_rows(numbers, lead)]
    if plan.counts[True]:
        operands.append(as_rows(scalars, lead))
    (z,) = run_formula(plan.scaled["one" if shared else "each"], operands, None, backend)
    return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])


def group_means(numbers: Tensor, muls: Sequence[int]) -> Tensor:
    """Means ``[..., groups]`` of ``numbers [..., copies]`` over each group of ``muls`` copies."""
    if min(muls) == max(muls):  # groups of one size are an axis
        return numbers.reshape(*numbers.shape[:-1], len(muls), muls[0]).mean(-1)
    return torch.cat([part.mean(-1, keepdim=True) for part in numbers.split(muls, -1)], -1)


def _factors(squares: Tensor, muls: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
    """Factors ``[..., copies]`` that give each group a mean square of 1, times the weights ``[copies]``."""
    lead = squares.shape[:-1]
    if min(muls) == max(muls):
        shape = len(muls), muls[0]
        roots = (squares.reshape(*lead, *shape).mean(-1) + eps).rsqrt().unsqueeze(-1)
        spread = roots.expand(*lead, *shape) if weight is None else roots * weight.reshape(shape)
        return spread.reshape(*lead, sum(muls))
    parts = zip((group_means(squares, muls) + eps).rsqrt().split(1, -1), muls, strict=True)
    spread = torch.cat([part.expand(*lead, mul) for part, mul in parts], -1)
    return spread if weight is None else spread * weight


def run_layer_norm(
    plan: CopyPlan, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, backend: str | None
) -> Tensor:
    """The result of ``nn.LayerNorm`` for features ``[..., dim]``; even scalars of the plan have a mean."""
    FlatLayout.check(plan.flat, "x", x)  # compilers do not guard methods of constants such as the plan
    x, (weight, bias), dtype = in_float32("x", x, weight=weight, bias=bias)
    if not x.numel():
        return x.to(dtype, copy=True)
    scalars, others = plan.counts[True], plan.counts[False]
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    parts = run_formula(plan.squares, [rows], None, backend) if others else (rows,)  # scalars, squares of other copies
    operands = [rows]
    if scalars:
        weights = None if weight is None else numbers_of(plan, weight, True)
        tensors = parts[0], *(parts[:1] if weights is None else [weights]), *(parts[:1] if bias is None else [bias])
        standard = _Standardized.apply if is_plain(tensors) else _standardized
        operands.append(standard(parts[0], weights, bias, scalars, eps))
    if others:
        weights = None if weight is None else numbers_of(plan, weight, False)
        operands.insert(1, _factors(parts[-1], others, weights, eps))
    z = run_formula(plan.scaled["each"], operands, None, backend)[0] if others else operands[-1]
    return (z if x.ndim == 2 else z.reshape(x.shape)).to(dtype)


def _by_group(muls: Sequence[int], *tensors: Tensor | None) -> list[tuple[Any, ...]]:
    """The columns of all tensors for each group of ``muls``."""
    split = ([None] * len(muls) if t is None else t.split(list(muls), -1) for t in tensors)
    return list(zip(*split, strict=True))


def _standardized(
    scalars: Tensor, weight: Tensor | None, bias: Tensor | None, muls: Sequence[int], eps: float
) -> Tensor:
    """Layer norm of each group of ``scalars [..., copies]``, in operations that have derivatives of every order."""
    parts = []
    for x, w, b in _by_group(muls, scalars, weight, bias):
        z, _ = _centred(x, eps)
        z = z if w is None else z * w
        parts.append(z if b is None else z + b)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _centred(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Rows with mean 0 and variance 1, and the factors of their deviations from the mean."""
    deviation = x - x.mean(-1, keepdim=True)
    factor = (deviation.square().mean(-1, keepdim=True) + eps).rsqrt()
    return deviation * factor, factor


class _Standardized(torch.autograd.Function):
    """Layer norm of each group of scalars by torch's kernel, for tensors ``[N, copies]`` in plain eager mode.

    Torch's layer norm itself has wrong derivatives from the third order on: its second derivative takes mean and
    variance for constants (pytorch issue 175754). The kernel therefore computes values and first derivatives alone.
    """

    @staticmethod
    def forward(
        ctx: Any, scalars: Tensor, weight: Tensor | None, bias: Tensor | None, muls: Sequence[int], eps: float
    ) -> Tensor:
        parts, statistics = [], []
        tensors = scalars, weight, bias
        for x, w, b in [tensors] if len(muls) == 1 else _by_group(muls, *tensors):
            z, *of_group = torch.native_layer_norm(x, x.shape[-1:], w, b, eps)
            parts.append(z)
            statistics += of_group
        ctx.save_for_backward(scalars, weight, bias, *statistics)
        ctx.options = muls, eps
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scalars, weight, bias, *statistics = ctx.saved_tensors
        muls, eps = ctx.options
        needed = list(ctx.needs_input_grad[:3])
        if not torch.is_grad_enabled() and len(muls) == 1:
            return *_GRADIENTS(gradients[0], scalars, muls, *statistics, weight, bias, needed), None, None
        groups = _by_group(muls, gradients[0], scalars, weight, bias)
        if torch.is_grad_enabled():  # a graph of these gradients is requested
            by_groups = [_gradients(g, x, w, eps) for g, x, w, _ in groups]
        else:
            pairs = zip(statistics[::2], statistics[1::2], strict=True)
            by_groups = [
                _GRADIENTS(g, x, x.shape[-1:], mean, factor, w, b, needed)
                for (g, x, w, b), (mean, factor) in zip(groups, pairs, strict=True)
            ]
        joined = [torch.cat(parts, -1) if need else None for need, *parts in zip(needed, *by_groups, strict=True)]
        return *joined, None, None


_GRADIENTS = torch.ops.aten.native_layer_norm_backward.default


def _gradients(g: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the scalars ``[N, copies]`` of one group, their weights and biases, differentiable again."""
    z, factor = _centred(x, eps)
    by_z = g if weight is None else g * weight
    by_x = factor * (by_z - by_z.mean(-1, keepdim=True) - z * (by_z * z).mean(-1, keepdim=True))
    return by_x, (g * z).sum(0), g.sum(0)


def run_rms_norm(
    plan: CopyPlan, x: Tensor, weight: Tensor | None, over: str, eps: float, backend: str | None
) -> Tensor:
    """The result of ``nn.RMSNorm`` for features ``[..., dim]``."""
    FlatLayout.check(plan.flat, "x", x)
    x, (weight,), dtype = in_float32("x", x, weight=weight)
    if not x.numel():
        return x.to(dtype, copy=True)
    muls = plan.counts[False]
    squares = squares_of(plan, x, backend)[1]
    if over == "irrep":
        numbers = _factors(squares, muls, weight, eps)
    else:
        root_of_all = (group_means(squares, muls).mean(-1, keepdim=True) + eps).rsqrt()
        numbers = root_of_all.expand(squares.shape) if weight is None else root_of_all * weight
    return scaled_by(plan, x, numbers, x.narrow(-1, 0, 0), backend).to(dtype)


@torch.compiler.assume_constant_result
def _read(irreps: Any, layout: str, has_mean: bool, normalization: str, simplified: bool = False) -> CopyPlan:
    """The cached plan of irreps; compilers do not trace this."""
    groups, layout = as_irreps(irreps), check_choice("layout", layout, LAYOUTS)
    normalization = check_choice("normalization", normalization, NORMALIZATIONS)
    return _plan(joined(groups, layout) if simplified else groups, layout, has_mean, normalization)


def _check_numbers(name: str, numbers: Tensor | None, count: int) -> None:
    if numbers is not None and check_floating(name, numbers, f"[{count}]").shape != (count,):
        raise ShapeError(f"{name} must be [{count}], got {list(numbers.shape)}. Give a number for each copy, or None.")


def norm(
    x: Tensor, irreps: Any, squared: bool = False, *, layout: str = "mul_ir", backend: str | None = None
) -> Tensor:
    """:class:`eqlayers.nn.Norm` as a function: ``[..., irreps.dim]`` to ``[..., irreps.num_irreps]``.

    The layer says which errors a call raises.

    Example:
        >>> norm(torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0, 2.0]), "2x1o").tolist()
        [5.0, 2.0]
    """
    check_backend(backend)
    squared, plan = check_flag("squared", squared), _read(irreps, layout, False, "norm", True)
    FlatLayout.check(plan.flat, "x", x)
    x, _, dtype = in_float32("x", x)
    squares = squares_of(plan, x, backend)[1]
    return (squares if squared else root(squares)).to(dtype)


def layer_norm(
    x: Tensor,
    irreps: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    normalization: str = "component",
    *,
    layout: str = "mul_ir",
    backend: str | None = None,
) -> Tensor:
    """:class:`eqlayers.nn.LayerNorm` as a function, ``[..., irreps.dim]`` to the same; errors as of the layer.

    Args:
        x, irreps, eps, normalization, layout, backend: See the layer.
        weight, bias: ``[num_irreps]`` and ``[number of even scalars]``, or None.

    Example:
        >>> layer_norm(torch.tensor([1.0, 3.0, 0.0, 3.0, 4.0]), "2x0e + 1o", normalization="norm")
        tensor([-1.0000,  1.0000,  0.0000,  0.6000,  0.8000])
    """
    check_backend(backend)
    plan, eps = _read(irreps, layout, True, normalization), check_number("eps", eps, above=0.0, fix="Use 1e-5.")
    scalars = sum(plan.counts[True])
    _check_numbers("weight", weight, scalars + sum(plan.counts[False]))
    _check_numbers("bias", bias, scalars)
    return run_layer_norm(plan, x, weight, bias, eps, backend)


def rms_norm(
    x: Tensor,
    irreps: Any,
    weight: Tensor | None = None,
    over: str = "irrep",
    eps: float = 1e-5,
    normalization: str = "component",
    *,
    layout: str = "mul_ir",
    backend: str | None = None,
) -> Tensor:
    """:class:`eqlayers.nn.RMSNorm` as a function, ``[..., irreps.dim]`` to the same; errors as of the layer.

    Args:
        x, irreps, over, eps, normalization, layout, backend: See the layer.
        weight: ``[num_irreps]``, or None.

    Example:
        >>> rms_norm(torch.tensor([1.0, 3.0, 0.0, 0.0]), "1x0e + 1x1o", over="all", eps=1e-12)
        tensor([0.7071, 2.1213, 0.0000, 0.0000])
    """
    check_backend(backend)
    over, eps = check_choice("over", over, ("irrep", "all")), check_number("eps", eps, above=0.0, fix="Use 1e-5.")
    plan = _read(irreps, layout, False, normalization)
    _check_numbers("weight", weight, sum(plan.counts[False]))
    return run_rms_norm(plan, x, weight, over, eps, backend)
