"""Random inputs for a pair of modules, how to call them, and copies of them in float64."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..layers.base.module import EquivariantModule

Operands = dict[str, Tensor]
#: Nodes of the small graph; one has no edges.
NODES = 4


@dataclass(frozen=True)
class Probe:
    """Operands of a module and its replacement, and the calls of both.

    Attributes:
        operands: Random values, float64 on the CPU.
        run: Results of either module, or of a copy of it.
        prefix: Names results of another function than the forward.
        misfit: Operands wider than the irreps say, which some layers take all the same; None where none does.
    """

    operands: Operands
    run: Callable[[nn.Module, Operands], Tensor]
    prefix: str = ""
    misfit: Operands | None = None

    def draw(self, name: str, shape: Sequence[int]) -> Tensor:
        """Random numbers that depend on this name alone."""
        return draw(name, *shape)


def draw(name: str, *shape: int) -> Tensor:
    """Normal random numbers, float64 on the CPU, that depend on name and shape alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def dtype_and_device(
    module: nn.Module, default: tuple[torch.dtype, torch.device] | None = None
) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the module's floating-point tensors; torch's default on the CPU if it has no numbers."""
    tensors = [
        t
        for t in [*module.parameters(), *module.buffers()]
        if not is_lazy(t) and not t.is_meta and t.is_floating_point()
    ]
    like = max(tensors, key=lambda t: t.numel(), default=None)
    if like is None:
        return default or (torch.get_default_dtype(), torch.device("cpu"))
    return like.dtype, like.device


def call(module: nn.Module, *args: Any) -> Tensor:
    """The forward of a module past its hooks."""
    result: Tensor = type(module).forward(module, *args)
    return result


class _PastHooks(nn.Module):
    def __init__(self, module: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *args: Any) -> Tensor:
        return self.function(self.module, *args)


def call_with(module: nn.Module, state: Operands, *args: Any, function: Callable[..., Tensor] = call) -> Tensor:
    """:func:`call`, or another function of the module, with other parameters and buffers."""
    named = {f"module.{name}": value for name, value in state.items()}
    result: Tensor = torch.func.functional_call(_PastHooks(module, function), named, args)
    return result


# ---- copies in float64 -----------------------------------------------------------------------------------------------


def in_float64(modules: Sequence[nn.Module], constants: Operands) -> list[nn.Module]:
    """Copies in float64 on the CPU, without hooks, with these constants in the first; ours run in torch.

    Modules and attributes that are shared stay so: attributes of layers hold no numbers of their own.
    """
    known: dict[nn.Module, nn.Module] = {}
    with torch.no_grad():
        copies = [_in_float64(module, known) for module in modules]
        for name, buffer in copies[0].named_buffers():
            if name in constants:
                buffer.copy_(constants[name])
    return copies


def _in_float64(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in known:
        return known[module]
    inner = module._modules.get("_orig_mod") if hasattr(module, "_orig_mod") else None  # of torch.compile
    if inner is not None:
        new: Any = _in_float64(inner, known)
    elif isinstance(module, torch.jit.ScriptModule):
        new = copy.deepcopy(module).to("cpu", torch.float64)
    else:
        new = object.__new__(type(module))
        held = vars(new)
        held.update(vars(module))
        held.update((name, type(value)()) for name, value in vars(module).items() if name.endswith("_hooks"))
        held["_parameters"] = {n: None if p is None else nn.Parameter(_wide(p)) for n, p in module._parameters.items()}
        held["_buffers"] = {n: None if b is None else _wide(b) for n, b in module._buffers.items()}
        held["_modules"] = {n: None if m is None else _in_float64(m, known) for n, m in module._modules.items()}
        if isinstance(module, EquivariantModule):
            held["backend"] = "torch"
    known[module] = new
    return new


def _wide(tensor: Tensor) -> Tensor:
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", dtype, copy=True)
