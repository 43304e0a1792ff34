"""Properties of harmonics, edges and contractions: transforms of torch, lazily negated tensors, modes, compilers."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import eqlayers as eq
from eqlayers.core.forms.description import KNOWN
from eqlayers.errors import ConfigError
from eqlayers.layers.contraction import lower as symmetric
from eqlayers.layers.harmonics import lower as spherical
from eqlayers.nn import EdgeGeometry, SphericalHarmonics, SymmetricContraction

EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])


@contextmanager
def no_formulas() -> Iterator[None]:
    """Forget formulas, like a process that never built a layer; no cache keeps formulas that are made inside."""
    made = symmetric.lowered, spherical.harmonics_formula, spherical.edge_formula
    before = dict(KNOWN)
    KNOWN.clear()
    for cached in made:
        cached.cache_clear()
    try:
        yield
    finally:
        for cached in made:
            cached.cache_clear()
        KNOWN.clear()
        KNOWN.update(before)


def negated(t: Tensor) -> Tensor:
    """Numbers that are kept as their negatives and a mark."""
    out = torch.complex(torch.zeros_like(t), -t).conj().imag
    assert out.is_neg()
    return out


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_tensors_that_are_negated_lazily(backend: str) -> None:
    """Operands and cotangents of one column, which no copy would write out."""
    x = torch.randn(4, 3, dtype=torch.float64)
    product = eq.FullyConnectedTensorProduct("2x1o", "1x0e", "1x1o", backend=backend).double()
    features, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)
    torch.testing.assert_close(product(features, negated(y)), product(features, y))
    pos = x.clone().requires_grad_()
    lengths = EdgeGeometry("0e", backend=backend)(pos, EDGES).lengths
    cotangent = torch.tensor([2.0, -1.0, 1.0], dtype=torch.float64)
    want = torch.autograd.grad(lengths, pos, cotangent, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(lengths, pos, negated(cotangent)), want)


def test_zeros_that_are_not_written_out() -> None:
    zeros = torch._efficientzerotensor((5, 3))
    layer = SphericalHarmonics([0, 1, 2], False, "component")
    assert torch.equal(layer(zeros), layer(torch.zeros(5, 3)))


@pytest.mark.kernels
def test_function_modes_see_the_operator() -> None:
    seen: list[str] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        SphericalHarmonics([1], True)(torch.randn(2, 3))
    assert any("eqlayers.form" in name for name in seen)


def contraction(elements: int = 3) -> SymmetricContraction:
    return SymmetricContraction("2x0e + 2x1o", "2x0e + 2x1o", 2, elements)


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore")
def test_contractions_compile_and_export_for_any_number_of_atoms() -> None:
    layer = contraction(12)

    def case(atoms: int) -> tuple[Tensor, Tensor]:
        return torch.randn(atoms, 2, 4), torch.arange(atoms) % 12

    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    for atoms in (5, 11, 12, 30):
        x, species = case(atoms)
        torch.testing.assert_close(compiled(x, species), layer(x, species))
    atoms = torch.export.Dim("atoms", min=2, max=10_000)  # torch 2.6 asks for a bound
    program = torch.export.export(layer, case(20), dynamic_shapes=({0: atoms}, {0: atoms}))
    x, species = case(7)
    torch.testing.assert_close(program.module()(x, species), layer(x, species))


@pytest.mark.kernels
def test_what_torchscript_cannot_hold_says_so() -> None:
    for layer in (contraction(), EdgeGeometry([0, 1])):
        with pytest.raises(ConfigError, match=r"a layer must have a TorchScript wrapper.*Use torch\.compile"):
            torch.jit.script(layer)
    with pytest.raises(ConfigError, match="a layer must"):
        torch.jit.trace(contraction(), (torch.randn(3, 8), torch.tensor([0, 1, 2])))


def test_species_found_in_a_transform_serve_outside() -> None:
    layer, x = contraction().double(), torch.randn(4, 8, dtype=torch.float64)
    species = torch.tensor([0, 2, 2, 1])
    torch.func.vmap(layer)(torch.stack([x, x]), torch.stack([species, species.flip(0)]))
    torch.func.hessian(lambda t: layer(t, species).square().sum())(x)
    want = SymmetricContraction("2x0e + 2x1o", "2x0e + 2x1o", 2, 3, backend="reference").double()
    want.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x, species), want(x, species))
    species[0] = 1  # in place
    torch.testing.assert_close(layer(x, species), want(x, species))


def test_no_atoms_keep_every_input_in_the_graph() -> None:
    layer = contraction()
    x, y = torch.zeros(0, 8, requires_grad=True), torch.zeros(0, 3, requires_grad=True)
    for gradient, like in zip(torch.autograd.grad(layer(x, y).sum(), [x, y]), [x, y], strict=True):
        assert gradient.shape == like.shape


@pytest.mark.kernels
def test_layers_that_are_loaded_can_be_compiled_first() -> None:
    """Pickles bring their formulas along; torch.compile cannot make them known."""
    pos = torch.randn(4, 3)
    calls = [
        (SphericalHarmonics([0, 2], True), (pos,)),
        (EdgeGeometry([0, 1, 3]), (pos, EDGES)),
        (contraction(), (torch.randn(3, 8), torch.tensor([0, 1, 2]))),
    ]
    for layer, inputs in calls:
        want, written = layer(*inputs), pickle.dumps(layer)
        with no_formulas():
            loaded = pickle.loads(written)
            torch.compiler.reset()
            found = torch.compile(loaded, backend="eager", fullgraph=True)(*inputs)
        torch.testing.assert_close(found, want)


@pytest.mark.kernels
@pytest.mark.parametrize("l", [[0, 3], 2, "1o + 2e"])
def test_the_function_can_be_compiled_first(l: object) -> None:
    torch.compiler.reset()
    x = torch.randn(4, 3)

    def run(x: Tensor) -> Tensor:
        return eq.functional.spherical_harmonics(l, x, True)

    with no_formulas():
        torch.testing.assert_close(torch.compile(run, backend="eager", fullgraph=True)(x), run(x))
