"""Random inputs for a pair of modules, and how to call them; with the sizes and the number of their terms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Operands = dict[str, Tensor]
#: Nodes of the small graph; one has no edges.
NODES = 4


@dataclass(frozen=True)
class Probe:
    """Operands of a module and its replacement, the calls of both, and the sizes of the terms of their results.

    Attributes:
        operands: Random values, float64 on the CPU.
        run: Results of either module.
        size: Sum of the terms of each result, of absolute values; or their number, of ones and True.
        coefficient_error: Relative error of the original's coefficients, 0 if it is the rounding of its dtype.
        right: For products whose ``right`` was compiled: of dtype and device to ours, theirs, sizes and numbers.
        misfit: Operands wider than the irreps say, which some layers take all the same; None where none does.
    """

    operands: Operands
    run: Callable[[nn.Module, Operands], Tensor]
    size: Callable[[Operands, bool], Tensor]
    coefficient_error: float = 0.0
    right: Callable[[torch.dtype, torch.device], tuple[Tensor, Tensor, Tensor, Tensor]] | None = None
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
