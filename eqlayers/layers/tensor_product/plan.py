"""The plan of a tensor product, for all backends: layouts, and all paths as one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.forms.program import Form
from ...irreps.algebra import read_all_irreps
from ...irreps.instructions import Instruction, read_final
from ...irreps.layout import FlatLayout
from .lower import tensor_product_program
from .scalars import split_scalars


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
        reads: Whether there is a path at all, if only one of coefficient zero; without, the result is a constant.
        weight_numel: Number of weights.
        dense: The form of the paths that are matrix products where one set of weights serves all samples; None without
            such paths.
        rest: The plan of all others, if there are such paths.

    Raises:
        IrrepsError, ConfigError: Irreps, instructions or a layout of another kind.

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
        return ProductPlan, (self.irreps, self.instructions, self.layout)  # a process that loads it knows it by its key

    def __repr__(self) -> str:
        in1, in2, out = self.irreps
        return f"ProductPlan({in1} x {in2} -> {out} | {self.paths} paths | {self.weight_numel} weights | {self.layout})"

    def __deepcopy__(self, memo: dict[int, object]) -> ProductPlan:
        return self
