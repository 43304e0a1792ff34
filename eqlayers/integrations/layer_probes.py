"""Random inputs for nonlinear layers; see :mod:`.probes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..e3nn_compat.state_dict import coefficient_error
from ..irreps.algebra import as_irreps
from .nonlinear import AcceleratedBatchNorm, AcceleratedGate
from .probes import Operands, Probe, call, draw, dtype_and_device

#: Roundings of a function of one number, beside the roundings of any term.
_PER_FUNCTION = 4.0


def gate_probe(original: Any, replacement: AcceleratedGate, rows: int) -> Probe:
    """Values and sizes of a gate."""
    gated = as_irreps(original.irreps_gated)
    dims = torch.tensor([ir.dim for mul, ir in gated for _ in range(mul)], dtype=torch.long, device="cpu")

    def size(o: Operands, count: bool) -> Tensor:
        scalars, gates, features = call(original.sc, o["x"])
        scalars, gates = (
            _bounds(layer, value, count)
            for layer, value in ((original.act_scalars, scalars), (original.act_gates, gates))
        )
        return torch.cat([scalars, features * gates.repeat_interleave(dims, -1)], -1)

    return Probe(
        {"x": draw("x", rows, as_irreps(original.irreps_in).dim)},
        lambda o: call(original, o["x"]),
        lambda o: call(replacement, o["x"]),
        lambda o: size(o, False),
        lambda o: size(o, True),
        torch.finfo(torch.float32).eps if coefficient_error(original.mul) else 0.0,
    )


def _bounds(activation: Any, x: Tensor, count: bool) -> Tensor:
    """Sizes of activated scalars at the absolute values x, or the number of their roundings."""
    parts = x.split([mul for mul, _ in as_irreps(activation.irreps_in)], -1)
    pairs = zip(activation.acts, parts, strict=True)
    found = [part if act is None else _bound(act, part, count) for act, part in pairs]
    return torch.cat([x.narrow(-1, 0, 0), *found], -1)


def _bound(act: Any, x: Tensor, count: bool) -> Tensor:
    """A function whose value and first two derivatives at x have the sizes of the activation's, at x or -x.

    Functions such as x sigmoid(x) are made of terms up to 1 + |x|, whatever they are in sum.
    """
    step = x - x.detach()
    if count:
        return _PER_FUNCTION * step.exp()
    factor = abs(float(act.cst))
    both = [_derivatives(act.f, sign * x.detach(), 2) for sign in (1.0, -1.0)]
    value, first, second = (factor * (a + b + 1 + x.detach()) for a, b in zip(*both, strict=True))
    return value + first * step + second * step.square() / 2


def _derivatives(f: Any, x: Tensor, order: int) -> list[Tensor]:
    """Absolute value and derivatives up to that order, 0 where it has none: float64 on the CPU."""
    default = (torch.float64, torch.device("cpu"))
    dtype, device = dtype_and_device(f, default) if isinstance(f, nn.Module) else default
    leaf = x.to(device, dtype, copy=True).requires_grad_()
    value, found = f(leaf), []
    for _ in range(order + 1):
        found.append(value.detach().double().cpu().abs())
        try:
            (value,) = torch.autograd.grad(value.sum(), leaf, create_graph=True, materialize_grads=True)
        except RuntimeError:  # no further derivative
            value = torch.zeros_like(leaf)
    return found


def grid_probe(original: Any, replacement: Any, rows: int) -> Probe:
    """Values and sizes of an activation on a grid."""
    irreps = as_irreps(replacement.irreps_in), as_irreps(replacement.irreps_out)
    there, back = _grid_matrices(original)
    turned = bool(getattr(original, "random_rot", False))
    spread = [torch.block_diag(*(torch.ones(ir.dim, ir.dim).to(there) for _, ir in one)) for one in irreps]

    def size(o: Operands, count: bool) -> Tensor:
        # a rotation spreads what there is over the components
        at, out = (one != 0 if count else one for one in (there, back))
        signal = (o["x"] @ spread[0] if turned else o["x"]) @ at.to(there)
        values = _bound_within(original.act, signal, count) @ out.to(back)
        return values @ spread[1] if turned else values

    # rotations are rounded to the default dtype, with the grid or without
    wide = next(original.buffers()).dtype == torch.float64
    rounded = _in_float32(*original.buffers()) or (turned and wide and torch.get_default_dtype() == torch.float32)
    return Probe(
        {"x": draw("x", rows, irreps[0].dim)},
        lambda o: _replayed(original, o["x"]),
        lambda o: _replayed(replacement, o["x"]),
        lambda o: size(o, False),
        lambda o: size(o, True),
        _PER_FUNCTION * torch.finfo(torch.float32).eps if rounded else 0.0,
    )


def _in_float32(*constants: Tensor) -> bool:
    """Whether some in float64 were rounded to float32 before; e3nn's Fourier transforms, which use none, were not."""
    wide = [t.detach() for t in constants if t.dtype == torch.float64]
    return any(torch.equal(t, t.float().double()) and bool(t.frac().any()) for t in wide)


