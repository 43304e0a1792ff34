r"""Cartesian tensors with symmetric indices as irreps: an orthogonal basis in float64, equal to e3nn's.

Couplings of n vectors from left to right, :math:`((1 \otimes 1) \to l_2) \otimes 1 \to l_3 \dots`, are an orthogonal
basis of all tensors of rank n. Symmetries of indices, and the condition that traces vanish, are projectors that commute
with rotations, so that they act on couplings to one irrep as one small matrix. The basis of the remaining space is the
basis of Gram and Schmidt on the rows of this matrix, each with its first coefficient positive.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from e3nn.o3 import Irrep, Irreps

from ...core.checks import got
from ...core.errors import ConfigError
from ...irreps.algebra import wigner_3j

#: Higher ranks need matrices of 3^n rows, which take seconds.
LARGEST_RANK = 6
#: Smaller entries of projectors are rounding errors; true entries are far larger.
_ROUNDING = 1e-9


class CartesianBasis(NamedTuple):
    """An orthonormal basis of Cartesian tensors, one tensor for each component of irreps."""

    indices: str  # letters
    irreps: Irreps  # sorted as e3nn sorts them, equal ones joined
    matrix: np.ndarray  # ``[irreps.dim, 3, ..., 3]`` float64 with rows of norm 1, read-only


def read_formula(formula: Any) -> tuple[str, frozenset[tuple[int, tuple[int, ...]]]]:
    """Letters of the indices, and the group of signed permutations of them; ConfigError for an invalid formula.

    Example:
        >>> read_formula("ij=-ji")[0], sorted(read_formula("ij=-ji")[1])
        ('ij', [(-1, (1, 0)), (1, (0, 1))])
    """
    terms = formula.replace(" ", "").split("=") if isinstance(formula, str) else []
    letters = terms[0] if terms else ""
    plain = [term.removeprefix("-") for term in terms]
    if not letters.isalpha() or len(set(letters)) < len(letters) or any(sorted(t) != sorted(letters) for t in plain):
        raise ConfigError(
            f"formula must be index letters and permutations of them, such as 'ij=ji' or 'ij=-ji', got {got(formula)}. "
            f"Write each letter once on each side of '='."
        )
    if len(letters) > LARGEST_RANK:
        raise ConfigError(f"formula must have at most {LARGEST_RANK} indices, got {got(formula)}. Reduce it in steps.")
    group = {
        (-1 if term.startswith("-") else 1, tuple(map(letters.index, p))) for term, p in zip(terms, plain, strict=True)
    }
    while True:
        more = {(s * t, tuple(p[i] for i in q)) for s, p in group for t, q in group}
        if more <= group:
            return letters, frozenset(group)
        group |= more


@lru_cache(maxsize=64)
def cartesian_basis(formula: str, traceless: bool = False) -> CartesianBasis:
    """The basis of tensors with the symmetries of a formula, traceless on request; see ``nn.CartesianTensor``.

    Example:
        >>> cartesian_basis("ij=ji").irreps, cartesian_basis("ij=ji", traceless=True).irreps
        (1x0e+1x2e, 1x2e)
    """
    letters, group = read_formula(formula)
    rank = len(letters)
    allowed = _projector(rank, group)
    if traceless:
        allowed = _without_traces(rank, allowed)
    irreps, rows = [], []
    for ir, tensors in sorted(_couplings(rank).items()):
        first = tensors[:, 0]  # one component suffices, as the projector commutes with rotations
        for row in _orthonormal(first @ allowed @ first.T):
            irreps.append((1, ir))
            rows.append(np.einsum("u,uit->it", row, tensors))
    matrix = np.concatenate(rows) if rows else np.zeros((0, 3**rank))
    matrix = np.where(np.abs(matrix) < 1e-14, 0.0, matrix).reshape(-1, *[3] * rank)
    matrix.flags.writeable = False
    return CartesianBasis(letters, Irreps(irreps).simplify(), matrix)


def _projector(rank: int, group: frozenset[tuple[int, tuple[int, ...]]]) -> np.ndarray:
    """``[3^n, 3^n]`` projector: the mean over the group, 0 if a permutation has both signs."""
    numbers = np.arange(3**rank).reshape([3] * rank)
    out = np.zeros((3**rank, 3**rank))
    for sign, order in group:
        out[np.arange(3**rank), numbers.transpose(order).reshape(-1)] += sign / len(group)
    return out


def _without_traces(rank: int, allowed: np.ndarray) -> np.ndarray:
    """The projector onto the traceless tensors in the space of the projector ``allowed``."""
    rows = []
    for pair in combinations(range(rank), 2):
        traces = np.einsum("xy,ab->axyb", np.eye(3), np.eye(3 ** (rank - 2))).reshape(-1, *[3] * rank)
        others = [k for k in range(rank) if k not in pair]
        rows.append(np.moveaxis(traces, range(1, rank + 1), [1 + k for k in (*pair, *others)]).reshape(-1, 3**rank))
    if not rows:
        return allowed
    images = np.concatenate(rows) @ allowed  # traces as functions of allowed tensors
    _, sizes, directions = np.linalg.svd(images, full_matrices=False)
    traced = directions[sizes > _ROUNDING]
    return allowed - traced.T @ traced


@lru_cache(maxsize=LARGEST_RANK)
def _couplings(rank: int) -> dict[Irrep, np.ndarray]:
    """Couplings of n vectors to each irrep, ``[paths, 2 l + 1, 3^n]``, with orthonormal rows."""
    paths: list[tuple[Irrep, np.ndarray]] = [(Irrep("1o"), np.eye(3))]
    for _ in range(rank - 1):
        longer = []
        for left, tensors in paths:
            for ir in left * Irrep("1o"):
                coupled = np.einsum("ijl,jt->itl", wigner_3j(ir.l, left.l, 1), tensors) * np.sqrt(ir.dim)
                longer.append((ir, coupled.reshape(ir.dim, -1)))
        paths = sorted(longer, key=lambda path: path[0])
    by_irrep: dict[Irrep, list[np.ndarray]] = {}
    for ir, tensors in paths:
        by_irrep.setdefault(ir, []).append(tensors)
    return {ir: np.stack(parts) for ir, parts in by_irrep.items()}


def _orthonormal(rows: np.ndarray) -> list[np.ndarray]:
    """An orthonormal basis of the span of rows, by Gram-Schmidt from the first row."""
    basis: list[np.ndarray] = []
    for row in rows:
        for _ in range(2):  # twice, against rounding
            for other in basis:
                row = row - (row @ other) * other
        size = np.linalg.norm(row)
        if size > 2 * _ROUNDING:
            row = row / size
            row = np.where(np.abs(row) < _ROUNDING, 0.0, row)
            basis.append(row * np.sign(row[np.flatnonzero(row)[0]]))
    return basis
