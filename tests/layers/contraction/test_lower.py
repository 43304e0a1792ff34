"""Symmetric contractions: counts, equivariance of the polynomials, and what the two formulas compute."""

from typing import Any

import numpy as np
import pytest
from e3nn import o3

from eqlayers.irreps.algebra import representation_matrix
from eqlayers.layers.contraction.basis import dense, from_dense, has_paths, independent, monomials, paths
from eqlayers.layers.contraction.lower import (
    Contraction,
    Formulas,
    Mixing,
    lowered,
    mixing,
    polynomials_of,
    read_tensor,
)
from eqlayers_kernels.forms.formula import evaluate

FOUR = "1x0e+1x1o+1x2e+1x3o"
THREE = "1x0e+1x1o+1x2e"
BOTH = "1x0o+1x1e+1x1o"
IRREPS = [(0, 1), (1, -1), (2, 1), (1, 1), (0, -1)]


def lower(text: str, outs: list[tuple[int, int]], correlation: int, reduced: bool = False) -> Formulas:
    mixings = tuple(tuple(mixing(text, ir, n, reduced) for n in range(1, correlation + 1)) for ir in outs)
    irreps = o3.Irreps([(1, ir) for ir in outs])
    return lowered(Contraction(text, str(irreps), correlation, mixings, "mul_ir"))


def values(polynomials: np.ndarray, x: np.ndarray, degree: int) -> np.ndarray:
    """``[2 l + 1, P]`` of polynomials ``[2 l + 1, monomials, P]``."""
    products = np.array([np.prod(x[list(factors)]) for factors in monomials(len(x), degree)])
    return np.einsum("mtp,t->mp", polynomials, products)


@pytest.mark.parametrize(
    ("ir", "numbers", "ranks", "terms"),
    [
        ((0, 1), (1, 4, 23), (1, 4, 8), 94),
        ((1, -1), (1, 6, 51), (1, 3, 12), 316),
        ((2, 1), (1, 7, 65), (1, 5, 14), 477),
    ],
)
def test_counts(ir: Any, numbers: tuple[int, ...], ranks: tuple[int, ...], terms: int) -> None:
    """Counted with the coupling tensors of MACE."""
    assert tuple(paths(FOUR, ir, n, False).shape[-1] for n in (1, 2, 3)) == numbers
    assert tuple(paths(FOUR, ir, n, True).shape[-1] for n in (1, 2, 3)) == ranks
    found = lower(FOUR, [ir], 3)
    assert found.terms == terms
    assert found.coefficients < terms / 2  # many are equal but for their signs
    # two operations for a term, and two for each inner node of the nested sums
    assert found.packed.by_species.operations < 3 * terms
    assert lower(FOUR, [ir], 3, reduced=True).packed == found.packed


@pytest.mark.parametrize("text", [THREE, BOTH])
@pytest.mark.parametrize("ir", IRREPS)
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_polynomials_are_equivariant(text: str, ir: tuple[int, int], degree: int) -> None:
    rng = np.random.default_rng(degree)
    turn = -o3.rand_matrix().numpy().astype(np.float64)
    turn = np.linalg.qr(turn)[0]
    x = rng.standard_normal(o3.Irreps(text).dim)
    d_in = representation_matrix(text, turn).numpy()
    d_out = representation_matrix(o3.Irreps([(1, ir)]), turn).numpy()
    for reduced in (False, True):
        found = paths(text, ir, degree, reduced)
        np.testing.assert_allclose(values(found, d_in @ x, degree), d_out @ values(found, x, degree), atol=1e-10)


@pytest.mark.parametrize("text", [THREE, BOTH, "1x2e", "1x0e"])
@pytest.mark.parametrize("ir", IRREPS)
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_independent_polynomials_are_a_basis(text: str, ir: tuple[int, int], degree: int) -> None:
    given, basis = paths(text, ir, degree, False), independent(text, ir, degree)
    flat = basis.reshape(-1, basis.shape[-1])
    rank = np.linalg.matrix_rank(given.reshape(-1, given.shape[-1]))
    assert np.linalg.matrix_rank(flat) == rank
    assert flat.shape[1] == max(rank, 1)
    assert mixing(text, ir, degree, False).matrix.any() == (rank > 0)
    assert has_paths(text, ir, degree, True) == (rank > 0)
    assert has_paths(text, ir, degree, False) >= (rank > 0)
    norms = np.square(dense(basis, o3.Irreps(text).dim, degree)).sum(axis=tuple(range(degree + 1)))
    np.testing.assert_allclose(norms, (2 * ir[0] + 1) * np.sign(norms), rtol=1e-12)
    whole = polynomials_of(text, ir, degree, mixing(text, ir, degree, False))
    np.testing.assert_allclose(whole, given, atol=1e-12)