def _grid_matrices(layer: Any) -> tuple[Tensor, Tensor]:
    """Absolute factors of coefficients at points, and of points in coefficients: float64 on the CPU."""

    def constants(grid: Any, *names: str) -> list[Tensor]:
        return [grid.get_buffer(name).detach().double().cpu().abs() for name in names]

    if hasattr(layer, "to_s2"):
        there, back = (
            torch.einsum("am,mbi->bai", *constants(grid, "sha", "shb")).flatten(0, 1)
            for grid in (layer.to_s2, layer.from_s2)
        )
    else:
        there, back, weights = *constants(layer.grid_in, "D"), *constants(layer.grid_out, "D", "qw")
        there = (there / there.shape[-1] ** 0.5).flatten(0, 2)
        back = (back * weights[:, None, None] * back.shape[-1] ** 0.5).flatten(0, 2)
    return there.T, back


#: Where a function is looked at, in parts of the largest argument.
_WITHIN = (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)


def _bound_within(act: Any, x: Tensor, count: bool) -> Tensor:
    """A function whose value and first two derivatives have the sizes of f(v)'s, v a sum of terms of size x."""
    step, most = x - x.detach(), x.detach()
    if count:  # of all points together the roundings of one argument and one function, for these are of each
        return (1 + (_PER_FUNCTION + most) / x.shape[-1]) * step.exp()
    each = [_derivatives(act.f, part * most, 3) for part in _WITHIN]
    largest = [torch.stack(values).amax(0) for values in zip(*each, strict=True)]
    factor = abs(float(act.cst))
    value, first, second = (factor * (largest[k] + (k > 0) + largest[k + 1] * most) for k in range(3))
    return value + first * step + second * step.square() / 2


def _replayed(module: nn.Module, x: Tensor) -> Tensor:
    """A call of a module that draws random numbers: torch's generator is reset to the same numbers."""
    kind = x.device.type
    with torch.random.fork_rng([] if kind == "cpu" else [x.device], device_type="cuda" if kind == "cpu" else kind):
        return call(module, x)


class _InMode(nn.Module):
    """Calls a module past its hooks, in training or not, whatever it is in."""

    def __init__(self, module: nn.Module, training: bool) -> None:
        super().__init__()
        self.module, self.mode = module, training

    def forward(self, x: Tensor) -> Tensor:
        module, before = self.module, self.module.training
        module.training = self.mode
        try:
            found = call(module, x)
        finally:
            module.training = before
        buffers = vars(module)["_buffers"]
        running = [buffers[name] for name in _RUNNING if self.mode and buffers.get(name) is not None]
        return torch.cat([found.reshape(-1), *running])


#: Running statistics, of which copies are computed with.
_RUNNING = ("running_mean", "running_var")


def batch_norm_probes(original: Any, replacement: AcceleratedBatchNorm, rows: int) -> list[Probe]:
    """Probes in training and in evaluation, the current mode first: the results, then the running statistics."""
    modes = (True,) if original.instance else (original.training, not original.training)
    return [_batch_norm(original, replacement, rows, training) for training in modes]


def _batch_norm(original: Any, replacement: AcceleratedBatchNorm, rows: int, training: bool) -> Probe:
    irreps = as_irreps(original.irreps)
    samples = original.instance or original.reduce == "max"
    operands = {"x": draw("x", *((rows, 3) if samples else (rows,)), irreps.dim)}
    own = {name: p for name, p in original._parameters.items() if p is not None}
    operands |= {name: draw(name, *p.shape) for name, p in own.items()}
    buffers = {name: draw(name, *b.shape) for name, b in original._buffers.items() if b is not None}
    if "running_var" in buffers:
        buffers["running_var"] = buffers["running_var"].abs() + 0.5

    def run(module: nn.Module) -> Callable[[Operands], Tensor]:
        def fn(o: Operands) -> Tensor:
            state = {
                **{name: o[name] for name in own},
                **{name: b.to(o["x"], copy=True) for name, b in buffers.items()},
            }
            given = {f"module.{name}": value for name, value in state.items()}
            found: Tensor = torch.func.functional_call(_InMode(module, training), given, (o["x"],))
            return found

        return fn

    def sized(count: bool) -> Callable[[Operands], Tensor]:
        return lambda o: _batch_norm_size(original, training, operands["x"], buffers, o, count)

    return Probe(operands, run(original), run(replacement), sized(False), sized(True))


