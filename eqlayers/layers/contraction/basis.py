r"""Equivariant polynomials of one feature with itself: the coupling paths of MACE's product basis, symmetrised.

A product of n copies of one feature :math:`x` is symmetric in them, so that a coupling of n copies is a polynomial of
degree n. Here every coupling is stored as its coefficients on the monomials :math:`x_{i_1} \cdots x_{i_n}` with
:math:`i_1 \le \dots \le i_n`: 816 numbers for three copies of 16 components, not 4096.

Source:
    Batatia, Kovacs, Simm, Ortner, Csanyi, MACE, NeurIPS 2022, arXiv:2206.07697, equations 10 and 11.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np
from e3nn import o3

from ...irreps.algebra import wigner_3j

#: Smaller coefficients are rounding errors: of couplings (others exceed 1e-4), or relative to the largest of a matrix.
ROUNDING = 1e-10

Irrep = tuple[int, int]  # degree and parity


@cache
def monomials(dim: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Monomials of a degree, each as the indices of its factors in ascending order."""
    return tuple(combinations_with_replacement(range(dim), degree))


@cache
def monomial_numbers(dim: int, degree: int) -> dict[tuple[int, ...], int]:
    """The factors of each monomial -> its index in `monomials`."""
    return {factors: number for number, factors in enumerate(monomials(dim, degree))}


@cache
def permutations_of(dim: int, degree: int) -> np.ndarray:
    """``[monomials]``: number of distinct permutations of the factors of each."""
    counts = [
        math.factorial(degree) // math.prod(math.factorial(factors.count(i)) for i in set(factors))
        for factors in monomials(dim, degree)
    ]
    return np.array(counts, dtype=np.float64)


@cache
def _times(dim: int, degree: int) -> np.ndarray:
    """``[dim, monomials]``: the index, among monomials of degree + 1, of the product of a component and a monomial."""
    numbers = monomial_numbers(dim, degree + 1)
    rows = [[numbers[tuple(sorted((*f, i)))] for f in monomials(dim, degree)] for i in range(dim)]
    return np.array(rows, dtype=np.int64).reshape(dim, -1)


def _coupled(left: np.ndarray, l_left: int, start: int, l: int, l_out: int, dim: int, degree: int) -> np.ndarray:
    """``[2 l_out + 1, monomials]``: a polynomial coupled with the irrep of the input that begins at ``start``."""
    w3j, times = wigner_3j(l_out, l_left, l), _times(dim, degree)
    out = np.zeros((2 * l_out + 1, len(monomials(dim, degree + 1))))
    for j in range(2 * l + 1):
        out[:, times[start + j]] += w3j[:, :, j] @ left
    return np.where(np.abs(out) < ROUNDING, 0.0, out)  # all entries of an antisymmetric coupling are rounding errors


class _Path(NamedTuple):
    """A coupling: its irrep, the irreps of the input that it couples, and its polynomial ``[2 l + 1, monomials]``."""

    ir: Irrep
    groups: tuple[int, ...]
    polynomial: np.ndarray


def _irreps(text: str) -> list[tuple[int, int, Irrep]]:
    """(number, first component, irrep) of every group of the input, which has one copy of each irrep."""
    irreps = o3.Irreps(text)
    return [(n, s.start, (ir.l, ir.p)) for n, (s, (_, ir)) in enumerate(zip(irreps.slices(), irreps, strict=True))]


def _products(a: Irrep, b: Irrep) -> list[Irrep]:
    return [(l, a[1] * b[1]) for l in range(abs(a[0] - b[0]), a[0] + b[0] + 1)]


@cache
def _singles(text: str) -> tuple[_Path, ...]:
    """The couplings of degree 1: the irreps of the input."""
    unit = np.eye(o3.Irreps(text).dim)
    return tuple(_Path(ir, (n,), unit[start : start + 2 * ir[0] + 1]) for n, start, ir in _irreps(text))


def _highest(text: str) -> int:
    return max(ir[0] for _, _, ir in _irreps(text))


@lru_cache(maxsize=64)
def _all_paths(text: str, degree: int, natural: bool, most: int) -> tuple[_Path, ...]:
    """All iterated couplings from left to right of degrees l up to ``most``, in the order of MACE's weights."""
    if degree == 1:
        return _singles(text)  # in the order of the irreps; polynomials of higher degrees are sorted
    groups, dim = _irreps(text), o3.Irreps(text).dim
    coupled = [
        _Path(ir, tuple(sorted((*left.groups, number))), polynomial * math.sqrt(2 * ir[0] + 1))
        for left in _all_paths(text, degree - 1, natural, most + _highest(text))
        for number, start, right in groups
        for ir in _products(left.ir, right)
        if ir[0] <= most and (not natural or ir[1] == (-1) ** ir[0])
        for polynomial in [_coupled(left.polynomial, left.ir[0], start, right[0], ir[0], dim, degree - 1)]
    ]
    return tuple(sorted(coupled, key=lambda path: path.ir))


