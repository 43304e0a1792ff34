r"""MACE's symmetric contraction as two formulas: weights to coefficients, and polynomials with these coefficients.

.. math:: z_{k m} = \sum_{\nu} \sum_{i_1 \le \dots \le i_\nu} a^{(k)}_{m i_1 \dots i_\nu}\, x_{i_1} \cdots x_{i_\nu},
    \qquad a^{(k)}_t = \sum_p S_{t p}\, W_{z p}

for every channel alike. The sum over paths p goes through a basis of the independent polynomials, which has fewer
entries, and coefficients that are equal up to sign are stored once. The polynomials are nested, one product per
monomial: :math:`\sum_i x_i (b_i + \sum_{j \ge i} x_j (c_{ij} + \dots))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from e3nn import o3

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula

from ...core.forms.description import register_formula
from ...irreps.layout import slots_of
from ..base.columns import block_of
from .basis import Irrep, cleaned, from_dense, independent, monomials, paths

#: Highest number of factors: with five or more, polynomials are too long for a kernel.
MOST = 4


@dataclass(frozen=True)
class Mixing:
    """A matrix that writes each of P paths as a combination of R independent polynomials of one irrep and degree.

    The matrix is ``[R, P]``; it is stored as bytes, so that a contraction is hashable.
    """

    data: bytes
    shape: tuple[int, int]

    @classmethod
    def of(cls, matrix: np.ndarray) -> Mixing:
        """A `Mixing` from a numpy array ``[R, P]``."""
        return cls(np.ascontiguousarray(matrix, dtype=np.float64).tobytes(), (matrix.shape[0], matrix.shape[1]))

    @property
    def matrix(self) -> np.ndarray:
        """The stored matrix as a numpy array, ``[R, P]`` float64."""
        return np.frombuffer(self.data, dtype=np.float64).reshape(self.shape)


@lru_cache(maxsize=256)
def mixing(text: str, ir_out: Irrep, degree: int, reduced: bool) -> Mixing:
    """The `Mixing` from independent polynomials to MACE's paths of one irrep and degree."""
    return mixing_of(text, ir_out, degree, paths(text, ir_out, degree, reduced))[0]


def mixing_of(text: str, ir_out: Irrep, degree: int, polynomials: np.ndarray) -> tuple[Mixing, float]:
    """The mixing of independent polynomials to ``[2 l + 1, monomials, P]`` by least squares, and its error."""
    basis = independent(text, ir_out, degree)
    flat, targets = basis.reshape(-1, basis.shape[-1]), polynomials.reshape(-1, polynomials.shape[-1])
    matrix = cleaned(np.linalg.lstsq(flat, targets, rcond=None)[0])
    return Mixing.of(matrix), float(np.abs(flat @ matrix - targets).max(initial=0.0))


def polynomials_of(text: str, ir_out: Irrep, degree: int, mixed: Mixing) -> np.ndarray:
    """The polynomials that the weights multiply, ``[2 l + 1, monomials, P]``."""
    return cleaned(independent(text, ir_out, degree) @ mixed.matrix)


def read_tensor(
    text: str, ir_out: Irrep, degree: int, known: Iterable[Mixing], tensor: np.ndarray, eps: float = 0.0
) -> Mixing | None:
    """The mixing of a coupling tensor ``[2 l + 1, D, ..., D, P]``; None for another shape, or if it is not equivariant.

    It is one of the ``known`` ones of P paths if both are equal to rounding, of float32 or of a dtype with a larger
    ``eps``.
    """
    dim = o3.Irreps(text).dim
    if tensor.shape[:-1] != (2 * ir_out[0] + 1, *[dim] * degree):
        return None
    polynomials = from_dense(tensor, dim, degree)
    scale = float(np.abs(polynomials).max(initial=0.0))
    for candidate in (mixed for mixed in known if mixed.shape[1] == tensor.shape[-1]):
        rest = np.abs(polynomials - polynomials_of(text, ir_out, degree, candidate))
        if float(rest.max(initial=0.0)) <= max(1e-6, eps) * max(scale, 1.0):
            return candidate
    mixed, left = mixing_of(text, ir_out, degree, polynomials)
    return mixed if left <= max(1e-5, 4 * eps) * scale else None


@dataclass(frozen=True)
class Contraction:
    """The irreps, degrees and mixings that define a symmetric contraction."""

    irreps_in: str  # as texts
    irreps_out: str
    correlation: int  # highest degree
    #: For every irrep of the result, the mixings of the degrees 1 to ``correlation``.
    mixings: tuple[tuple[Mixing, ...], ...]
    layout: str  # of flat features


class Gathered(NamedTuple):
    """Two formulas from features x and coefficients to a contraction: coefficients by species, or of each row."""

    by_species: Formula
    by_row: Formula


@dataclass(frozen=True)
class Formulas:
    """All formulas of a symmetric contraction, and the order of the weights that they take."""

    #: Weights to coefficients, rows are species. For every irrep of the result its highest degree comes first.
    fold: Formula
    packed: Gathered  # x and coefficients to the result, for ``[N, C, D]`` and for flat features, by species and by row
    flat: Gathered
    order: tuple[tuple[int, int], ...]  # of the weights: pairs (irrep of the result, degree)
    terms: int  # monomials that occur, of all components of the result
    coefficients: int  # per species and channel

    def __iter__(self) -> Iterator[Formula]:
        yield from (self.fold, *self.packed, *self.flat)


Signed = tuple[int, int]  # index of a coefficient, and its sign


