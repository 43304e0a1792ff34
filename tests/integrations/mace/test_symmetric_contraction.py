"""SymmetricContraction beside MACE's: numbers, derivatives, and state dicts in both directions, strictly."""

from typing import Any

import pytest
import torch
from e3nn import o3
from mace import modules
from mace.modules import blocks
from mace.tools.cg import CUET_AVAILABLE
from torch import Tensor, nn
from torch.nn.functional import one_hot

from eqlayers.nn import SymmetricContraction

SPECIES = torch.tensor([1, 0, 2, 1, 1])
CASES = [
    ("0e + 1o + 2e + 3o", "0e + 1o", 3),
    ("0e + 1o + 2e", "0e + 1o + 2e", 3),
    ("0e + 1o + 2e", "0e + 1o", 4),
    ("0e + 1o + 2e", "0e + 2e", 2),
    ("0e + 1o + 2e", "1o", 1),
    ("1o + 0e + 2e", "1o + 0e", 3),
    ("0e + 1o", "2e + 0e", 3),  # 2e is not linear in x: MACE zeroes weights of another degree
    ("0e + 0o + 1e + 1o", "1e + 0o", 3),  # 1e has couplings that are antisymmetric
]
# MACE has reduced paths where cuequivariance is installed
BASES = [False, pytest.param(True, marks=pytest.mark.skipif(not CUET_AVAILABLE, reason="needs cuequivariance"))]


def pair(
    irreps_in: str, irreps_out: str, correlation: int, reduced: bool, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, SymmetricContraction]:
    """MACE's layer and ours, each with weights of its own."""
    torch.set_default_dtype(dtype)
    three = [o3.Irreps([(3, ir) for _, ir in o3.Irreps(text)]) for text in (irreps_in, irreps_out)]
    theirs = modules.SymmetricContraction(*three, correlation, num_elements=3, use_reduced_cg=reduced)
    return theirs, SymmetricContraction(*three, correlation, 3, use_reduced_cg=reduced)


def results(layer: nn.Module, x: Tensor, y: Tensor) -> list[Tensor | None]:
    """Result, gradient by x, and the gradients of a loss of both, by x and all weights that are trained."""
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    z = layer(x, y)
    (dx,) = torch.autograd.grad(z.sin().sum(), x, create_graph=True)
    loss = z.square().sum() + dx.square().sum()
    return [z, dx, *torch.autograd.grad(loss, wanted, allow_unused=True)]


def assert_equal(tensors: list[Tensor | None], expected: list[Tensor | None], roundings: float = 1e3) -> None:
    assert len(tensors) == len(expected)
    for one, other in zip(tensors, expected, strict=True):
        if one is None or other is None:  # weights that change nothing
            rest = other if one is None else one
            assert rest is None or float(rest.detach().abs().max()) < 1e-10
        else:
            error = float((one - other).detach().abs().max())
            assert error <= roundings * torch.finfo(one.dtype).eps * max(1.0, float(other.detach().abs().max()))


@pytest.mark.parametrize("reduced", BASES)
@pytest.mark.parametrize(("irreps_in", "irreps_out", "correlation"), CASES)
def test_numbers_and_derivatives(irreps_in: str, irreps_out: str, correlation: int, reduced: bool) -> None:
    theirs, ours = pair(irreps_in, irreps_out, correlation, reduced)
    x = torch.randn(5, 3, ours.dim, requires_grad=True)
    y = one_hot(SPECIES, 3).to(x)
    for parameter, ours_too in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert parameter.shape == ours_too.shape
        assert parameter.requires_grad == ours_too.requires_grad
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    # the order and the signs of the paths, which MACE's converters count on
    assert all(one.mixings == one._own for one in ours.contractions)
    expected = results(theirs, x, y)
    assert [name for name, _ in theirs.named_parameters()] == [name for name, _ in ours.named_parameters()]
    assert_equal(results(ours, x, SPECIES), expected, 1e4)
    assert_equal(results(ours, x, y), expected, 1e4)


@pytest.mark.parametrize("reduced", BASES)
@pytest.mark.parametrize(("irreps_in", "irreps_out", "correlation"), CASES)
def test_our_state_dict_loads_into_mace(irreps_in: str, irreps_out: str, correlation: int, reduced: bool) -> None:
    theirs, ours = pair(irreps_in, irreps_out, correlation, reduced)
    x, y = torch.randn(5, 3, ours.dim), one_hot(SPECIES, 3).double()
    state = theirs.state_dict()
    for _ in range(2):  # with our weights, then with theirs, which have been here
        assert str(theirs.load_state_dict(ours.state_dict(), strict=True)) == "<All keys matched successfully>"
        assert_equal([theirs(x, y)], [ours(x, SPECIES)])
        ours.load_state_dict(state)
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in ours.state_dict().items()
    }


@pytest.mark.parametrize("correlation", [2, 3])
def test_float32(correlation: int) -> None:
    theirs, ours = pair("0e + 1o + 2e", "0e + 1o", correlation, False, torch.float32)
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    assert ours.contractions[0].mixings == ours.contractions[0]._own  # rounded tensors are no other basis
    x = torch.randn(5, 3, 9, requires_grad=True)
    assert_equal(results(ours, x, SPECIES), results(theirs, x, one_hot(SPECIES, 3).to(x)), 1e3)


@pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("reduced", [None, False])  # True asks for one more package
def test_the_block_of_a_network(reduced: bool | None, agnostic: bool) -> None:
    """MACE calls it with features ``[N, C, D]``, and with one species where all share their weights."""
    torch.set_default_dtype(torch.float64)
    irreps = o3.Irreps("3x0e + 3x1o + 3x2e")
    options: dict[str, Any] = {
        "use_sc": True,
        "num_elements": 3,
        "use_agnostic_product": agnostic,
        "use_reduced_cg": reduced,
    }
    block = blocks.EquivariantProductBasisBlock(irreps, o3.Irreps("3x0e + 3x1o"), 3, **options)
    x, sc, y = torch.randn(5, 3, 9), torch.randn(5, 12), one_hot(SPECIES, 3).double()
    expected = block(x, sc, y)
    theirs = block.symmetric_contractions
    elements = theirs.contractions[0].weights_max.shape[0]
    ours = SymmetricContraction(theirs.irreps_in, theirs.irreps_out, 3, elements, use_reduced_cg=reduced)
    ours.load_state_dict(theirs.state_dict())
    block.symmetric_contractions = ours
    assert_equal([block(x, sc, y)], [expected])
