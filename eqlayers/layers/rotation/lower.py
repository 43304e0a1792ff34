r"""Wigner D matrices as formulas, polynomials of unit quaternions in e3nn's real basis; rotations as programs.

With :math:`a = w + i y` and :math:`b = x - i z`, the rotation :math:`Y(\alpha) X(\beta) Y(\gamma)` has
:math:`a = \cos(\beta/2)\, e^{i(\alpha + \gamma)/2}` and :math:`b = \sin(\beta/2)\, e^{i(\alpha - \gamma)/2}`. For
:math:`m' \ge |m|`, up to signs,

.. math::
    e^{i(m'\alpha + m\gamma)}\, d^l_{m'm}(\beta) =
    \sqrt{\frac{(l+m')!\,(l-m')!}{(l+m)!\,(l-m)!}}\; a^{m'+m}\, b^{m'-m}\,
    P^{(m'-m,\, m'+m)}_{l-m'}(|a|^2 - |b|^2),

and others follow by symmetry. Jacobi polynomials P come from their recursion in l, homogeneous with
:math:`|a|^2 + |b|^2`. Nothing is divided and no angle is formed, so that all is smooth in the quaternion.

Sources: Varshalovich et al. 1988, section 4.3 (d as Jacobi polynomials); DLMF, section 18.9 (recursion); e3nn,
``o3.wigner_D`` (basis and signs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from e3nn.o3 import Irreps

from eqlayers_kernels.forms.formula import Expression, Formula, formula
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...core.checks import check_integer
from ...core.forms.description import register_formula
from ...irreps.layout import slots_of
from ..base.columns import row_of

#: The largest degree whose values are compared with another definition.
LARGEST_DEGREE = 12
#: Directions with a smaller y component use the second chart of edge frames. No frame is continuous everywhere.
#: No direction of a simple lattice has this y component, so directions in crystals are not near the seam.
SEAM = -0.37


def check_degree(lmax: int) -> int:
    """A degree from 0 to `LARGEST_DEGREE`, or ConfigError."""
    return check_integer("lmax", lmax, 0, LARGEST_DEGREE, fix=f"{LARGEST_DEGREE} is the largest that is tested.")


def blocks_start(l: int) -> int:
    """Start of the block of a degree among flat blocks: the length of the blocks of all lower degrees."""
    return l * (2 * l - 1) * (2 * l + 1) // 3


def blocks_dim(lmax: int) -> int:
    """Length of the flat blocks of degrees 0 to ``lmax``."""
    return blocks_start(lmax + 1)


@lru_cache(maxsize=64)
def wigner_formula(lmax: int) -> Formula:
    """The formula from a quaternion (w, x, y, z) to the Wigner D matrices of degrees 0 to ``lmax``, row-major."""
    expr = Expression()
    outputs = _blocks(expr, [expr.load(0, i) for i in range(4)], lmax)
    return register_formula(formula(expr, [row_of("quaternion", 4)], [row_of("blocks", len(outputs))], [outputs]))


@lru_cache(maxsize=64)
def frame_formula(lmax: int) -> Formula:
    """The formula from a vector and its chart (1 or 0) to the matrices that rotate its direction e to +y.

    The first chart is the shortest rotation, :math:`(1 + e_y, -e_z, 0, e_x)`, which there is for all but -y. The second
    is the shortest rotation to -y and then a half turn about x, :math:`(-e_z, 1 - e_y, e_x, 0)`, for all but +y.
    """
    expr = Expression()
    vector, first = [expr.load(0, i) for i in range(3)], expr.load(1, 0)
    inverse = expr.inverse_length(*vector)
    x, y, z = (expr.multiply(part, inverse) for part in vector)
    # the square of a unit vector, which is 1: of the zero vector it is 0, and then so is the quaternion
    one = expr.add(*(expr.multiply(part, part) for part in (x, y, z)))
    minus, second = expr.scale(-1.0, z), expr.add(expr.one, expr.scale(-1.0, first))
    charts = ((expr.add(one, y), minus, expr.zero, x), (minus, expr.add(one, expr.scale(-1.0, y)), x, expr.zero))
    parts = [expr.add(expr.multiply(first, p), expr.multiply(second, q)) for p, q in zip(*charts, strict=True)]
    outputs = _blocks(expr, parts, lmax)
    operands = [row_of("vectors", 3), row_of("chart", 1)]
    return register_formula(formula(expr, operands, [row_of("blocks", len(outputs))], [outputs]))


#: Two components of a quaternion -> indices of the entries of the matrix, row-major, in four times their
#: product, with signs; squares have an additional 1.
_PRODUCTS: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {
    (0, 0): ((0, 1.0), (4, 1.0), (8, 1.0)),
    (1, 1): ((0, 1.0), (4, -1.0), (8, -1.0)),
    (2, 2): ((0, -1.0), (4, 1.0), (8, -1.0)),
    (3, 3): ((0, -1.0), (4, -1.0), (8, 1.0)),
    (0, 1): ((7, 1.0), (5, -1.0)),
    (0, 2): ((2, 1.0), (6, -1.0)),
    (0, 3): ((3, 1.0), (1, -1.0)),
    (1, 2): ((3, 1.0), (1, 1.0)),
    (1, 3): ((2, 1.0), (6, 1.0)),
    (2, 3): ((7, 1.0), (5, 1.0)),
}


@lru_cache(maxsize=1)
def quaternion_formula() -> Formula:
    """The formula from a rotation matrix, and a one-hot row of its largest component, to a quaternion."""
    expr = Expression()
    products = {}
    for (i, j), terms in _PRODUCTS.items():
        parts = [expr.scale(sign, expr.load(0, index)) for index, sign in terms]
        products[i, j] = products[j, i] = expr.add(*([expr.one] if i == j else []), *parts)
    parts = [expr.add(*(expr.multiply(expr.load(1, i), products[i, j]) for i in range(4))) for j in range(4)]
    inverse = expr.inverse_length(*parts)
    outputs = [expr.multiply(part, inverse) for part in parts]
    operands = [row_of("matrix", 9), row_of("component", 4)]
    return register_formula(formula(expr, operands, [row_of("quaternion", 4)], [outputs]))


Complex = tuple[int, int]


def _blocks(expr: Expression, quaternion: Sequence[int], lmax: int) -> list[int]:
    """Nodes of all matrices, one after the other, row-major; of the zero quaternion 1 for l = 0, else 0."""
    if lmax == 0:
        return [expr.one]
    inverse = expr.inverse_length(*quaternion)
    w, x, y, z = (expr.multiply(part, inverse) for part in quaternion)
    a, b = _powers(expr, (w, y), 2 * lmax), _powers(expr, (x, expr.scale(-1.0, z)), 2 * lmax)
    squares = [expr.add(*(expr.multiply(part, part) for part in pair)) for pair in ((w, y), (x, z))]
    whole, across = expr.add(*squares), expr.add(squares[0], expr.scale(-1.0, squares[1]))
    matrices = [[[expr.zero] * (2 * l + 1) for _ in range(2 * l + 1)] for l in range(lmax + 1)]
    for high in range(lmax + 1):
        for low in range(high + 1):
            s, t = high + low, high - low
            forward = _jacobi(expr, across, whole, t, s, lmax - high)
            backward = forward if s == t else _jacobi(expr, across, whole, s, t, lmax - high)
            straight, crossed = _both(expr, a[s], b[t]), _both(expr, a[t], b[s])
            for l in range(high, lmax + 1):
                size = _leading(l, high, low, t)
                p, q = (expr.scale(size, part[l - high]) for part in (forward, backward))
                _write(expr, matrices[l], l, high, low, (p, q), straight, crossed)
    return [node for matrix in matrices for row in matrix for node in row]


def _powers(expr: Expression, value: Complex, largest: int) -> list[Complex]:
    """Powers of a complex number from the zeroth."""
    out = [(expr.one, expr.zero)]
    for _ in range(largest):
        out.append(_times(expr, out[-1], value))
    return out


def _times(expr: Expression, a: Complex, b: Complex) -> Complex:
    minus = expr.scale(-1.0, expr.multiply(a[1], b[1]))
    real = expr.add(expr.multiply(a[0], b[0]), minus)
    return real, expr.add(expr.multiply(a[0], b[1]), expr.multiply(a[1], b[0]))


def _both(expr: Expression, a: Complex, b: Complex) -> tuple[Complex, Complex]:
    """The product of a and b, and the product of a and the conjugate of b."""
    return _times(expr, a, b), _times(expr, a, (b[0], expr.scale(-1.0, b[1])))


def _jacobi(expr: Expression, x: int, whole: int, alpha: int, beta: int, count: int) -> list[int]:
    """Monic Jacobi polynomials of degrees 0 to ``count``, homogeneous in x and ``whole``, which is 1."""
    polynomials = [expr.one]
    for k in range(count):
        first, second = _recursion(k, alpha, beta)
        now = expr.multiply(polynomials[-1], expr.add(x, expr.scale(-first, whole)))
        if k:
            now = expr.add(now, expr.scale(-second, expr.multiply(expr.multiply(whole, whole), polynomials[-2])))
        polynomials.append(now)
    return polynomials


def _recursion(k: int, alpha: int, beta: int) -> tuple[float, float]:
    """Factors of the polynomials of degrees k and k - 1 in the monic one of degree k + 1, with their signs changed."""
    n = 2 * k + alpha + beta
    first = (beta - alpha) / (n + 2) if k == 0 else (beta**2 - alpha**2) / (n * (n + 2)) if n else 0.0
    if k == 0:
        return first, 0.0
    return first, 4 * k * (k + alpha) * (k + beta) * (k + alpha + beta) / (n * n * (n + 1) * (n - 1))


def _leading(l: int, high: int, low: int, alpha: int) -> float:
    """The factor from monic Jacobi polynomials to entries of Wigner d matrices."""
    k = l - high
    root = math.factorial(l + high) * math.factorial(k) / (math.factorial(l + low) * math.factorial(l - low))
    return math.sqrt(root) * math.comb(2 * k + 2 * high, k) / 2**k


def _write(
    expr: Expression,
    matrix: list[list[int]],
    l: int,
    high: int,
    low: int,
    sizes: tuple[int, int],
    straight: tuple[Complex, Complex],
    crossed: tuple[Complex, Complex],
) -> None:
    r"""Write the entries of orders :math:`\pm` high and :math:`\pm` low, high >= low, of the matrix of degree l.

    Of rows m' and -m' and columns m and -m, the matrix takes :math:`z = x_m + i x_{-m}` to :math:`P z + Q \bar z`.
    ``sizes`` are the real factors of P and Q, ``straight`` and ``crossed`` their monomials, of rows high and rows low.
    """
    sign = -1.0 if (high - low) % 2 else 1.0
    (first, second), (third, (real, imaginary)) = straight, crossed
    fourth = real, expr.scale(-1.0, imaginary)
    for row, column, p, q, p_sign, q_sign in (
        (high, low, first, third, 1.0, -1.0 if low % 2 else 1.0),
        (low, high, second, fourth, sign, -1.0 if high % 2 else 1.0),
    )[: 1 if high == low else 2]:
        p_re, p_im = (expr.scale(p_sign, expr.multiply(sizes[0], part)) for part in p)
        if not low:
            p_re, p_im = (expr.scale(math.sqrt(2.0) if high else 1.0, part) for part in (p_re, p_im))
            matrix[l + row][l + column] = p_re
            if row:
                matrix[l - row][l] = p_im
            elif column:
                matrix[l][l - column] = expr.scale(-1.0, p_im)
            continue
        q_re, q_im = (expr.scale(q_sign, expr.multiply(sizes[1], part)) for part in q)
        matrix[l + row][l + column] = expr.add(p_re, q_re)
        matrix[l - row][l - column] = expr.add(p_re, expr.scale(-1.0, q_re))
        matrix[l - row][l + column] = expr.add(q_im, p_im)
        matrix[l + row][l - column] = expr.add(q_im, expr.scale(-1.0, p_im))


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
def polar_rotation_program(irreps: Irreps, lmax: int, layout: str) -> Program:
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
    """Indices ``[dim * dim]`` of the entries of the full matrix in the blocks of even irreps, of odd ones, and a 0."""
    width = blocks_dim(max((ir.l for _, ir in irreps), default=0))
    out = np.full((irreps.dim, irreps.dim), 2 * width, dtype=np.int64)
    for slot, (_, ir) in zip(slots_of(irreps), irreps, strict=True):
        block = blocks_start(ir.l) + (width if ir.p == -1 else 0) + np.arange(ir.dim**2).reshape(ir.dim, ir.dim)
        for columns in slot.columns(layout).T:  # of each copy
            out[np.ix_(columns, columns)] = block
    return out.reshape(-1)