class _Coefficients:
    """The distinct coefficients, where those that are equal up to sign count once."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, np.ndarray]] = []  # the group of polynomials that each mixes, and the factors
        self._known: dict[tuple[int, tuple[float, ...]], int] = {}

    def add(self, group: int, row: np.ndarray) -> Signed:
        """Add a coefficient if it is new, and return its index and sign."""
        sign = 1 if row[np.flatnonzero(row)[0]] > 0 else -1
        key = (group, tuple(np.round(sign * row, 10) + 0.0))
        number = self._known.setdefault(key, len(self.rows))
        if number == len(self.rows):
            self.rows.append((group, sign * row))
        return number, sign


def single_copies(irreps: o3.Irreps) -> str:
    """The irreps with multiplicity 1 in each group, as text."""
    return str(o3.Irreps([(1, ir) for _, ir in irreps]))


@lru_cache(maxsize=64)
def lowered(contraction: Contraction) -> Formulas:
    """Lower a contraction to its formulas, which are registered."""
    irreps_in, irreps_out = o3.Irreps(contraction.irreps_in), o3.Irreps(contraction.irreps_out)
    text, channels = single_copies(irreps_in), irreps_in[0].mul
    dim = o3.Irreps(text).dim
    coefficients = _Coefficients()
    order: list[tuple[int, int]] = []
    results: list[dict[tuple[int, ...], Signed]] = []
    for k, (_, ir) in enumerate(irreps_out):
        components: list[dict[tuple[int, ...], Signed]] = [{} for _ in range(ir.dim)]
        for degree in range(contraction.correlation, 0, -1):
            reached = contraction.mixings[k][degree - 1].matrix.any(1)  # other polynomials have no weight
            basis = independent(text, (ir.l, ir.p), degree) * reached
            for m, number in zip(*np.nonzero(basis.any(-1)), strict=True):
                components[m][monomials(dim, degree)[number]] = coefficients.add(len(order), basis[m, number])
            order.append((k, degree))
        results += components
    mixings = [contraction.mixings[k][degree - 1] for k, degree in order]
    indices = _in_order(results, dim, len(coefficients.rows))
    fold = _fold(coefficients.rows, indices, mixings, channels)
    packed = (Block(0, dim, 1, dim),)
    flat, out = (tuple(block_of(slot, contraction.layout) for slot in slots_of(i)) for i in (irreps_in, irreps_out))

    def polynomials(blocks: tuple[Block, ...]) -> Gathered:
        expr = Expression()
        outputs = [_nested(expr, {f: (indices[number], sign) for f, (number, sign) in t.items()}) for t in results]
        x, z = Operand("x", dim * channels, blocks), Operand("z", len(results) * channels, out)
        read = _columns("coefficients", len(indices), channels, "src")
        by_species = formula(expr, [x, read], [z], [outputs], channels)
        return Gathered(by_species, by_species.with_rows(("each", "each")))

    terms = sum(map(len, results))
    formulas = Formulas(fold, polynomials(packed), polynomials(flat), tuple(order), terms, len(coefficients.rows))
    for base in formulas:
        register_formula(base)
    return formulas


def _in_order(results: Sequence[dict[tuple[int, ...], Signed]], dim: int, count: int) -> list[int]:
    """New indices of the coefficients, in the order in which the nested sums first read them."""
    index: dict[int, int] = {}
    for terms in results:
        for factors in sorted(terms):
            index.setdefault(terms[factors][0], len(index))
    return [index[number] for number in range(count)]


def _fold(
    rows: Sequence[tuple[int, np.ndarray]], indices: Sequence[int], mixings: Sequence[Mixing], channels: int
) -> Formula:
    """The formula from the weights of paths to coefficients, through the independent polynomials."""
    expr = Expression()

    def combined(factors: np.ndarray, values: Sequence[int]) -> int:
        return expr.add(*(expr.scale(float(factors[i]), values[i]) for i in np.flatnonzero(factors).tolist()))

    loads = [[expr.load(number, p) for p in range(m.shape[1])] for number, m in enumerate(mixings)]
    groups = [[combined(row, loads[number]) for row in m.matrix] for number, m in enumerate(mixings)]
    outputs = [expr.zero] * len(rows)
    for (group, row), index in zip(rows, indices, strict=True):
        outputs[index] = combined(row, groups[group])
    weights = [_columns(f"weights {number}", m.shape[1], channels) for number, m in enumerate(mixings)]
    return formula(expr, weights, [_columns("coefficients", len(rows), channels)], [outputs], channels)


def _columns(name: str, components: int, channels: int, rows: str = "each") -> Operand:
    return Operand(name, components * channels, (Block(0, components, channels, 1),), rows)


def _nested(expr: Expression, terms: dict[tuple[int, ...], Signed]) -> int:
    """The node of a polynomial in nested sums; ``terms`` are coefficients by the factors of monomials."""
    below: dict[tuple[int, ...], list[int]] = {}
    for factors in sorted(terms):
        for n in range(len(factors)):
            following = below.setdefault(factors[:n], [])
            if factors[n] not in following:
                following.append(factors[n])

    def value(factors: tuple[int, ...]) -> int:
        parts = []
        if factors in terms:
            index, sign = terms[factors]
            parts.append(expr.scale(float(sign), expr.load(1, index)))
        for i in below.get(factors, ()):
            parts.append(expr.multiply(expr.load(0, i), value((*factors, i))))
        return expr.add(*parts)

    return value(())
