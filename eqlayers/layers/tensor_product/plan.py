"""The plan of a tensor product, for all backends: layouts, all paths as one form, and paths as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from e3nn import o3

from ...core.forms.program import Form
from ...irreps.algebra import read_all_irreps
from ...irreps.instructions import Instruction, read_final
from ...irreps.layout import FlatLayout
from .lower import tensor_product_program

#: Weights of a path of scalars alone, and copies in the second input of any path, from which on matrix products are
#: faster than one kernel on a CPU; measured, see docs/decisions/0009.
WEIGHTS = 1 << 15
COPIES = 24


def split_scalars(
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps], instructions: Sequence[Instruction]
) -> tuple[list[Instruction], list[Instruction]]:
    """Instructions that run as matrix products (or []) and the others; coefficients of the other list's paths are 0."""
    products = [_is_product(irreps, ins) for ins in instructions]
    if not any(products):
        return [], list(instructions)

    def only(dense: bool) -> list[Instruction]:
        pairs = zip(products, instructions, strict=True)
        return [ins if flag == dense else ins._replace(path_weight=0.0) for flag, ins in pairs]

    return only(True), only(False)


def _is_product(irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps], ins: Instruction) -> bool:
    size = math.prod(ins.path_shape)
    if ins.connection_mode != "uvw" or irreps[1][ins.i_in2].ir.l > 0 or not size or ins.path_weight == 0:
        return False
    return ins.path_shape[1] >= COPIES or (irreps[0][ins.i_in1].ir.l == 0 and size >= WEIGHTS)


class ProductPlan:
    """A tensor product of irreps along instructions, prepared once.

    Args:
        irreps: Of in1, in2 and out.
        instructions: With their final coefficient in ``path_weight``.
        layout: 'mul_ir' or 'ir_mul', of all three.

    Attributes:
        layouts: Of in1, in2 and out.
        form: All paths as one program.
        paths: Number of paths that contribute; without any the result is zero.
        reads: Whether there is any path, even with coefficient zero; without one the result is constant.
        weight_numel: Number of weights.
        dense: The form of the paths that are matrix products if one set of weights serves all samples, or None.
        rest: The plan of all other paths, if ``dense`` is a form.

    Example:
        >>> from eqlayers import TensorProduct
        >>> TensorProduct("4x0e", "1o", "4x1o", [(0, 0, 0, "uvu", True)]).plan.weight_numel
        4
        >>> TensorProduct("4x0e", "1o", "4x1o", [(0, 0, 0, "uvu", True)]).plan
        ProductPlan(4x0e x 1x1o -> 4x1o | 1 paths | 4 weights | mul_ir)
    """

    def __init__(self, irreps: Sequence[Any], instructions: Sequence[Instruction], layout: str) -> None:
        in1, in2, out = read_all_irreps(irreps, ("in1", "in2", "out"))
        self.irreps = in1, in2, out
        self.instructions = read_final(instructions)
        self.layout = layout
        irreps, instructions = self.irreps, self.instructions
        self.layouts = FlatLayout(in1, layout), FlatLayout(in2, layout), FlatLayout(out, layout)
        self.form = Form(tensor_product_program(irreps, instructions, layout))
        self.paths = len(self.form.program.paths)
        self.reads = any(0 not in ins.path_shape for ins in instructions)
        self.weight_numel = self.form.program.widths[2]
        scalars, others = split_scalars(irreps, instructions)
        self.dense: Form | None = Form(tensor_product_program(irreps, scalars, layout)) if scalars else None
        self.rest: ProductPlan | None = ProductPlan(irreps, others, layout) if scalars else None

    def __reduce__(self) -> tuple[type[ProductPlan], tuple[object, ...]]:
        return ProductPlan, (self.irreps, self.instructions, self.layout)  # built again when it is loaded

    def __repr__(self) -> str:
        in1, in2, out = self.irreps
        return f"ProductPlan({in1} x {in2} -> {out} | {self.paths} paths | {self.weight_numel} weights | {self.layout})"

    def __deepcopy__(self, memo: dict[int, object]) -> ProductPlan:
        return self