def _last_couplings(text: str, ir_out: Irrep, degree: int, natural: bool) -> list[tuple[_Path, int, int, Irrep]]:
    """The last couplings of paths to an irrep: a path of degree - 1, and number, start and irrep of the last factor."""
    if natural and ir_out[1] != (-1) ** ir_out[0]:
        return []
    before = _all_paths(text, degree - 1, natural, ir_out[0] + _highest(text))
    return [(left, *group) for left in before for group in _irreps(text) if ir_out in _products(left.ir, group[2])]


@lru_cache(maxsize=256)
def _powers(text: str, number: int, degree: int, most: int) -> tuple[_Path, ...]:
    """A basis of the polynomials in a single irrep of the input, of degrees l up to ``most``."""
    dim = o3.Irreps(text).dim
    _, start, ir = _irreps(text)[number]
    if degree == 1:
        return (_singles(text)[number],)
    candidates: dict[Irrep, list[np.ndarray]] = {}
    for left in _powers(text, number, degree - 1, most + ir[0]):
        for out in (out for out in _products(left.ir, ir) if out[0] <= most):
            polynomial = _coupled(left.polynomial, left.ir[0], start, ir[0], out[0], dim, degree - 1)
            candidates.setdefault(out, []).append(polynomial)
    counts = permutations_of(dim, degree)
    groups = (number,) * degree
    return tuple(
        _Path(out, groups, p) for out, polynomials in sorted(candidates.items()) for p in _first(polynomials, counts)
    )


