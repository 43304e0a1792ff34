"""Random inputs for a pair of modules, and how to call them; with the sizes and the number of their terms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..e3nn_compat.state_dict import coefficient_error
from ..irreps.algebra import as_irreps
from ..irreps.instructions import Instruction
from ..testing.magnitude import linear_magnitude, product_magnitude
from .modules import (
    AcceleratedConvolution,
    AcceleratedLinear,
    AcceleratedMessages,
    AcceleratedScatter,
    AcceleratedTensorSquare,
)

Operands = dict[str, Tensor]
#: Nodes of the small graph; one has no edges.
NODES = 4


@dataclass(frozen=True)
class Probe:
    """One set of operands, and four functions of it.

    Attributes:
        operands: Random values, float64 on the CPU.
        theirs, mine: The original and the replacement.
        size, count: Sum and number of the terms of each result, given absolute values and ones.
        coefficient_error: Relative error of the original's coefficients, 0 if it is the rounding of its dtype.
        right: For products whose ``right`` was compiled: of dtype and device to ours, theirs, sizes and numbers.
        misfit: Operands wider than the irreps say, which some layers take all the same; None where none does.
    """

    operands: Operands
    theirs: Callable[[Operands], Tensor]
    mine: Callable[[Operands], Tensor]
    size: Callable[[Operands], Tensor]
    count: Callable[[Operands], Tensor]
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


def make_probe(original: nn.Module, replacement: nn.Module, rows: int) -> Probe:
    """Inputs of so many rows (samples, or edges of a small graph), and the functions of them."""
    if isinstance(replacement, AcceleratedLinear):
        return _linear(original, replacement, rows)
    return _product(original, replacement, rows)


def call(module: nn.Module, *args: Any) -> Tensor:
    """The forward of a module past its hooks."""
    result: Tensor = type(module).forward(module, *args)
    return result


def _product(original: Any, replacement: Any, rows: int) -> Probe:
    scatter = isinstance(replacement, AcceleratedScatter)
    fused = scatter or isinstance(replacement, (AcceleratedConvolution, AcceleratedMessages))
    product = original.tp if scatter else original
    irreps = (as_irreps(product.irreps_in1), as_irreps(product.irreps_in2), as_irreps(product.irreps_out))
    paths = [Instruction(*tuple(ins)) for ins in product.instructions]
    numel, shared = product.weight_numel, product.shared_weights
    operands = {"x": draw("x", NODES if fused else rows, irreps[0].dim)}
    square = isinstance(replacement, AcceleratedTensorSquare)
    if not square:
        operands["y"] = draw("y", rows, irreps[1].dim)
    if numel or fused:
        operands["weight"] = draw("weight", numel) if shared else draw("weight", rows, numel)
    edges = torch.arange(rows, device="cpu")
    src, dst = edges % (NODES - 1), (edges * 2 + 1) % (NODES - 1)

    def arguments(o: Operands) -> tuple[Tensor, Tensor, Tensor | None]:
        return o["x"], o["x"] if square else o["y"], o.get("weight")

    def theirs(o: Operands) -> Tensor:
        x, y, w = arguments(o)
        s, d = src.to(x.device), dst.to(x.device)
        if scatter:
            return call(original, x, y, w, d, s)
        if fused:
            messages = call(product, x.index_select(0, s), y, w)
            return messages.new_zeros(len(x), messages.shape[-1]).index_add(0, d, messages)
        return call(product, x, w) if square else call(product, x, y, w)

    def mine(o: Operands) -> Tensor:
        x, y, w = arguments(o)
        s, d = src.to(x.device), dst.to(x.device)
        if scatter:
            return call(replacement, x, y, w, d, s)
        if isinstance(replacement, AcceleratedMessages):
            return replacement.sums(x, y, w, s, d, len(x))
        if fused:
            return call(replacement, x, y, w, torch.stack([s, d]))
        return call(replacement, x, w) if square else call(replacement, x, y, w)

    def sized(count: bool) -> Callable[[Operands], Tensor]:
        fn = product_magnitude(irreps, paths, "cpu", count)

        def size(o: Operands) -> Tensor:
            x, y, w = arguments(o)
            w = x.new_zeros(0) if w is None else w
            if not fused:
                return fn(x, y, w)
            return x.new_zeros(len(x), irreps[2].dim).index_add(0, dst, fn(x.index_select(0, src), y, w))

        return size

    def right(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y, w = draw("y", rows, irreps[1].dim), operands.get("weight", torch.zeros(0, dtype=torch.float64, device="cpu"))
        given = (y.to(device, dtype), w.to(device, dtype) if numel else None)
        eye = torch.eye(irreps[0].dim, dtype=torch.float64, device="cpu").repeat(rows, 1)
        repeated = [t if t.ndim < 2 else t.repeat_interleave(irreps[0].dim, 0) for t in (y, w)]
        bounds = [
            product_magnitude(irreps, paths, "cpu", count)(eye, *(change(t) for t in repeated)).unflatten(0, (rows, -1))
            for count, change in ((False, torch.abs), (True, torch.ones_like))
        ]
        found = [type(m).right(m, *given).detach().double().cpu() for m in (replacement, original)]
        return found[0], found[1], bounds[0], bounds[1]

    compiled = not fused and getattr(product, "_did_compile_right", False)
    rounded = torch.finfo(torch.float32).eps if coefficient_error(product) else 0.0
    return Probe(operands, theirs, mine, sized(False), sized(True), rounded, right if compiled else None)


def _linear(original: Any, replacement: Any, rows: int) -> Probe:
    irreps: tuple[o3.Irreps, o3.Irreps] = (as_irreps(original.irreps_in), as_irreps(original.irreps_out))
    lead = () if original.shared_weights else (rows,)
    operands = {"x": draw("x", rows, irreps[0].dim)}
    if original.weight_numel:
        operands["weight"] = draw("weight", *lead, original.weight_numel)
    if original.bias_numel:
        operands["bias"] = draw("bias", *lead, original.bias_numel)

    def run(module: nn.Module) -> Callable[[Operands], Tensor]:
        return lambda o: call(module, o["x"], o.get("weight"), o.get("bias"))

    paths = [tuple(ins) for ins in original.instructions]
    size, count = (linear_magnitude(irreps, paths, counted) for counted in (False, True))
    return Probe(
        operands,
        run(original),
        run(replacement),
        lambda o: size(o["x"], o.get("weight"), o.get("bias")),
        lambda o: count(o["x"], o.get("weight"), o.get("bias")),
        misfit={
            **operands,
            "x": draw("x", rows, irreps[0].dim + 1),
        },  # e3nn's products compare the widths, this does not
    )
