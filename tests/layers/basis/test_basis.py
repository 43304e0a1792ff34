"""Cartesian tensors against e3nn's, and against what is known of them."""

import pytest
import torch
from e3nn import io, o3
from torch import Tensor

from eqlayers.errors import ShapeError
from eqlayers.layers.basis.module import cartesian_basis
from eqlayers.nn import CartesianTensor
from tests.cases import default_dtype

FORMULAS = ["i", "ij", "ij=ij", "ij=ji", "ij=-ji", "ijk=jik", "ijk=-jik=-ikj", "ijk=jki", "ijkl=jikl=klij"]
EPS = torch.finfo(torch.float64).eps
#: Sums of at most 81 terms of size 1.
BOUND = 200 * EPS


@pytest.fixture(autouse=True)
def _float64():
    with default_dtype(torch.float64):
        yield


@pytest.mark.parametrize("formula", FORMULAS)
def test_numbers_are_e3nns(formula: str) -> None:
    """The basis too where an irrep occurs several times."""
    ours, theirs = CartesianTensor(formula), io.CartesianTensor(formula)
    assert ours.irreps_out == o3.Irreps(theirs)
    tensor = torch.randn(4, *[3] * len(ours.indices))
    wanted = theirs.from_cartesian(tensor)
    torch.testing.assert_close(ours.from_cartesian(tensor), wanted, rtol=0, atol=BOUND)
    torch.testing.assert_close(ours.to_irreps(tensor), wanted, rtol=0, atol=BOUND)
    torch.testing.assert_close(ours.to_cartesian(wanted), theirs.to_cartesian(wanted), rtol=0, atol=BOUND)
    vectors = torch.randn(len(ours.indices), 4, 3)
    torch.testing.assert_close(ours.from_vectors(*vectors), theirs.from_vectors(*vectors), rtol=0, atol=BOUND)


@pytest.mark.parametrize("traceless", [False, True])
@pytest.mark.parametrize("formula", ["ij", "ijk=-jik", "ijkl=jikl=klij"])
def test_there_and_back_and_turned(formula: str, traceless: bool) -> None:
    layer = CartesianTensor(formula, traceless)
    x, turn = torch.randn(3, layer.irreps_out.dim), -o3.rand_matrix()
    tensor = layer.to_cartesian(x)
    torch.testing.assert_close(layer(tensor), x, rtol=0, atol=BOUND)
    for axis in range(1, tensor.ndim):
        tensor = torch.tensordot(tensor, turn, ([axis], [1])).movedim(-1, axis)
    torch.testing.assert_close(layer(tensor), x @ layer.irreps_out.D_from_matrix(turn).T, rtol=0, atol=1e-12)


def test_only_what_has_the_symmetries_comes_back() -> None:
    tensor = torch.randn(2, 3, 3)

    def back(formula: str, traceless: bool = False) -> Tensor:
        layer = CartesianTensor(formula, traceless)
        return layer.to_cartesian(layer(tensor))

    symmetric = (tensor + tensor.mT) / 2
    torch.testing.assert_close(back("ij"), tensor, rtol=0, atol=BOUND)
    torch.testing.assert_close(back("ij=ji"), symmetric, rtol=0, atol=BOUND)
    torch.testing.assert_close(back("ij=-ji"), (tensor - tensor.mT) / 2, rtol=0, atol=BOUND)
    trace = symmetric.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] / 3 * torch.eye(3)
    torch.testing.assert_close(back("ij=ji", True), symmetric - trace, rtol=0, atol=BOUND)


def test_what_components_are() -> None:
    a, b = torch.randn(2, 3)
    scalar = CartesianTensor("ij=ji").from_vectors(a, b)[0]
    torch.testing.assert_close(scalar, a @ b / 3**0.5, rtol=0, atol=BOUND)
    found = CartesianTensor("ij=-ji").from_vectors(a, b)
    torch.testing.assert_close(found, torch.linalg.cross(a, b) / 2**0.5, rtol=0, atol=BOUND)


def test_traceless_tensors_have_no_traces() -> None:
    layer = CartesianTensor("ijkl=jikl=klij", traceless=True)
    assert layer.irreps_out == o3.Irreps("4e")
    tensor = layer.to_cartesian(torch.randn(9))
    for i, j in ((0, 1), (0, 2), (1, 3)):
        assert float(tensor.diagonal(dim1=i, dim2=j).sum(-1).abs().max()) < BOUND
    assert CartesianTensor("ijk=jik=ikj", traceless=True).irreps_out == o3.Irreps("3o")
    layer = CartesianTensor("ijk=kji", traceless=True)  # the trace over its ends is no other trace
    tensor = layer.to_cartesian(torch.randn(layer.irreps_out.dim))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert float(tensor.diagonal(dim1=i, dim2=j).sum(-1).abs().max()) < BOUND
    assert CartesianTensor("i", traceless=True).irreps_out == o3.Irreps("1o")


def test_elasticity_of_an_isotropic_solid_is_scalars() -> None:
    one = torch.eye(3)
    pairs = torch.einsum("ij,kl->ijkl", one, one)
    lame = 2.0 * pairs + 0.7 * (pairs.permute(0, 2, 1, 3) + pairs.permute(0, 2, 3, 1))
    layer = CartesianTensor("ijkl=jikl=klij")
    found = layer(lame)
    assert layer.irreps_out == o3.Irreps("2x0e + 2x2e + 4e")
    assert float(found[2:].abs().max()) < BOUND * 10
    torch.testing.assert_close(found.norm(), lame.norm(), rtol=0, atol=BOUND * 10)
    torch.testing.assert_close(layer.to_cartesian(found), lame, rtol=0, atol=BOUND * 10)


def test_the_basis_is_made_once_and_kept_in_float64() -> None:
    assert cartesian_basis("ij=ji") is cartesian_basis("ij=ji")
    layer = CartesianTensor("ij=ji").float()
    assert layer.change_of_basis.dtype == torch.float64
    assert not layer.state_dict()
    assert layer(torch.eye(3, dtype=torch.float32)).dtype == torch.float32


def test_a_tensor_that_can_only_be_zero() -> None:
    layer = CartesianTensor("ij=ji=-ij")
    assert layer.irreps_out.dim == 0
    assert layer(torch.randn(2, 3, 3)).shape == (2, 0)
    assert not layer.to_cartesian(torch.zeros(2, 0)).any()


def test_errors() -> None:
    layer = CartesianTensor("ij=ji")
    with pytest.raises(ShapeError, match="vectors must be 2, one for each index of 'ij=ji', got 1"):
        layer.from_vectors(torch.zeros(3))
    with pytest.raises(ShapeError, match=r"vectors\[1\] must be \[\.\.\., 3\], got \[2\]"):
        layer.from_vectors(torch.zeros(3), torch.zeros(2))


def test_the_matrix_loses_no_digits_on_the_way_through_other_dtypes() -> None:
    tensor = CartesianTensor("ijkl=jikl=klij")
    x = torch.randn(3, 21, dtype=torch.float64)
    exact = (x @ tensor.change_of_basis.flatten(1)).view(3, 3, 3, 3, 3)
    for layer in (tensor, tensor.double(), tensor.bfloat16(), tensor.double()):
        torch.testing.assert_close(layer.to_cartesian(x), exact, rtol=0, atol=1e-14)
        torch.testing.assert_close(layer.from_cartesian(exact), x, rtol=0, atol=1e-13)
