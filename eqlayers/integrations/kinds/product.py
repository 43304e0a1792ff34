"""Tensor products of e3nn, and its tensor square."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...e3nn_compat.state_dict import coefficient_error
from ...irreps.algebra import as_irreps
from ...irreps.instructions import Instruction
from ...nn import TensorProduct, TensorSquare
from ...testing.magnitude import Product, product_magnitude
from ..probes import Operands, Probe, call, draw
from ..replacement import Replacement
from ..structure import Rule, base_of, hooks_inside, is_theirs, part_if, refuse_changed

COMMON_ATTRIBUTES = ("irreps_out", "instructions", "weight_numel", "shared_weights", "internal_weights", "output_mask")
_ATTRIBUTES = ("irreps_in1", "irreps_in2", *COMMON_ATTRIBUTES, "_compiled_main_left_right")
#: Copies in the second input of 'uvw' paths up to which one kernel is faster than e3nn's matrix products: measured on a
#: CPU, from 3 to 10 times at 2 to 8 copies, about equal at 16, half as fast at 32.
DENSE = 16
#: Whether a module is e3nn's, or of a class derived from that.
is_product = partial(is_theirs, name="TensorProduct", attributes=_ATTRIBUTES)


def refuse_product(module: nn.Module) -> str | None:
    """Why an e3nn product must stay, or None."""
    return refuse_generated(module, "TensorProduct", ("weight", "output_mask")) or _refuse_dense(module)


def refuse_generated(module: nn.Module, name: str, needed: tuple[str, ...]) -> str | None:
    """Why a layer that calls code which e3nn generates must stay, or None."""
    code = [child for child in module._modules if child.startswith("_compiled_main")]
    if (reason := refuse_changed(module, name, needed, code)) is not None:
        return reason
    return "has hooks on its generated code" if hooks_inside(module) else None


def _refuse_dense(module: Any) -> str | None:
    """Why a product gains nothing here, or None: the more copies it contracts, the more it is a matrix product."""
    copies = [ins.path_shape[1] for ins in module.instructions if getattr(ins, "connection_mode", "") == "uvw"]
    if max(copies, default=0) <= DENSE:
        return None
    return f"contracts {max(copies)} copies in its second input, which e3nn's matrix products do faster"


class AcceleratedTensorProduct(Replacement, TensorProduct):
    """Replacement of an ``e3nn.o3.TensorProduct`` or of a subclass with the same ``forward(x, y, weight)``."""

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs for the comparison with the original."""
        return [_probe(original, self, rows, ("x", "y"))]


class AcceleratedTensorSquare(Replacement, TensorSquare):
    """Replacement of an ``e3nn.o3.TensorSquare``."""

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs for the comparison with the original."""
        return [_probe(original, self, rows, ("x",))]


def _build(module: nn.Module, backend: str | None) -> Replacement:
    square = base_of(module, "TensorSquare") is not None
    return (AcceleratedTensorSquare if square else AcceleratedTensorProduct).of(module, backend)


RULE = Rule("product", part_if(is_product), refuse_product, _build)


# ---- inputs ---------------------------------------------------------------------------------------------------------


def draw_operands(product: Any, rows: int, nodes: int, names: tuple[str, ...] = ("x", "y")) -> Operands:
    """Features of nodes, features of rows, and weights of a product, if it has any."""
    sizes = {"x": (nodes, as_irreps(product.irreps_in1).dim), "y": (rows, as_irreps(product.irreps_in2).dim)}
    operands = {name: draw(name, *sizes[name]) for name in names}
    lead = () if product.shared_weights else (rows,)
    weighted = product.weight_numel or nodes != rows  # a convolution takes weights, be they none
    return operands | ({"weight": draw("weight", *lead, product.weight_numel)} if weighted else {})


def magnitude_of(product: Any, count: bool) -> Product:
    """Sizes of the terms of a product, or their number."""
    irreps = [as_irreps(getattr(product, name)) for name in ("irreps_in1", "irreps_in2", "irreps_out")]
    return product_magnitude(irreps, [Instruction(*tuple(ins)) for ins in product.instructions], "cpu", count)


def rounded_to_float32(product: Any) -> float:
    """Relative error of coefficients that were rounded to float32; 0 if none was."""
    return torch.finfo(torch.float32).eps if coefficient_error(product) else 0.0


def _probe(original: Any, replacement: Any, rows: int, names: tuple[str, ...]) -> Probe:
    operands = draw_operands(original, rows, rows, names)

    def run(module: nn.Module, o: Operands) -> Tensor:
        return call(module, *(o[name] for name in names), o.get("weight"))

    def size(o: Operands, count: bool) -> Tensor:
        return magnitude_of(original, count)(o["x"], o[names[-1]], o.get("weight", o["x"].new_zeros(0)))

    def right(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        width, empty = as_irreps(original.irreps_in1).dim, torch.zeros(0, dtype=torch.float64, device="cpu")
        y, w = draw("y", rows, as_irreps(original.irreps_in2).dim), operands.get("weight", empty)
        arguments = (y.to(device, dtype), w.to(device, dtype) if original.weight_numel else None)
        eye = torch.eye(width, dtype=torch.float64, device="cpu").repeat(rows, 1)
        repeated = [t if t.ndim < 2 else t.repeat_interleave(width, 0) for t in (y, w)]
        sizes, terms = (
            magnitude_of(original, count)(eye, *(change(t) for t in repeated)).unflatten(0, (rows, -1))
            for count, change in ((False, torch.abs), (True, torch.ones_like))
        )
        mine, theirs = (type(m).right(m, *arguments).detach().double().cpu() for m in (replacement, original))
        return mine, theirs, sizes, terms

    compiled = getattr(original, "_did_compile_right", False)
    return Probe(operands, run, size, rounded_to_float32(original), right if compiled else None)
