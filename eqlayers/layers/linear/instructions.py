"""Instructions and biases of a linear map: reading, checking and normalising them, exactly as e3nn does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.program import Slot

from ...core.checks import check_flag, check_integer, check_items, is_integer
from ...core.errors import ConfigError, IndexRangeError, IrrepsError


class LinearInstruction(NamedTuple):
    """One path of a linear map, with e3nn's fields; a bias has ``i_in = -1``."""

    i_in: int
    i_out: int
    path_shape: tuple[int, ...]
    path_weight: float


class LinearSlices(NamedTuple):
    """The slice of the flat vector with the weights of one instruction, and the shape of the matrix; e3nn's fields."""

    slice_1D: slice
    shape_2D: tuple[int, ...]


def read_linear(
    irreps_in: Irreps, irreps_out: Irreps, instructions: Any, path_normalization: str, channels: int
) -> list[LinearInstruction]:
    """Check pairs ``(i_in, i_out)`` and give each its coefficient; None stands for all pairs of equal irreps.

    ``channels`` is the length of the axis ``f_in`` that is summed over, 1 without one. IrrepsError for irreps that
    differ or entries that are no pair; IndexRangeError for an index out of range.
    """
    if instructions is None:
        instructions = [
            (i, o)
            for i, (_, ir_in) in enumerate(irreps_in)
            for o, (_, ir_out) in enumerate(irreps_out)
            if ir_in == ir_out
        ]
    what, fix = "a list of pairs (i_in, i_out) of groups, or None for all", "Pass a list, also for one pair."
    items = check_items("instructions", instructions, what, fix, IrrepsError)
    pairs = [tuple(pair) if isinstance(pair, Sequence) else (pair,) for pair in items]
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not all(is_integer(index) for index in pair):
            raise IrrepsError(
                f"instruction {number} must be a pair (i_in, i_out) of groups, got {pair}. Pass a list of such pairs."
            )
        i, o = pair
        if not (0 <= i < len(irreps_in) and 0 <= o < len(irreps_out)):
            raise IndexRangeError(
                f"instruction {number} must name groups (i_in < {len(irreps_in)}, i_out < {len(irreps_out)}), "
                f"got {(i, o)}. Count irreps groups, not single irreps."
            )
        if irreps_in[i].ir != irreps_out[o].ir:
            raise IrrepsError(
                f"instruction {number} must connect equal irreps, got {irreps_in[i].ir} -> "
                f"{irreps_out[o].ir}. A linear map that mixes irreps is not equivariant: drop it."
            )
    muls = [(irreps_in[i].mul, irreps_out[o].mul) for i, o in pairs]
    out = []
    for (i, o), shape in zip(pairs, muls, strict=True):
        muls_in = [m for (_, other), (m, _) in zip(pairs, muls, strict=True) if other == o]
        fan = sum(muls_in) if path_normalization == "element" else len(muls_in) * shape[0]
        fan *= channels
        out.append(LinearInstruction(i, o, shape, (fan or 1) ** -0.5))
    return out


def check_channels(f_in: int | None, f_out: int | None) -> None:
    """Raise ConfigError unless both lengths of the channel axis before the features are counts, or both are None."""
    if (f_in is None) != (f_out is None):
        raise ConfigError(
            f"f_in and f_out must be given together, got {f_in} and {f_out}. "
            f"Give both, 1 for an axis to be summed or made."
        )
    for name, length in (("f_in", f_in), ("f_out", f_out)):
        if length is not None:
            check_integer(name, length, 1, what="a number of channels or None")


def read_biases(irreps_out: Irreps, biases: bool | Sequence[bool] | None) -> list[bool]:
    """One flag per irreps group: whether it gets a bias; IrrepsError for a bias on irreps other than 0e."""
    if biases is None or isinstance(biases, (str, bytes)) or not isinstance(biases, Iterable) or np.ndim(biases) == 0:
        for_all = biases is not None and check_flag("biases", biases)
        return [for_all and ir.is_scalar() for _, ir in irreps_out]
    items = check_items("biases", biases, "a flag or a list of flags", "Pass biases=True for all 0e groups.")
    flags = [check_flag(f"biases[{i}]", b) for i, b in enumerate(items)]
    wrong = [str(ir) for flag, (_, ir) in zip(flags, irreps_out, strict=False) if flag and not ir.is_scalar()]
    if len(flags) != len(irreps_out) or wrong:
        raise IrrepsError(
            f"biases must be a flag, or {len(irreps_out)} flags, True for 0e groups only (another bias "
            f"breaks equivariance), got {flags} for {irreps_out}. Pass biases=True for all 0e groups."
        )
    return flags


def weight_slices(instructions: Sequence[LinearInstruction]) -> list[LinearSlices]:
    """Slices of the weights of all instructions in the flat vectors, biases after weights, as e3nn orders them."""
    shapes = [ins.path_shape for ins in instructions]
    bounds = pairwise(accumulate(map(math.prod, shapes), initial=0))
    return [LinearSlices(slice(*ends), shape) for ends, shape in zip(bounds, shapes, strict=True)]


def mixed(block: Tensor, matrix: Tensor, slot: Slot, shared: bool, further: bool, layout: str) -> Tensor:
    """``[n(, f), mul * dim]`` times the matrix ``[(n, )(f, g, )mul, w]`` of a path, for each component of the irrep.

    Shared matrices have no axis n; ``further``: whether there are channel axes f and g before the features.
    """
    ir_mul, shape = layout == "ir_mul", (slot.dim, slot.mul) if layout == "ir_mul" else (slot.mul, slot.dim)
    if shared and not further:
        if slot.dim == 1:
            return block @ matrix
        # one product: with a matrix that needs no gradient torch would make one per sample, many times slower
        block = block.reshape(block.shape[0], *shape)  # unflatten goes through Python
        rows = (block if ir_mul else block.mT).reshape(block.shape[0] * slot.dim, slot.mul) @ matrix
        return rows if ir_mul else rows.reshape(block.shape[0], slot.dim, rows.shape[1]).mT
    f, g = ("f", "g") if further else ("", "")
    n = "" if shared else "n"
    inner, outer = ("du", "dw") if ir_mul else ("ud", "wd")
    return torch.einsum(f"n{f}{inner},{n}{f}{g}uw->n{g}{outer}", block.unflatten(-1, shape), matrix)


def with_bias(y: Tensor, bias: Tensor, flags: Sequence[bool], slots: Sequence[Slot]) -> Tensor:
    """Results y plus the biases of the groups that have a flag."""
    parts, start = [], 0
    for flag, slot in zip(flags, slots, strict=True):
        size = slot.mul * slot.dim
        parts.append(bias.narrow(-1, start, size) if flag else bias.new_zeros(*bias.shape[:-1], size))
        start += size if flag else 0
    return y + torch.cat(parts, -1).to(y.dtype)  # of another dtype under autocast