def test_antisymmetric_couplings_have_weights_and_no_terms() -> None:
    """MACE has such weights, which change nothing."""
    assert paths("1x1o", (1, 1), 2, False).shape == (3, 6, 1)
    assert has_paths("1x1o", (1, 1), 2, False)
    assert not mixing("1x1o", (1, 1), 2, False).matrix.any()


def test_no_entries_are_rounding() -> None:
    for degree in (2, 3, 4):
        sizes = np.abs(paths(FOUR, (1, -1), degree, False))
        assert sizes[sizes > 0].min() > 1e-4


def test_dense_tensors_are_symmetric_and_read_back() -> None:
    found = paths(THREE, (1, -1), 3, False)
    tensor = dense(found, 9, 3)
    for axes in [(0, 2, 1, 3, 4), (0, 3, 2, 1, 4)]:
        np.testing.assert_array_equal(tensor, tensor.transpose(axes))
    np.testing.assert_allclose(from_dense(tensor, 9, 3), found, atol=1e-15)
    other = np.random.default_rng(0).standard_normal((2, 3, 3, 4))
    even = (other + other.transpose(0, 2, 1, 3)) / 2
    np.testing.assert_allclose(dense(from_dense(other, 3, 2), 3, 2), even, atol=1e-15)


def test_other_bases_are_read() -> None:
    own = mixing(THREE, (1, -1), 3, False)
    tensor = dense(polynomials_of(THREE, (1, -1), 3, own), 9, 3)
    assert read_tensor(THREE, (1, -1), 3, [own], tensor.astype(np.float32)) is own
    half = tensor.astype(np.float16)
    assert read_tensor(THREE, (1, -1), 3, [own], half.astype(np.float64)) is None, "roundings must show"
    assert read_tensor(THREE, (1, -1), 3, [own], half.astype(np.float64), 2**-10) is own
    flipped = tensor * np.where(np.arange(tensor.shape[-1]) % 2, 1.0, -1.0)
    found = read_tensor(THREE, (1, -1), 3, [own], flipped)
    assert found is not None
    np.testing.assert_allclose(found.matrix[:, 1::2], own.matrix[:, 1::2], atol=1e-12)
    np.testing.assert_allclose(found.matrix[:, ::2], -own.matrix[:, ::2], atol=1e-12)
    assert read_tensor(THREE, (1, -1), 3, [own], np.random.default_rng(0).standard_normal(tensor.shape)) is None


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(("text", "outs", "correlation"), [(THREE, [(0, 1), (1, -1)], 3), (BOTH, [(1, 1), (0, -1)], 4)])
def test_formulas_are_the_polynomials(text: str, outs: list[Any], correlation: int, reduced: bool) -> None:
    rng = np.random.default_rng(2)
    found = lower(text, outs, correlation, reduced)
    x = rng.standard_normal(o3.Irreps(text).dim)
    given = {n: paths(text, outs[n[0]], n[1], reduced) for n in found.order}
    weights = [rng.standard_normal(given[n].shape[-1]) for n in found.order]
    (coefficients,) = evaluate(found.fold, lambda operand, component: weights[operand][component], None)
    assert len(coefficients) == found.coefficients
    operands = [x, coefficients]
    expected = [np.zeros(2 * ir[0] + 1) for ir in outs]
    for n, w in zip(found.order, weights, strict=True):
        expected[n[0]] += values(given[n], x, n[1]) @ w
    for formula in (*found.packed, *found.flat):
        (z,) = evaluate(formula, lambda operand, component: operands[operand][component], None)
        np.testing.assert_allclose(z, np.concatenate(expected), rtol=1e-10, atol=1e-12)


def test_layouts_have_their_columns() -> None:
    mixings = tuple((mixing("1x0e+1x1o", ir, 1, False),) for ir in [(0, 1), (1, -1)])
    for layout, (start, step) in {"mul_ir": (3, 3), "ir_mul": (4, 1)}.items():
        found = lowered(Contraction("2x0e+2x1o", "2x0e+2x1o", 1, mixings, layout))
        assert found.flat.by_species.operands[0].column(2) == found.flat.by_row.results[0].column(2) == (start, step)
        assert found.packed.by_row.operands[0].column(2) == (2, 4)
        assert found.packed.by_species.results == found.flat.by_species.results


def test_mixings_are_values() -> None:
    one = Mixing.of(np.eye(2))
    assert one == Mixing.of(np.eye(2))
    assert hash(one) == hash(Mixing.of(np.eye(2)))
    assert one != Mixing.of(np.eye(2) * 2)
    assert one.matrix.any()
