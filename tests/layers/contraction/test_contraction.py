"""SymmetricContraction against its dense definition; derivatives, layouts, species, state dicts."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor
from torch.nn.functional import one_hot

from eqlayers import to_ir_mul, to_mul_ir
from eqlayers.irreps.algebra import wigner_3j
from eqlayers.nn import SymmetricContraction
from eqlayers.testing import check_derivatives

ABC = "2x0e + 2x1o + 2x2e"
SPECIES = torch.tensor([1, 0, 1, 1])


def couplings(irreps: o3.Irreps, degree: int) -> list[tuple[o3.Irrep, Tensor]]:
    """All couplings of single irreps from left to right, ``[2 l + 1, D, ..., D]``, in order; not symmetrised."""
    unit = torch.eye(irreps.dim, dtype=torch.float64)
    if degree == 1:
        return [(ir, unit[columns]) for columns, (_, ir) in zip(irreps.slices(), irreps, strict=True)]
    found = []
    for left, tensor in couplings(irreps, degree - 1):
        for columns, (_, right) in zip(irreps.slices(), irreps, strict=True):
            for ir in left * right:
                w3j = torch.from_numpy(wigner_3j(ir.l, left.l, right.l).copy()) * math.sqrt(ir.dim)
                found.append((ir, torch.einsum("kab,a...,bj->k...j", w3j, tensor, unit[columns])))
    return sorted(found, key=lambda pair: (pair[0].l, pair[0].p))


def defined(layer: SymmetricContraction, x: Tensor, mix: Tensor) -> Tensor:
    """The sum over degrees of ``U W x ... x``, for features ``[N, C, D]`` and species ``[N, Z]``, in mul_ir."""
    single = o3.Irreps([(1, ir) for _, ir in layer.irreps_in])
    out = []
    for one, (_, ir) in zip(layer.contractions, layer.irreps_out, strict=True):
        total = x.new_zeros(*x.shape[:2], ir.dim)
        for degree in range(1, layer.correlation + 1):
            u = [tensor for other, tensor in couplings(single, degree) if other == ir]
            if u:
                highest = degree == layer.correlation
                of_degree = one.weights_max if highest else one.weights[layer.correlation - 1 - degree]
                weights = torch.einsum("nz,zpc->ncp", mix, of_degree)
                value = torch.stack(u)[None, None].expand(*x.shape[:2], *[-1] * (degree + 2))
                for _ in range(degree):
                    value = torch.einsum("nc...i,nci->nc...", value, x)
                total = total + torch.einsum("ncpk,ncp->nck", value, weights)
        out.append(total.flatten(1))
    return torch.cat(out, 1)


def layer_and_input(
    irreps_in: str = ABC, irreps_out: str = "2x0e + 2x1o", correlation: int = 3, **options: Any
) -> tuple[SymmetricContraction, Tensor]:
    layer = SymmetricContraction(irreps_in, irreps_out, correlation, 2, **options).double()
    return layer, torch.randn(4, layer.channels, layer.dim, dtype=torch.float64)


def assert_equal(found: Tensor, expected: Tensor, roundings: float = 1e3) -> None:
    assert found.shape == expected.shape
    error = float((found - expected).detach().abs().max())
    assert error <= roundings * torch.finfo(found.dtype).eps * float(expected.detach().abs().max())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("correlation", [1, 2, 3])
@pytest.mark.parametrize(
    ("irreps_in", "irreps_out"),
    [(ABC, "2x0e + 2x1o + 2x2e"), ("3x1o + 3x0e", "3x2e + 3x1o + 3x1o"), ("1x0o + 1x1e + 1x1o", "1x1e + 1x0o")],
)
def test_definition_and_both_derivatives(irreps_in: str, irreps_out: str, correlation: int) -> None:
    layer, x = layer_and_input(irreps_in, irreps_out, correlation)
    x.requires_grad_()
    mix = one_hot(SPECIES, 2).double()
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    results = []
    for z in (layer(x, SPECIES), defined(layer, x, mix)):
        (dx,) = torch.autograd.grad(z.sin().sum(), x, create_graph=True)
        loss = z.square().sum() + dx.square().sum()
        results.append([z, dx, *torch.autograd.grad(loss, wanted, allow_unused=True)])
    for found, expected in zip(*results, strict=True):
        if found is None or expected is None:  # weights of antisymmetric couplings, which change nothing
            assert all(grad is None or not grad.abs().max() > 1e-12 for grad in (found, expected))
        else:
            assert_equal(found, expected, 1e4)


@pytest.mark.parametrize("reduced", [False, pytest.param(True, marks=pytest.mark.slow)])  # other coefficients
def test_derivatives(reduced: bool) -> None:
    layer, x = layer_and_input("1x0e + 1x1o", "1x1o", 3, use_reduced_cg=reduced)
    x = x[:2].requires_grad_()
    for parameter in layer.parameters():
        parameter.requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, mix: Tensor, *weights: Tensor) -> Tensor:
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(layer, given, (x, SPECIES[:2])) + torch.func.functional_call(
            layer, given, (x, mix)
        )

    mix = torch.rand(2, 2, dtype=torch.float64, requires_grad=True)
    inputs = (x, mix, *(p.detach().clone().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)
    assert check_derivatives(run, inputs, order=3, max_elements=4).ok


def test_layouts_and_packed_features() -> None:
    layer, x = layer_and_input()
    other = copy.deepcopy(layer)
    other = SymmetricContraction(ABC, layer.irreps_out, 3, 2, layout="ir_mul").double()
    other.load_state_dict(layer.state_dict())
    flat = torch.cat([part.flatten(1) for part in x.split([1, 3, 5], 2)], 1)
    expected = layer(x, SPECIES)
    assert_equal(layer(flat, SPECIES), expected)
    assert_equal(to_mul_ir(other(to_ir_mul(flat, layer.irreps_in), SPECIES), layer.irreps_out), expected)
    assert_equal(to_mul_ir(other(x, SPECIES), layer.irreps_out), expected)
    assert_equal(layer(x.mT.contiguous().mT, SPECIES), expected)


@pytest.mark.parametrize("form", [torch.long, torch.double, torch.float, torch.bool])
def test_one_hot_rows_are_species(form: torch.dtype) -> None:
    layer, x = layer_and_input()
    assert torch.equal(layer(x, one_hot(SPECIES, 2).to(form)), layer(x, SPECIES))
    assert torch.equal(layer(x, SPECIES.int()), layer(x, SPECIES))


def test_the_result_is_linear_in_rows_that_are_not_one_hot() -> None:
    layer, x = layer_and_input()
    for mix in (torch.rand(4, 2), torch.tensor([[1.0, 1.0]] * 4), 2 * one_hot(SPECIES, 2), torch.zeros(4, 2)):
        mix = mix.double()
        expected = defined(layer, x, mix).detach()
        assert float((layer(x, mix) - expected).detach().abs().max()) <= 1e-12 * max(1.0, float(expected.abs().max()))
    hot = one_hot(SPECIES, 2).double().requires_grad_()
    (grad,) = torch.autograd.grad(layer(x, hot).sum(), hot)
    other = hot.detach().clone().requires_grad_()
    assert_equal(grad, torch.autograd.grad(defined(layer, x, other).sum(), other)[0])


def test_rows_that_are_taken_for_one_hot_and_are_not_give_nan() -> None:
    layer, x = layer_and_input(one_hot=True)
    mix = one_hot(SPECIES, 2).double()
    assert torch.equal(layer(x, mix), layer(x, SPECIES))
    mix[1] = 0.5
    found = layer(x, mix)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2, 3]], layer(x, SPECIES)[[0, 2, 3]])
    mixing, _ = layer_and_input(one_hot=False)
    mixing.load_state_dict(layer.state_dict())
    assert_equal(mixing(x, mix), defined(layer, x, mix))
    assert_equal(mixing(x, SPECIES), layer(x, SPECIES))


def test_few_atoms_of_many_species() -> None:
    layer = SymmetricContraction(ABC, "2x0e", 2, 89).double()
    x = torch.randn(3, 2, 9, dtype=torch.float64)
    y = torch.tensor([88, 3, 88])
    z = layer(x, y)
    assert_equal(z, defined(layer, x, one_hot(y, 89).double()))
    z.sum().backward()
    reached = layer.contractions[0].weights_max.grad.abs().sum((1, 2)).nonzero().flatten()
    assert reached.tolist() == [3, 88]


@pytest.mark.parametrize("correlation", [1, 3])
@pytest.mark.parametrize("atoms", [0, 1])
def test_no_atoms_and_one_atom(atoms: int, correlation: int) -> None:
    layer, x = layer_and_input(correlation=correlation)
    x = x[:atoms].requires_grad_()
    for y in (SPECIES[:atoms], one_hot(SPECIES[:atoms], 2).double()):
        z = layer(x, y)
        assert z.shape == (atoms, 8)
        grads = torch.autograd.grad(z.sum(), [x, *layer.parameters()])
        assert grads[0].shape == x.shape
        assert atoms or not any(grad.any() for grad in grads)


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 200), (torch.float16, 4), (torch.bfloat16, 4)])
def test_dtypes(dtype: torch.dtype, roundings: float) -> None:
    layer, x = layer_and_input()
    layer, x = layer.to(dtype), x.to(dtype)
    found = layer(x, SPECIES)
    assert found.dtype == dtype
    assert_equal(found, layer.double()(x.double(), SPECIES).to(dtype), roundings)


def test_the_default_dtype_changes_nothing_but_the_weights() -> None:
    single, x = layer_and_input()
    torch.set_default_dtype(torch.float64)
    try:
        double = SymmetricContraction(ABC, "2x0e + 2x1o", 3, 2)
        double.load_state_dict(single.state_dict())
        assert torch.equal(double(x, SPECIES), single(x, SPECIES))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.kernels
def test_autocast_takes_the_widest() -> None:
    layer, x = layer_and_input()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(x.bfloat16(), SPECIES).dtype == torch.float32
        found = layer(x.bfloat16(), torch.full((4, 2), 0.3))
    assert torch.equal(found, layer(x.bfloat16().float(), torch.full((4, 2), 0.3)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_with_its_atom_and_channel(value: float) -> None:
    layer, x = layer_and_input(irreps_out="2x0e")
    expected = layer(x, SPECIES)
    x[2, 1, 0] = value
    found = layer(x, SPECIES)
    bad = ~found.isfinite()
    assert bad.nonzero().tolist() == [[2, 1]]
    assert torch.equal(found[~bad], expected[~bad])
    with torch.no_grad():
        layer.contractions[0].weights_max[0] = value
    assert (~layer(x, SPECIES).isfinite()).any(1).tolist() == [False, True, True, False]


def test_state_dict() -> None:
    layer, x = layer_and_input("2x0e + 2x1o", "2x0e + 2x2e")
    state = layer.state_dict()
    shapes = {name: list(value.shape) for name, value in state.items() if name.startswith("contractions.1")}
    assert shapes == {
        "contractions.1.weights_max": [2, 3, 2],
        "contractions.1.weights.0": [2, 1, 2],
        "contractions.1.weights.1": [2, 1, 2],
        "contractions.1.weights_0_zeroed": [],
        "contractions.1.weights_1_zeroed": [],
        "contractions.1.weights_max_zeroed": [],
        "contractions.1.U_matrix_1": [5, 4, 1],
        "contractions.1.U_matrix_2": [5, 4, 4, 1],
        "contractions.1.U_matrix_3": [5, 4, 4, 4, 3],
    }
    # no 2e is linear in x: MACE zeroes the weights of this number, which are those of degree 2
    assert bool(state["contractions.1.weights_0_zeroed"])
    assert not layer.contractions[1].weights[0].requires_grad
    assert not layer.contractions[1].weights[0].any()
    other, _ = layer_and_input("2x0e + 2x1o", "2x0e + 2x2e")
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(other(x, SPECIES), layer(x, SPECIES))


def test_a_state_dict_of_another_basis_keeps_its_meaning() -> None:
    layer, x = layer_and_input(use_reduced_cg=True)
    expected = layer(x, SPECIES)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    turn = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))[0]
    state["contractions.0.U_matrix_3"] = state["contractions.0.U_matrix_3"] @ turn
    weights = state["contractions.0.weights_max"]
    state["contractions.0.weights_max"] = torch.einsum("pq,zpc->zqc", turn, weights)
    other, _ = layer_and_input(use_reduced_cg=True)
    other.load_state_dict(state)
    assert_equal(other(x, SPECIES), expected)
    for copied in (copy.deepcopy(other), layer):
        copied.load_state_dict(other.state_dict())
        assert_equal(copied(x, SPECIES), expected)
    assert_equal(copy.deepcopy(other)(x, SPECIES), expected)


@pytest.mark.kernels
def test_copies_and_description() -> None:
    layer, x = layer_and_input()
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    for other in (copy.deepcopy(layer), torch.load(stored, weights_only=False)):
        assert torch.equal(other(x, SPECIES), layer(x, SPECIES))
        assert other.contractions[0].weights_max is not layer.contractions[0].weights_max
        other.load_state_dict(layer.state_dict())
    assert repr(layer) == (
        "SymmetricContraction(2x0e+2x1o+2x2e -> 2x0e+2x1o, correlation 3 | 2 species | 108 terms | 164 weights | "
        "mul_ir, backend auto)"
    )
    assert layer.num_terms == 108
    assert layer.weight_numel == 164


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_unequal_multiplicities_are_channels_filled_with_zeros(layout: str) -> None:
    """Channels that an irrep lacks have zeros for it, and a result of fewer copies has the first channels."""
    layer = SymmetricContraction("3x0e + 1x1o + 2x2e", "2x0e + 3x1o + 1x2e", 3, 2, layout=layout).double()
    whole = SymmetricContraction("3x0e + 3x1o + 3x2e", "3x0e + 3x1o + 3x2e", 3, 2).double()
    whole.load_state_dict(layer.state_dict())
    x = torch.randn(4, layer.irreps_in.dim, dtype=torch.float64, requires_grad=True)
    given = to_mul_ir(x, layer.irreps_in) if layout == "ir_mul" else x
    parts = [given[:, columns].unflatten(1, (mul, ir.dim)) for columns, (mul, ir) in zip(
        layer.irreps_in.slices(), layer.irreps_in, strict=True)]  # fmt: skip
    packed = torch.cat([torch.nn.functional.pad(part, (0, 0, 0, 3 - part.shape[1])) for part in parts], 2)
    z = whole(packed, SPECIES)
    blocks = [z[:, columns].unflatten(1, (3, ir.dim))[:, :mul].flatten(1) for columns, (_, ir), (mul, _) in zip(
        whole.irreps_out.slices(), whole.irreps_out, layer.irreps_out, strict=True)]  # fmt: skip
    want = torch.cat(blocks, 1)
    found = layer(x, SPECIES)
    found = to_mul_ir(found, layer.irreps_out) if layout == "ir_mul" else found
    torch.testing.assert_close(found, want, atol=1e-13, rtol=0)
    for got, expected in zip(*(torch.autograd.grad(t.square().sum(), x) for t in (found, want)), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    assert layer(x[:0], SPECIES[:0]).shape == (0, layer.irreps_out.dim)
