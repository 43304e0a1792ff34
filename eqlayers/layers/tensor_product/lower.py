"""Programs of products of features, which kernels run in one call; the plan of a tensor product for all backends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from e3nn import o3

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...core.forms.description import Form
from ...irreps.algebra import read_all_irreps, wigner_3j
from ...irreps.instructions import MODES, Instruction, Mode, read_final
from ...irreps.layout import FlatLayout, slots_of
from .mixed import MixedPaths, can_split


def tensor_product_program(
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps], instructions: Sequence[Instruction], layout: str
) -> Program:
    """All paths of a tensor product as one program over flat rows; coefficients are final, in ``path_weight``."""
    slots = tuple(slots_of(part) for part in irreps)
    paths, offset = [], 0
    for ins in instructions:
        mode = MODES[ins.connection_mode]
        triple = (slots[0][ins.i_in1], slots[1][ins.i_in2], slots[2][ins.i_out])
        muls = tuple(slot.mul for slot in triple)
        terms = _terms(*((slot.dim - 1) // 2 for slot in triple), float(ins.path_weight))
        extents = mode.extents(*muls)
        if terms and 0 not in muls and 0 not in extents.values():
            axes = _axes(mode, extents, muls[0], ins.has_weight)
            paths.append(Path(*triple, offset if ins.has_weight else None, axes, terms))
        if ins.has_weight:
            offset += int(np.prod(ins.path_shape))
    return Program(tuple(paths), (irreps[0].dim, irreps[1].dim, offset, irreps[2].dim), layout)


def scale_program(irreps: o3.Irreps, scalars: o3.Irreps, norms: Sequence[float], layout: str) -> Program:
    """Every irreps group times its scalars and a constant norm: x the features, y the scalars, no weights.

    Scalars have a group of 0e for each group of irreps, with the same multiplicity or 1.
    """
    paths = []
    for slot, scalar, norm in zip(slots_of(irreps), slots_of(scalars), norms, strict=True):
        if slot.mul and slot.dim:
            axes = (Axis(slot.mul, x=1, y=int(scalar.mul > 1), z=1),) if slot.mul > 1 else ()
            paths.append(Path(slot, scalar, slot, None, axes, tuple((m, 0, m, float(norm)) for m in range(slot.dim))))
    return Program(tuple(paths), (irreps.dim, scalars.dim, 0, irreps.dim), layout)


def linear_program(
    irreps: tuple[o3.Irreps, o3.Irreps], paths: Sequence[tuple[int, int, float]], layout: str
) -> Program:
    """A matrix of weights for each pair of groups: x the features, y is 1, w the matrices, concatenated.

    Paths are (group of the features, group of the result, constant factor).
    """
    result, offset, slots = [], 0, [slots_of(part) for part in irreps]
    for i, k, factor in paths:
        x, z = slots[0][i], slots[1][k]
        if x.mul and z.mul:
            axes = (Axis(x.mul, x=1, w=z.mul), Axis(z.mul, w=1, z=1))
            terms = tuple((m, 0, m, factor) for m in range(x.dim))
            result.append(Path(x, Slot(0, 1, 1), z, offset, tuple(axis for axis in axes if axis.extent > 1), terms))
        offset += x.mul * z.mul
    return Program(tuple(result), (irreps[0].dim, 1, offset, irreps[1].dim), layout)


def basis_program(irreps: o3.Irreps, matrices: Sequence[np.ndarray], layout: str, layout_out: str) -> Program:
    """A constant matrix ``[2 l + 1, 2 l + 1]`` on the components of every copy: x the features, y is 1, no weights.

    The layouts of x and z may differ: to 'mul_ir' a block in 'ir_mul' is a row of blocks of one component each.
    """
    common = layout if layout == layout_out else "mul_ir"
    paths, unit = [], Slot(0, 1, 1)
    for slot, matrix in zip(slots_of(irreps), matrices, strict=True):
        axes = (Axis(slot.mul, x=1, z=1),) if slot.mul > 1 else ()
        terms_of: dict[tuple[Slot, Slot], list[tuple[int, int, int, float]]] = {}
        for k, i in np.argwhere(matrix != 0).tolist() if slot.mul else ():
            (x, column), (z, row) = _in_layout(slot, i, layout, common), _in_layout(slot, k, layout_out, common)
            terms_of.setdefault((x, z), []).append((column, 0, row, float(matrix[k, i])))
        paths += [Path(x, unit, z, None, axes, tuple(terms)) for (x, z), terms in terms_of.items()]
    return Program(tuple(paths), (irreps.dim, 1, 0, irreps.dim), common)


def _in_layout(slot: Slot, component: int, layout: str, common: str) -> tuple[Slot, int]:
    """Slot and component in the layout ``common`` of a component of ``slot`` in ``layout``."""
    return (slot, component) if layout == common else (Slot(slot.start + component * slot.mul, slot.mul, 1), 0)


def _axes(mode: Mode, extents: dict[str, int], mul: int, has_weight: bool) -> tuple[Axis, ...]:
    """One axis per letter of the mode; the steps are row-major in the letters of each operand."""

    def steps(letters: str, letter: str) -> int:
        if letter not in letters:
            return 0
        return int(np.prod([extents[c] for c in letters[letters.index(letter) + 1 :]], dtype=np.int64))

    axes = []
    for letter, extent in extents.items():
        weight = steps(mode.weight, letter) if has_weight else 0
        parts = (mode.first, mode.second, mode.out)
        x, y, z = (steps(part, letter) for part in parts)
        if letter == "q":
            axes.append(Axis(mul, 1, 1, weight, z, pairs=True))
        elif extent > 1 and (x, y, weight, z) != (0, 0, 0, 0):
            axes.append(Axis(extent, x, y, weight, z))
    return tuple(axes)


@lru_cache(maxsize=4096)
def _terms(l1: int, l2: int, l3: int, coefficient: float) -> tuple[tuple[int, int, int, float], ...]:
    """Nonzero products of the coefficient with the Wigner 3j symbols."""
    if coefficient == 0:
        return ()
    table = wigner_3j(l1, l2, l3) * coefficient
    return tuple((int(i), int(j), int(k), float(table[i, j, k])) for i, j, k in np.argwhere(table != 0))


#: Weights of a path of scalars alone, and copies in the second input of any path, from which on matrix products are
#: faster than one kernel on a CPU; measured, see docs/decisions/0009.
WEIGHTS = 1 << 15
COPIES = 24


def split_scalars(
    irreps: tuple[o3.Irreps, o3.Irreps, o3.Irreps], instructions: Sequence[Instruction]
) -> tuple[list[Instruction], list[Instruction]]:
    """Two lists of all instructions, for matrix products ([] for none) and for a kernel.

    Each list has the coefficient 0 for the paths that the other list computes.
    """
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
        mixed: All paths for GPUs if one set of weights serves all samples, where kernels cannot mix channels, or None.
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
        self.instructions = instructions = read_final(instructions)
        self.layout = layout
        self.layouts = FlatLayout(in1, layout), FlatLayout(in2, layout), FlatLayout(out, layout)
        self.form = Form(tensor_product_program(self.irreps, instructions, layout))
        self.paths = len(self.form.program.paths)
        self.reads = any(0 not in ins.path_shape for ins in instructions)
        self.weight_numel = self.form.program.widths[2]
        paths = self.form.program.paths
        self.mixed = MixedPaths(self.form.program) if can_split(paths) else None
        scalars, others = split_scalars(self.irreps, instructions)
        self.dense: Form | None = Form(tensor_product_program(self.irreps, scalars, layout)) if scalars else None
        self.rest: ProductPlan | None = ProductPlan(self.irreps, others, layout) if scalars else None

    def __reduce__(self) -> tuple[type[ProductPlan], tuple[object, ...]]:
        return ProductPlan, (self.irreps, self.instructions, self.layout)  # built again when it is loaded

    def __repr__(self) -> str:
        in1, in2, out = self.irreps
        return f"ProductPlan({in1} x {in2} -> {out} | {self.paths} paths | {self.weight_numel} weights | {self.layout})"

    def __deepcopy__(self, memo: dict[int, object]) -> ProductPlan:
        return self
