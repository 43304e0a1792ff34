"""Batch normalization of e3nn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...irreps.algebra import as_irreps
from ...nn import BatchNorm
from ..replacement import FusedReplacement, Operands, Probe, Rule, call, call_with, draw, part_if
from ..structure import is_theirs, refuse_changed

#: Newer versions of e3nn also have ``include_bias``, and ``irs``, which says what has means.
_OPTIONS = ("eps", "momentum", "affine", "reduce", "instance", "normalization")
#: Running statistics, of which copies are computed with.
_RUNNING = ("running_mean", "running_var")


def is_batch_norm(module: Any) -> bool:
    """Whether a module is of e3nn's class ``BatchNorm``, or of a class derived from it."""
    kinds = "irs" if hasattr(module, "irs") else "is_scalar"
    return is_theirs(module, "BatchNorm", ("irreps", *_OPTIONS, *_RUNNING), ("running_var", "eps", "cat", kinds))


def _refuse(module: Any) -> str | None:
    """Why a batch normalization cannot be replaced, or None."""
    if (reason := refuse_changed(module, "BatchNorm", (), ("weight", "bias", *_RUNNING))) is not None:
        return reason
    groups = [(mul, ir.dim, ir.is_scalar()) for mul, ir in as_irreps(module.irreps)]
    if [tuple(one) for one in getattr(module, "irs", groups)] != groups:
        return "takes means of other irreps than the even scalars"
    return None


class AcceleratedBatchNorm(FusedReplacement, BatchNorm):
    """Replacement of an ``e3nn.nn.BatchNorm``, with the same weight and running statistics objects."""

    _settings = ("eps", "momentum")

    def __init__(self, original: Any, backend: str | None = None) -> None:
        options = {name: getattr(original, name) for name in _OPTIONS}
        include_bias = getattr(original, "include_bias", True)
        super().__init__(as_irreps(original.irreps), **options, include_bias=include_bias, backend=backend)
        self._parameters.update(original._parameters)
        self._buffers.update(original._buffers)

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Random operands in training and in evaluation mode, the current mode first."""
        modes = (True,) if original.instance else (original.training, not original.training)
        return [_probe(original, rows, training) for training in modes]


RULES = (Rule("norm", part_if(is_batch_norm), _refuse, AcceleratedBatchNorm.of),)


def _in_mode(module: nn.Module, training: bool, x: Tensor) -> Tensor:
    """Call a module in training or evaluation mode; the result and, in training, the new running statistics, flat."""
    before, module.training = module.training, training
    try:
        result = call(module, x)
    finally:
        module.training = before
    buffers = vars(module)["_buffers"]
    running = [buffers[name] for name in _RUNNING if training and buffers.get(name) is not None]
    return torch.cat([result.reshape(-1), *running])


def _probe(original: Any, rows: int, training: bool) -> Probe:
    """Random operands, parameters and running statistics, for calls in training or evaluation mode."""
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

    return Probe(operands, run)
