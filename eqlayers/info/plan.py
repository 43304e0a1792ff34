"""What a tensor product is made of, whoever runs it: layouts, groups of paths for sparse products, one whole form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..algebra import read_all_irreps
from ..ops.form import Form
from .layout import FlatLayout
from .paths import Instruction, read_final
from .program import tensor_product_program
from .scalars import split_scalars
from .terms import PathGroup, group_paths

_plans: dict[str, ProductPlan] = {}


class ProductPlan:
    """A tensor product of irreps along instructions, prepared once.

    Args:
        irreps: Of in1, in2 and out.
        instructions: With their final coefficient in ``path_weight``.
        layout: 'mul_ir' or 'ir_mul', of all three.

    Attributes:
        layouts: Of in1, in2 and out.
        form: All paths as one program.
        groups: Paths that run together as sparse products, for backends that do not run whole forms.
        paths: Number of paths that contribute; without any the result is zero.
        reads: Whether there is a path at all, if only one of coefficient zero; without, the result is a constant.
        weight_numel: Number of weights.
        scalars: Paths that are matrix products where one set of weights serves all samples.
        rest: The plan of all other paths; None without such paths.

    Raises:
        IrrepsError, ConfigError: Irreps, instructions or a layout of another kind.

    Example:
        >>> from eqlayers import TensorProduct
        >>> TensorProduct("4x0e", "1o", "4x1o", [(0, 0, 0, "uvu", True)]).plan.weight_numel
        4
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
        self.groups: list[PathGroup] = group_paths(irreps, instructions, self.layouts)
        self.weight_numel = self.form.program.widths[2]
        self.scalars, others = split_scalars(irreps, instructions)
        self.rest: ProductPlan | None = ProductPlan(irreps, others, layout) if self.scalars else None
        _plans.setdefault(self.form.key, self)

    def __reduce__(self) -> tuple[type[ProductPlan], tuple[object, ...]]:
        return ProductPlan, (self.irreps, self.instructions, self.layout)  # a process that loads it knows it by its key

    def __deepcopy__(self, memo: dict[int, object]) -> ProductPlan:
        return self


def find_plan(key: str) -> ProductPlan:
    """A plan whose form has that key; all of them give the same product."""
    return _plans[key]
