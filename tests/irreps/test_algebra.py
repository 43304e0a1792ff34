"""Group theory in float64, whatever the default dtype and device, and invariant as it must be."""

import itertools

import numpy as np
import pytest
import torch
from e3nn import o3

from eqlayers.errors import IrrepsError
from eqlayers.irreps import algebra
from eqlayers.testing import random_orthogonal
from tests.each import each

TRIPLES = [t for t in itertools.product(range(4), repeat=3) if abs(t[0] - t[1]) <= t[2] <= t[0] + t[1]]


@each("triple", TRIPLES)
def test_coefficients_are_e3nns_invariant_and_of_norm_one(triple: tuple[int, int, int]) -> None:
    block = algebra.wigner_3j(*triple)
    assert block.dtype == np.float64
    np.testing.assert_allclose(block, o3.wigner_3j(*triple, dtype=torch.float64).numpy(), rtol=0, atol=1e-14)
    assert np.linalg.norm(block) == pytest.approx(1, abs=1e-13)
    turn = random_orthogonal(sum(triple))
    d1, d2, d3 = (algebra.representation_matrix([(1, (l, 1))], turn).numpy() for l in triple)
    np.testing.assert_allclose(np.einsum("ia,jb,kc,abc->ijk", d1, d2, d3, block), block, rtol=0, atol=1e-13)


def test_coefficients_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="read-only"):
        algebra.wigner_3j(1, 1, 1)[0, 0, 0] = 2.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_global_defaults_do_not_matter(dtype: torch.dtype) -> None:
    expected = o3.wigner_3j(2, 3, 3, dtype=torch.float64).numpy()
    before = torch.get_default_dtype()
    algebra._wigner_3j.cache_clear()
    torch.set_default_dtype(dtype)
    torch.set_default_device("meta")
    try:
        block = algebra.wigner_3j(2, 3, 3)
        matrix = algebra.representation_matrix("2e + 1o", np.eye(3))
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)
        algebra._wigner_3j.cache_clear()
    np.testing.assert_allclose(block, expected, rtol=0, atol=1e-14)
    assert matrix.dtype == torch.float64
    assert matrix.device.type == "cpu"


@pytest.mark.parametrize("determinant", [1, -1])
@pytest.mark.parametrize("irreps", ["", "0o", "2x0e+1o", "1e+2o+3e+3o+4e", "0x1o+2x2e"])
def test_representations_equal_e3nns_and_multiply(irreps: str, determinant: int) -> None:
    a, b = random_orthogonal(1, determinant), random_orthogonal(2)
    turned = algebra.representation_matrix(irreps, a @ b)
    product = algebra.representation_matrix(irreps, a) @ algebra.representation_matrix(irreps, b)
    torch.testing.assert_close(turned, product, rtol=0, atol=1e-13)
    if o3.Irreps(irreps).dim:
        torch.set_default_dtype(torch.float64)  # e3nn makes its generators in the default dtype
        try:
            theirs = o3.Irreps(irreps).D_from_matrix(a @ b)
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(turned, theirs, rtol=0, atol=1e-10)


def test_representation_of_a_vector_is_the_matrix_itself() -> None:
    turn = random_orthogonal(5, -1)
    torch.testing.assert_close(algebra.representation_matrix("1o", turn), turn, rtol=0, atol=0)
    torch.testing.assert_close(algebra.representation_matrix("1e", turn), -turn, rtol=0, atol=0)


@pytest.mark.parametrize("matrix", [np.eye(2), 2 * np.eye(3), np.ones((3, 3))])
def test_not_orthogonal(matrix: np.ndarray) -> None:
    with pytest.raises(IrrepsError, match=r"matrix must be orthogonal \[3, 3\], got .*rand_matrix"):
        algebra.representation_matrix("1o", matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_that_are_orthogonal_to_the_digits_of_their_dtype(dtype: torch.dtype) -> None:
    """The nearest orthogonal one is taken, of a numpy array, too; of another error there is none."""
    for _ in range(20):
        turn = random_orthogonal(3, -1)
        rounded = turn.to(dtype)
        found = algebra.representation_matrix("1o + 2e + 4o", rounded)
        unit = torch.eye(len(found), dtype=torch.float64)
        torch.testing.assert_close(found @ found.T, unit, rtol=0, atol=1e-13)
        exact = algebra.representation_matrix("1o + 2e + 4o", turn)
        torch.testing.assert_close(found, exact, rtol=0, atol=30 * torch.finfo(dtype).eps)
    with pytest.raises(IrrepsError, match="matrix must"):
        algebra.representation_matrix("1o", rounded * (1 + 40 * torch.finfo(dtype).eps))
    single = turn.float().numpy()
    assert torch.equal(
        algebra.representation_matrix("1o", single), algebra.representation_matrix("1o", torch.from_numpy(single))
    )
    with pytest.raises(IrrepsError, match="matrix must"):  # it was not rounded
        algebra.representation_matrix("1o", single.astype(np.float64))


def test_paths_are_in_order_and_filtered() -> None:
    paths = algebra.tensor_product_paths("2x1o + 0e", "1o + 1e")
    assert [(i, j, str(ir)) for i, j, ir in paths] == [
        (0, 0, "0e"), (0, 0, "1e"), (0, 0, "2e"), (0, 1, "0o"), (0, 1, "1o"), (0, 1, "2o"), (1, 0, "1o"), (1, 1, "1e"),
    ]  # fmt: skip
    kept = algebra.tensor_product_paths("2x1o + 0e", "1o + 1e", ["1o", o3.Irrep("2e")])
    assert [(i, j, str(ir)) for i, j, ir in kept] == [(0, 0, "2e"), (0, 1, "1o"), (1, 0, "1o")]
    assert algebra.tensor_product_paths("", "1o") == []
    with pytest.raises(IrrepsError, match=r"filter_ir_out must be an irrep such as '1o', got 'q'.*Write degree"):
        algebra.tensor_product_paths("1o", "1o", ["q"])


@pytest.mark.parametrize("value", ["8x", "1z", "2x0e 1o", 3.5, [("a", "0e")]])
def test_unreadable_irreps(value: object) -> None:
    with pytest.raises(IrrepsError, match=r"hidden must be irreps such as '16x0e \+ 8x1o'.*e3nn says.*Write them so"):
        algebra.as_irreps(value, "hidden")
