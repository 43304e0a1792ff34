"""Rotations of features as programs: by their matrices, or about the polar axis by angles."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from e3nn.o3 import Irreps

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...irreps.layout import slots_of
from .blocks import blocks_dim, blocks_start


@lru_cache(maxsize=256)
def rotation_program(irreps: Irreps, lmax: int, layout: str, transposed: bool, parities: bool) -> Program:
    """Every irreps group times its matrix: x the features, y the flat blocks to degree ``lmax``, no weights.

    Transposed matrices rotate back. With ``parities`` y has the blocks twice, for even irreps and then for odd ones.
    """
    width, paths = blocks_dim(lmax), []
    for slot, (mul, ir) in zip(slots_of(irreps), irreps, strict=True):
        block = Slot(blocks_start(ir.l) + (width if parities and ir.p == -1 else 0), 1, ir.dim**2)
        terms = []
        for k, i in np.ndindex(ir.dim, ir.dim):
            index = i * ir.dim + k if transposed else k * ir.dim + i
            terms.append((i, index, k, 1.0))
        if mul:
            paths.append(Path(slot, block, slot, None, (Axis(mul, x=1, z=1),) if mul > 1 else (), tuple(terms)))
    return Program(tuple(paths), (irreps.dim, width * (1 + parities), 0, irreps.dim), layout)


@lru_cache(maxsize=256)
def turn_program(irreps: Irreps, lmax: int, layout: str) -> Program:
    r"""Rotations about the polar axis: y is :math:`1, \cos\alpha, \sin\alpha, \cos 2\alpha, \dots` to ``lmax``."""
    paths, angles = [], Slot(0, 1, 2 * lmax + 1)
    for slot, (mul, ir) in zip(slots_of(irreps), irreps, strict=True):
        terms = [(ir.l, 0, ir.l, 1.0)]
        for m in range(1, ir.l + 1):
            plus, minus, cos, sin = ir.l + m, ir.l - m, 2 * m - 1, 2 * m
            terms += [(plus, cos, plus, 1.0), (minus, sin, plus, -1.0), (plus, sin, minus, 1.0)]
            terms.append((minus, cos, minus, 1.0))
        if mul:
            paths.append(Path(slot, angles, slot, None, (Axis(mul, x=1, z=1),) if mul > 1 else (), tuple(terms)))
    return Program(tuple(paths), (irreps.dim, 2 * lmax + 1, 0, irreps.dim), layout)


@lru_cache(maxsize=64)
def matrix_indices(irreps: Irreps, layout: str) -> np.ndarray:
    """Indices ``[dim * dim]`` of the entries of the full matrix in the blocks of even irreps, of odd ones, and a 0.

    Example:
        >>> matrix_indices(Irreps("2x0e + 1x0o"), "mul_ir").tolist()
        [0, 2, 2, 2, 0, 2, 2, 2, 1]
    """
    width = blocks_dim(max((ir.l for _, ir in irreps), default=0))
    out = np.full((irreps.dim, irreps.dim), 2 * width, dtype=np.int64)
    for slot, (mul, ir) in zip(slots_of(irreps), irreps, strict=True):
        block = blocks_start(ir.l) + (width if ir.p == -1 else 0) + np.arange(ir.dim**2).reshape(ir.dim, ir.dim)
        for u in range(mul):
            if layout == "mul_ir":
                columns = slot.start + u * ir.dim + np.arange(ir.dim)
            else:
                columns = slot.start + u + mul * np.arange(ir.dim)
            out[np.ix_(columns, columns)] = block
    return out.reshape(-1)
