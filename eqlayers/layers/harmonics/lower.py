r"""Spherical harmonics as formulas, in e3nn's real basis and normalisations; vectors, lengths and directions of edges.

The polar axis is y: :math:`Y_l(x, y, z)` equals the standard real harmonics, without the phase of Condon and Shortley,
at :math:`(z, x, y)`. With :math:`c_m + i s_m = (z + i x)^m` and monic Legendre polynomials :math:`p_l^m`,

.. math::
    Y_{l, m} = K_{lm}\, p_l^m\, c_m, \quad Y_{l, -m} = K_{lm}\, p_l^m\, s_m, \qquad
    p_l^m = y\, p_{l-1}^m - \frac{(l-1)^2 - m^2}{4 (l-1)^2 - 1}\, r^2\, p_{l-2}^m, \quad p_m^m = 1.

Sources: Bigi et al. 2023, arXiv:2302.08381 (sphericart: polynomials without angles or divisions); Varshalovich et al.
1988, section 5.2 (definition); e3nn, ``o3.spherical_harmonics`` (order, axes and normalisations).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from e3nn.o3 import Irreps

from eqlayers_kernels.forms.formula import Expression, Formula, formula

from ...core.checks import check_choice, check_integer, check_items, is_integer
from ...core.errors import IrrepsError
from ...core.forms.description import register_formula
from ...irreps.algebra import as_irreps
from ..base.columns import row_of

#: The largest degree whose values are compared with another definition.
LARGEST_DEGREE = 20
NORMALIZATIONS = ("integral", "component", "norm")
#: Shifts of the receiver of an edge into another cell: none; a vector; multiples of lattice vectors of one cell, or of
#: the cell of each node.
SHIFTS = ("none", "vector", "cell", "cells")


def read_degrees(irreps_out: Any, irreps_in: Any = None) -> tuple[tuple[int, ...], Irreps, Irreps]:
    """Degrees in the order of the argument, irreps of the vector, and irreps of the harmonics, as in e3nn.

    ``irreps_out`` is one degree, a list of degrees, or irreps with the parities of the vector's powers; ``irreps_in``
    is '1o' or '1e', or None for the one with these parities. Else IrrepsError or ConfigError.
    """
    irreps = None
    if not is_integer(irreps_out) and (isinstance(irreps_out, (str, Irreps)) or not _is_list(irreps_out)):
        irreps = as_irreps(irreps_out, "irreps_out")
        degrees = [ir.l for mul, ir in irreps for _ in range(mul)]
        if irreps_in is None and any(ir.l % 2 == 1 and ir.p == 1 for _, ir in irreps):
            irreps_in = "1e"
    else:
        degrees = [irreps_out] if is_integer(irreps_out) else list(irreps_out)
    what, fix = "a degree or several", f"{LARGEST_DEGREE} is the largest that is tested; 1 to 6 are usual."
    degrees = [check_integer("irreps_out", l, 0, LARGEST_DEGREE, what=what, fix=fix) for l in degrees]
    if not degrees:
        raise IrrepsError("irreps_out must hold at least one degree, got none. Pass '0e + 1o', a list or a number.")
    vector = as_irreps("1o" if irreps_in is None else irreps_in, "irreps_in")
    if vector not in (Irreps("1o"), Irreps("1e")):
        raise IrrepsError(
            f"irreps_in must be 1o or 1e, one vector, got {vector}. Pass '1o' for a difference of positions."
        )
    parity = vector[0].ir.p
    for _, ir in irreps or ():
        if ir.p != parity**ir.l:
            right = f"{ir.l}{'e' if parity**ir.l == 1 else 'o'}"
            raise IrrepsError(
                f"irreps_out must have the parities of the powers of irreps_in, {vector}, got {ir} in {irreps}. "
                f"Write {right}, or change irreps_in."
            )
    return tuple(degrees), vector, Irreps([(1, (l, parity**l)) for l in degrees]).simplify()


def _is_list(value: Any) -> bool:
    """Whether ``value`` is a list of degrees rather than of irreps."""
    items = check_items("irreps_out", value, "irreps, a degree or a list of degrees", "Pass '0e + 1o'.", IrrepsError)
    return not any(isinstance(item, (str, tuple, list)) or hasattr(item, "ir") for item in items)


@lru_cache(maxsize=256)
def harmonics_formula(degrees: tuple[int, ...], normalize: bool, normalization: str) -> Formula:
    """The formula from a vector to the harmonics of its direction (if ``normalize``) or of itself, degree by degree."""
    expr = Expression()
    x, y, z = (expr.load(0, i) for i in range(3))
    if normalize:
        inverse = expr.inverse_length(x, y, z)
        unit = [expr.multiply(part, inverse) for part in (x, y, z)]
    else:
        unit = [x, y, z]
    outputs = _harmonics(expr, unit, degrees, normalization)
    return register_formula(formula(expr, [row_of("vector", 3)], [row_of("harmonics", len(outputs))], [outputs]))


@lru_cache(maxsize=256)
def edge_formula(degrees: tuple[int, ...], normalization: str, shift: str, sign: int) -> Formula:
    """The formula from positions to vectors of edges, their lengths, directions and harmonics of directions.

    Operands are positions of senders and of receivers, and the shift (one of `SHIFTS`): 3 components, for
    'cell' in units of lattice vectors, which are a fourth operand of 9 components, vector by vector; for 'cells'
    the same with a row for each sender. ``sign`` is 1 for vectors from senders to receivers, -1 for the opposite ones.
    """
    expr = Expression()
    operands = [row_of("positions of senders", 3, "src"), row_of("positions of receivers", 3, "dst")]
    src, dst = ([expr.load(number, i) for i in range(3)] for number in range(2))
    vector = [expr.add(b, expr.scale(-1.0, a)) for a, b in zip(src, dst, strict=True)]
    if shift != "none":
        operands.append(row_of("shifts", 3))
        steps = [expr.load(2, i) for i in range(3)]
        if shift != "vector":
            operands.append(row_of("cell", 9, "one" if shift == "cell" else "src"))
            moved = [[expr.multiply(steps[i], expr.load(3, 3 * i + j)) for i in range(3)] for j in range(3)]
            steps = [expr.add(*parts) for parts in moved]
        vector = [expr.add(part, step) for part, step in zip(vector, steps, strict=True)]
    if sign < 0:
        vector = [expr.scale(-1.0, part) for part in vector]
    inverse = expr.inverse_length(*vector)
    unit = [expr.multiply(part, inverse) for part in vector]
    length = expr.add(*(expr.multiply(part, along) for part, along in zip(vector, unit, strict=True)))
    harmonics = _harmonics(expr, unit, degrees, normalization)
    results = [row_of("vectors", 3), row_of("lengths", 1), row_of("directions", 3), row_of("harmonics", len(harmonics))]
    return register_formula(formula(expr, operands, results, [vector, [length], unit, harmonics]))


def _harmonics(expr: Expression, vector: Sequence[int], degrees: Sequence[int], normalization: str) -> list[int]:
    """Nodes of the harmonics of a vector, in the order of the degrees.

    The squared length of a unit vector is computed, although it is 1: its rounding error is then the same in all terms.
    Without it, values of degree 6 in float32 have twice the error.
    """
    check_choice("normalization", normalization, NORMALIZATIONS)
    x, y, z = vector
    square = expr.add(*(expr.multiply(part, part) for part in (z, x, y)))
    largest = max(degrees)
    cosines, sines = _powers(expr, z, x, largest)
    known: dict[int, list[int]] = {l: [] for l in sorted(set(degrees))}
    columns = [_legendre(expr, y, m, largest, square) for m in range(largest + 1)]
    for l, nodes in known.items():
        above, below = [], []
        for m in range(l + 1):
            scaled = expr.scale(leading_factor(l, m, normalization), columns[m][l - m])
            above.append(expr.multiply(scaled, cosines[m]))
            below.append(expr.multiply(scaled, sines[m]))
        nodes += [*reversed(below[1:]), *above]
    return [node for l in degrees for node in known[l]]


def _powers(expr: Expression, real: int, imaginary: int, largest: int) -> tuple[list[int], list[int]]:
    """Real and imaginary parts of the powers of a complex number, from the zeroth."""
    reals, imaginaries = [expr.one], [expr.zero]
    minus = expr.scale(-1.0, imaginary)
    for _ in range(largest):
        c, s = reals[-1], imaginaries[-1]
        reals.append(expr.add(expr.multiply(real, c), expr.multiply(minus, s)))
        imaginaries.append(expr.add(expr.multiply(real, s), expr.multiply(imaginary, c)))
    return reals, imaginaries


def _legendre(expr: Expression, y: int, m: int, largest: int, square: int) -> list[int]:
    """Monic polynomials of degrees 0 to ``largest - m`` in y, homogeneous with the squared length."""
    polynomials = [expr.one, y]
    for l in range(m + 2, largest + 1):
        if l == m + 2:
            polynomials.append(expr.add(expr.multiply(y, y), expr.scale(-recursion_factor(l, m), square)))
        elif l == m + 3:
            inner = expr.scale(-recursion_factor(l, m) - recursion_factor(l - 1, m), square)
            polynomials.append(expr.multiply(y, expr.add(expr.multiply(y, y), inner)))
        else:
            last = expr.multiply(square, polynomials[-2])
            polynomials.append(expr.add(expr.multiply(y, polynomials[-1]), expr.scale(-recursion_factor(l, m), last)))
    return polynomials[: largest - m + 1]


def recursion_factor(l: int, m: int) -> float:
    """Factor of the Legendre polynomial of degree l - 2 in the recursion for degree l."""
    return ((l - 1) ** 2 - m**2) / (4 * (l - 1) ** 2 - 1)


def leading_factor(l: int, m: int, normalization: str) -> float:
    r"""K of the module's formula: :math:`(2l-1)!! \sqrt{(2 - \delta_{m0}) / ((l+m)!\,(l-m)!)}` for 'norm'."""
    odd = math.prod(range(1, 2 * l, 2))
    square = (1 if m == 0 else 2) * odd * odd / (math.factorial(l + m) * math.factorial(l - m))
    if normalization != "norm":
        square *= 2 * l + 1
    return math.sqrt(square / (4 * math.pi) if normalization == "integral" else square)