def _first(polynomials: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Gram-Schmidt on polynomials, dropping dependent ones; the results have norm sqrt(2 l + 1)."""
    chosen: list[np.ndarray] = []
    for polynomial in polynomials:
        size = _norm(polynomial, counts)
        for _ in range(2):  # twice, against rounding
            for other in chosen:
                polynomial = polynomial - other * float((other * polynomial / counts).sum()) / len(other)
        if _norm(polynomial, counts) > 1e-6 * size and size > ROUNDING:
            chosen.append(cleaned(polynomial / _norm(polynomial, counts)))
    return chosen


def _norm(polynomial: np.ndarray, counts: np.ndarray) -> float:
    """The norm over sqrt(2 l + 1) of the symmetric tensor, in which a coefficient c is ``count`` entries c / count."""
    return math.sqrt(float((polynomial**2 / counts).sum()) / len(polynomial))


@lru_cache(maxsize=64)
def _independent(text: str, degree: int, only: Irrep) -> tuple[_Path, ...]:
    """A basis of all equivariant polynomials of a degree: powers of each irrep, coupled from left to right."""
    dim, basis = o3.Irreps(text).dim, []
    for groups in combinations_with_replacement(range(len(_irreps(text))), degree):
        terms: list[_Path] | None = None
        done = 0
        for number in dict.fromkeys(groups):
            done += groups.count(number)
            most = only[0] + (degree - done) * _highest(text)  # higher degrees cannot be coupled to the irrep
            others = only[0] + (degree - groups.count(number)) * _highest(text)
            power = list(_powers(text, number, groups.count(number), others))
            if terms is not None:
                pairs = [(a, b, ir) for a in terms for b in power for ir in _products(a.ir, b.ir) if ir[0] <= most]
                power = [_multiplied(a, b, ir, dim) for a, b, ir in pairs]
            terms = sorted(power, key=lambda path: path.ir)
        basis += _sparser([path for path in terms or () if path.ir == only], permutations_of(dim, degree))
    return tuple(basis)


def _multiplied(a: _Path, b: _Path, ir: Irrep, dim: int) -> _Path:
    """The coupling of two polynomials in different irreps to ``ir``, of norm sqrt(2 l + 1)."""
    groups = (*a.groups, *b.groups)
    numbers, out = monomial_numbers(dim, len(groups)), np.zeros((2 * ir[0] + 1, len(monomials(dim, len(groups)))))
    w3j = wigner_3j(a.ir[0], b.ir[0], ir[0])
    left, right = (np.flatnonzero(path.polynomial.any(0)) for path in (a, b))
    values = np.einsum("abk,at,bs->kts", w3j, a.polynomial[:, left], b.polynomial[:, right])
    first, second = monomials(dim, len(a.groups)), monomials(dim, len(b.groups))
    index = [[numbers[tuple(sorted(first[t] + second[s]))] for s in right] for t in left]
    out[:, np.array(index, dtype=np.int64).reshape(len(left), len(right))] = values
    out = cleaned(out)
    return _Path(ir, groups, out / _norm(out, permutations_of(dim, len(groups))))


def _sparser(paths: list[_Path], counts: np.ndarray) -> list[_Path]:
    """A basis of the same space with fewer entries, by combinations of pairs in which most entries cancel."""
    rows = [path.polynomial for path in paths]
    weight = np.broadcast_to(counts, rows[0].shape) if rows else counts
    for _ in range(20):
        changed = False
        for i, j in combinations(range(len(rows)), 2):
            both = (rows[i] != 0) & (rows[j] != 0)
            if not both.any():
                continue
            ratios, where = np.unique(np.round(rows[i][both] / rows[j][both], 9), return_inverse=True)
            equal = np.bincount(where, weight[both])
            alone = [float(weight[(rows[k] != 0) & ~both].sum()) for k in (i, j)]
            if equal.max() > min(alone):
                closest = np.abs(rows[i][both] / rows[j][both] - ratios[equal.argmax()]).argmin()
                ratio = float((rows[i][both] / rows[j][both])[closest])
                rest, which = cleaned(rows[i] - ratio * rows[j]), j if alone[0] < alone[1] else i
                rows[which], changed = rest / _norm(rest, counts), True
        if not changed:
            break
    return [path._replace(polynomial=row) for path, row in zip(paths, rows, strict=True)]


def cleaned(values: np.ndarray) -> np.ndarray:
    """The values, with entries set to 0 that are rounding errors relative to the largest entry."""
    largest = float(np.abs(values).max(initial=0.0))
    return np.where(np.abs(values) < ROUNDING * largest, 0.0, values)


def paths(text: str, ir_out: Irrep, degree: int, reduced: bool) -> np.ndarray:
    """Coefficients of the polynomials that MACE's weights multiply, ``[2 l + 1, monomials, P]``; for none P = 1, all 0.

    With ``reduced`` as many as are independent; else every path of couplings from left to right, of degree 4 those
    whose irreps all have the parity of their degree.
    """
    if reduced:
        return independent(text, ir_out, degree)
    if degree == 1:
        return _stacked([path.polynomial for path in _singles(text) if path.ir == ir_out], text, ir_out, 1)
    dim, factor = o3.Irreps(text).dim, math.sqrt(2 * ir_out[0] + 1)
    polynomials = [
        _coupled(left.polynomial, left.ir[0], start, right[0], ir_out[0], dim, degree - 1) * factor
        for left, _, start, right in _last_couplings(text, ir_out, degree, natural=degree == 4)
    ]
    return _stacked(polynomials, text, ir_out, degree)


def has_paths(text: str, ir_out: Irrep, degree: int, reduced: bool) -> bool:
    """Whether there are any `paths`; polynomials of antisymmetric couplings are 0, but count."""
    if reduced:
        return bool(_independent(text, degree, ir_out))
    if degree == 1:
        return any(path.ir == ir_out for path in _singles(text))
    return bool(_last_couplings(text, ir_out, degree, natural=degree == 4))


def independent(text: str, ir_out: Irrep, degree: int) -> np.ndarray:
    """A basis of all equivariant polynomials, ``[2 l + 1, monomials, R]``; for none R = 1, all 0."""
    return _stacked([path.polynomial for path in _independent(text, degree, ir_out)], text, ir_out, degree)


def _stacked(polynomials: list[np.ndarray], text: str, ir_out: Irrep, degree: int) -> np.ndarray:
    shape = (2 * ir_out[0] + 1, len(monomials(o3.Irreps(text).dim, degree)))
    return np.stack(polynomials, -1) if polynomials else np.zeros((*shape, 1))


def dense(polynomials: np.ndarray, dim: int, degree: int) -> np.ndarray:
    """The symmetric tensor ``[2 l + 1, dim, ..., dim, P]`` of polynomials ``[2 l + 1, monomials, P]``."""
    even = polynomials / permutations_of(dim, degree)[:, None]
    return even[:, _number_of_index(dim, degree)].reshape(len(even), *[dim] * degree, even.shape[-1])


def from_dense(tensor: np.ndarray, dim: int, degree: int) -> np.ndarray:
    """The polynomials ``[2 l + 1, monomials, P]`` of a tensor ``[2 l + 1, dim, ..., dim, P]``, symmetric or not."""
    flat = tensor.reshape(len(tensor), -1, tensor.shape[-1])
    out = np.zeros((len(monomials(dim, degree)), len(flat), flat.shape[-1]))
    _, index = np.nonzero(np.abs(flat).max(-1, initial=0.0))
    index = np.unique(index)
    np.add.at(out, _number_of_index(dim, degree)[index], flat[:, index].swapaxes(0, 1))
    return out.swapaxes(0, 1)


@lru_cache(maxsize=16)
def _number_of_index(dim: int, degree: int) -> np.ndarray:
    """``[dim ** degree]``: the index of the monomial of every choice of factors."""
    number = np.zeros([dim] * degree, dtype=np.int64)  # of ascending factors
    number[tuple(np.array(monomials(dim, degree)).T)] = np.arange(len(monomials(dim, degree)))
    return number[tuple(np.sort(np.indices(number.shape).reshape(degree, -1), axis=0))]