def _batch_norm_size(layer: Any, training: bool, exact: Tensor, buffers: Operands, o: Operands, count: bool) -> Tensor:
    """Sizes of the terms, or their number: x and mean, the squares of both, and the inverse root of those.

    Args:
        layer: e3nn's.
        training: The mode.
        exact: The features with their signs, of which variances are.
        buffers: Running statistics, with their signs.
        o: Absolute values, or ones.
        count: Whether ones are given.
    """
    lead, own = exact.shape[:-1], not layer.instance and not training
    batch, start, scalar, copy = exact.shape[0], 0, 0, 0
    found, means, variances = [], [], []
    keep, new = (1.0, 1.0) if count else (1 - layer.momentum, layer.momentum)
    for mul, ir in as_irreps(layer.irreps):
        stop = start + mul * ir.dim
        x, signed = (t[..., start:stop].reshape(batch, -1, mul, ir.dim) for t in (o["x"], exact))
        start = stop
        numbers = slice(scalar, scalar + mul)
        if ir.is_scalar():
            scalar += mul
            if own:
                kept = buffers["running_mean"][numbers]
                mean, value = (torch.ones_like(kept) if count else kept.abs())[:, None], kept[:, None]
            else:
                axes = (1,) if layer.instance else (0, 1)
                terms = x.shape[1] if layer.instance else batch * x.shape[1]
                mean = x.sum(axes, keepdim=True) / (1 if count else terms)
                value = signed.mean(axes, keepdim=True)
                means.append(mean.reshape(-1)[:mul])
            x, signed = x + mean, signed - value
        if own:
            kept = buffers["running_var"][copy : copy + mul]
            size, value = torch.ones_like(kept) if count else kept, kept
        else:
            size, value = (_statistic(layer, t.square(), k) for k, t in enumerate((x, signed)))
            if count:
                size = _statistic(layer, x.square(), 2)
            variances.append(size.reshape(-1)[:mul])
        inverse = _inverse_root(size, value + layer.eps, count)
        if "weight" in o:
            inverse = inverse * o["weight"][copy : copy + mul]
        copy += mul
        y = x * inverse.reshape(-1, 1, mul, 1)
        if "bias" in o and ir.is_scalar():
            y = y + o["bias"][numbers][:, None]
        found.append(y.reshape(*lead, -1))
    result = [torch.cat([o["x"].narrow(-1, 0, 0), *found], -1).reshape(-1)]
    if training and not layer.instance:
        for name, parts in zip(_RUNNING, (means, variances), strict=True):
            kept = torch.ones_like(buffers[name]) if count else buffers[name].abs()
            result.append(keep * kept + new * torch.cat([o["x"].new_zeros(0), *parts]).detach())
    return torch.cat(result)


def _statistic(layer: Any, squares: Tensor, kind: int) -> Tensor:
    """The statistic of squares ``[batch, samples, mul, dim]`` of each copy: 0 for sizes, 1 for itself, 2 for a count.

    The size of a largest one is the sum of all, for signs decide which it is.
    """
    norm = squares.sum(3) if kind == 2 or layer.normalization == "norm" else squares.mean(3)
    if layer.reduce == "max":
        norm = norm.max(1).values if kind == 1 else norm.sum(1)
    else:
        norm = norm.sum(1) if kind == 2 else norm.mean(1)
    if layer.instance:
        return norm
    return norm.sum(0) if kind == 2 else norm.mean(0)


def _inverse_root(size: Tensor, value: Tensor, count: bool) -> Tensor:
    """The inverse root of a value and its first two derivatives, with an allowance for roundings."""
    step = size - size.detach()
    if count:
        return size.detach() * step.exp()
    root, share = value.rsqrt(), size.detach() / value
    first, second = (0.5 + 0.75 * share) * root / value, (0.75 + 1.875 * share) * root / value.square()
    return root * (1 + 0.5 * share) + first * step + second * step.square() / 2
