"""Batch normalization of e3nn."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...irreps.algebra import as_irreps
from ...nn import BatchNorm
from ..probes import Operands, Probe, call, call_with, draw
from ..replacement import FusedReplacement
from ..structure import Rule, is_theirs, part_if, refuse_changed

#: Newer versions of e3nn also have ``include_bias``, and ``irs``, which says what has means.
_OPTIONS = ("eps", "momentum", "affine", "reduce", "instance", "normalization")
#: Running statistics, of which copies are computed with.
_RUNNING = ("running_mean", "running_var")


def is_batch_norm(module: Any) -> bool:
    """Whether it is e3nn's ``BatchNorm``, or of a class derived from it."""
    kinds = "irs" if hasattr(module, "irs") else "is_scalar"
    return is_theirs(module, "BatchNorm", ("irreps", *_OPTIONS, *_RUNNING), ("running_var", "eps", "cat", kinds))


def _refuse(module: Any) -> str | None:
    """Why a batch normalization must stay, or None."""
    if (reason := refuse_changed(module, "BatchNorm", (), ("weight", "bias", *_RUNNING))) is not None:
        return reason
    groups = [(mul, ir.dim, ir.is_scalar()) for mul, ir in as_irreps(module.irreps)]
    if [tuple(one) for one in getattr(module, "irs", groups)] != groups:
        return "takes means of other irreps than the even scalars"
    return None


class AcceleratedBatchNorm(FusedReplacement, BatchNorm):
    """Replacement of an ``e3nn.nn.BatchNorm``, with the same weight and running statistics objects."""

    _settings = ("eps", "momentum")

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        theirs: Any = original
        super().__init__(
            as_irreps(theirs.irreps),
            **{name: getattr(theirs, name) for name in _OPTIONS},
            include_bias=getattr(theirs, "include_bias", True),
            backend=backend,
        )
        self._parameters.update(theirs._parameters)
        self._buffers.update(theirs._buffers)

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Probes in training and in evaluation, the current mode first: the results, then the running statistics."""
        modes = (True,) if original.instance else (original.training, not original.training)
        return [_probe(original, rows, training) for training in modes]


RULE = Rule("norm", part_if(is_batch_norm), _refuse, AcceleratedBatchNorm.of)


# ---- inputs ---------------------------------------------------------------------------------------------------------


def _in_mode(module: nn.Module, training: bool, x: Tensor) -> Tensor:
    """The result in training or not, whatever mode the module is in, and the running statistics after training."""
    before, module.training = module.training, training
    try:
        result = call(module, x)
    finally:
        module.training = before
    buffers = vars(module)["_buffers"]
    running = [buffers[name] for name in _RUNNING if training and buffers.get(name) is not None]
    return torch.cat([result.reshape(-1), *running])


def _probe(original: Any, rows: int, training: bool) -> Probe:
    irreps = as_irreps(original.irreps)
    samples = original.instance or original.reduce == "max"
    operands = {"x": draw("x", *((rows, 3) if samples else (rows,)), irreps.dim)}
    parameters = {name: p for name, p in original._parameters.items() if p is not None}
    operands |= {name: draw(name, *p.shape) for name, p in parameters.items()}
    buffers = {name: draw(name, *b.shape) for name, b in original._buffers.items() if b is not None}
    if "running_var" in buffers:
        buffers["running_var"] = buffers["running_var"].abs() + 0.5

    def run(module: nn.Module, o: Operands) -> Tensor:
        state = {name: o[name] for name in parameters}
        state |= {name: b.to(o["x"], copy=True) for name, b in buffers.items()}
        return call_with(module, state, training, o["x"], function=_in_mode)

    return Probe(operands, run, partial(_size, original, training, operands["x"], buffers))


def _size(layer: Any, training: bool, exact: Tensor, buffers: Operands, o: Operands, count: bool) -> Tensor:
    """Sizes of the terms, or their number: x and mean, the squares of both, and the inverse root of those.

    The exact features and the buffers have their signs, which variances depend on; `o` has absolute values, or ones.
    """
    lead, kept_ones = exact.shape[:-1], not layer.instance and not training
    batch, start, scalar, copy = exact.shape[0], 0, 0, 0
    parts, means, variances = [], [], []
    keep, new = (1.0, 1.0) if count else (1 - layer.momentum, layer.momentum)
    for mul, ir in as_irreps(layer.irreps):
        stop = start + mul * ir.dim
        x, signed = (t[..., start:stop].reshape(batch, -1, mul, ir.dim) for t in (o["x"], exact))
        start = stop
        numbers = slice(scalar, scalar + mul)
        if ir.is_scalar():
            scalar += mul
            if kept_ones:
                kept = buffers["running_mean"][numbers]
                mean, value = (torch.ones_like(kept) if count else kept.abs())[:, None], kept[:, None]
            else:
                axes = (1,) if layer.instance else (0, 1)
                terms = x.shape[1] if layer.instance else batch * x.shape[1]
                mean = x.sum(axes, keepdim=True) / (1 if count else terms)
                value = signed.mean(axes, keepdim=True)
                means.append(mean.reshape(-1)[:mul])
            x, signed = x + mean, signed - value
        if kept_ones:
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
        parts.append(y.reshape(*lead, -1))
    result = [torch.cat([o["x"].narrow(-1, 0, 0), *parts], -1).reshape(-1)]
    if training and not layer.instance:
        for name, computed in zip(_RUNNING, (means, variances), strict=True):
            kept = torch.ones_like(buffers[name]) if count else buffers[name].abs()
            result.append(keep * kept + new * torch.cat([o["x"].new_zeros(0), *computed]).detach())
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
