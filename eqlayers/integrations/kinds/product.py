"""Tensor products, tensor squares and linear maps of e3nn, whose code e3nn generates."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from ...e3nn_compat.state_dict import exact_symbols, has_channel_axes
from ...irreps.algebra import as_irreps
from ...nn import Linear, TensorProduct, TensorSquare
from ..replacement import Operands, Probe, Replacement, Rule, call, draw, part_if
from ..structure import base_of, hooks_inside, is_theirs, refuse_changed

_COMMON = ("irreps_out", "instructions", "weight_numel", "shared_weights", "internal_weights", "output_mask")
_PRODUCT = ("irreps_in1", "irreps_in2", *_COMMON, "_compiled_main_left_right")
_LINEAR = ("irreps_in", *_COMMON, "_compiled_main")
#: Copies in the second input of 'uvw' paths up to which one kernel is faster than e3nn's matrix products: measured on a
#: CPU, from 3 to 10 times at 2 to 8 copies, about equal at 16, half as fast at 32.
DENSE = 16
#: Whether a module is of e3nn's class of that name, or of a class derived from it.
is_product = partial(is_theirs, name="TensorProduct", attributes=_PRODUCT)
is_linear = partial(is_theirs, name="Linear", attributes=_LINEAR)


def refuse_product(module: nn.Module) -> str | None:
    """Why an e3nn product cannot be replaced, or None."""
    return _refuse_generated(module, "TensorProduct", ("weight", "output_mask")) or _refuse_dense(module)


def _refuse_generated(module: nn.Module, name: str, needed: tuple[str, ...]) -> str | None:
    """Why a layer whose code e3nn generates cannot be replaced, or None."""
    code = [child for child in module._modules if child.startswith("_compiled_main")]
    if (reason := refuse_changed(module, name, needed, code)) is not None:
        return reason
    return "has hooks on its generated code" if hooks_inside(module) else None


def _refuse_dense(module: Any) -> str | None:
    """Why a product would not be faster, or None: with many copies in its second input it is a matrix product."""
    copies = [ins.path_shape[1] for ins in module.instructions if getattr(ins, "connection_mode", "") == "uvw"]
    if max(copies, default=0) <= DENSE:
        return None
    return f"contracts {max(copies)} copies in its second input, which e3nn's matrix products do faster"


def _refuse_linear(module: nn.Module) -> str | None:
    """Why an e3nn linear map cannot be replaced, or None."""
    if (reason := _refuse_generated(module, "Linear", ("weight", "bias", "output_mask"))) is not None:
        return reason
    return "has channel axes (f_in, f_out), whose lengths e3nn does not keep" if has_channel_axes(module) else None


class ProductReplacement(Replacement):
    """Mixin of products, and of layers with a product as the submodule of name ``_product``."""

    _product: ClassVar[str] = ""
    _inputs: ClassVar[tuple[str, ...]] = ("x", "y")  # of a product

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Random operands of a product for ``forward`` and, if e3nn compiled it, for ``right``."""
        if self._product:
            return super().probes(original, rows)
        operands = draw_operands(original, rows, rows, self._inputs)

        def run(module: nn.Module, o: Operands) -> Tensor:
            return call(module, *(o[name] for name in self._inputs), o.get("weight"))

        def right(module: Any, o: Operands) -> Tensor:
            return type(module).right(module, o["y"], o.get("weight"))

        probes = [Probe(operands, run)]
        if getattr(original, "_did_compile_right", False):
            probes.append(Probe({name: value for name, value in operands.items() if name != "x"}, right, "right(), "))
        return probes

    def exact_constants(self, original: Any) -> Operands:
        """Wigner 3j symbols of the product in float64."""
        symbols = exact_symbols(original.get_submodule(self._product))
        return {f"{self._product}.{name}".removeprefix("."): value for name, value in symbols.items()}

    def restore(self) -> nn.Module:
        """The original; a product inside of it has the Parameters of the product inside of this module."""
        if not self._product:
            return super().restore()
        product: Any = self.get_submodule(self._product)
        product.restore()
        return self._give_back()


class AcceleratedTensorProduct(ProductReplacement, TensorProduct):
    """Replacement of an ``e3nn.o3.TensorProduct`` or of a subclass with the same ``forward(x, y, weight)``."""


class AcceleratedTensorSquare(ProductReplacement, TensorSquare):
    """Replacement of an ``e3nn.o3.TensorSquare``."""

    _inputs = ("x",)


class AcceleratedLinear(Replacement, Linear):
    """Replacement of an ``e3nn.o3.Linear``."""

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs for the comparison with the original."""
        dim = as_irreps(original.irreps_in).dim
        lead = () if original.shared_weights else (rows,)
        operands = {"x": draw("x", rows, dim)}
        for name, numel in (("weight", original.weight_numel), ("bias", original.bias_numel)):
            if numel:
                operands[name] = draw(name, *lead, numel)

        def run(module: nn.Module, o: Operands) -> Tensor:
            return call(module, o["x"], o.get("weight"), o.get("bias"))

        # e3nn's products compare the widths, this does not
        wider = operands | {"x": draw("x", rows, dim + 1)}
        return [Probe(operands, run, misfit=wider)]


def _build(module: nn.Module, backend: str | None) -> Replacement:
    """The replacement of a tensor square or of another product."""
    square = base_of(module, "TensorSquare") is not None
    return (AcceleratedTensorSquare if square else AcceleratedTensorProduct).of(module, backend)


RULES = (
    Rule("product", part_if(is_product), refuse_product, _build),
    Rule("linear", part_if(is_linear), _refuse_linear, AcceleratedLinear.of),
)


def draw_operands(product: Any, rows: int, nodes: int, names: tuple[str, ...] = ("x", "y")) -> Operands:
    """Random operands of a product or convolution: x of nodes, y of rows (edges), and weights, if it has any."""
    sizes = {"x": (nodes, as_irreps(product.irreps_in1).dim), "y": (rows, as_irreps(product.irreps_in2).dim)}
    operands = {name: draw(name, *sizes[name]) for name in names}
    lead = () if product.shared_weights else (rows,)
    weighted = product.weight_numel or nodes != rows  # a convolution takes weights, be they none
    return operands | ({"weight": draw("weight", *lead, product.weight_numel)} if weighted else {})
