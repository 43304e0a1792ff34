"""The formulas of Bessel functions and of hidden layers: their definitions in 40 digits, both ends, every shape."""

import pickle
import subprocess
import sys

import mpmath
import pytest
import torch

from eqlayers.errors import DTypeError
from eqlayers.layers.base.module import run_formula
from eqlayers.layers.radial.lower import MOST_FUNCTIONS, activation_formula
from eqlayers.layers.radial.module import BesselBasis, RadialNetwork
from eqlayers.nn import PolynomialCutoff
from eqlayers.testing import check_derivatives
from tests.each import each

EPS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def exact(n: int, cutoff: float, p: int, r: float) -> list[mpmath.mpf]:
    """One function times the envelope, from its definition, and its derivatives to the third."""

    def value(at: mpmath.mpf) -> mpmath.mpf:
        u = at / cutoff
        parts = (1, -(p + 1) * (p + 2) / mpmath.mpf(2), p * (p + 2), -p * (p + 1) / mpmath.mpf(2))
        envelope = parts[0] + sum(part * u ** (p + k) for k, part in enumerate(parts[1:]))
        scale = mpmath.sqrt(mpmath.mpf(2) / cutoff) * n * mpmath.pi / cutoff
        return scale * mpmath.sinc(n * mpmath.pi * u) * envelope

    with mpmath.workdps(60):
        return list(mpmath.diffs(value, mpmath.mpf(r), 3))


@pytest.mark.kernels
@each("number, cutoff, p", [(1, 5.0, 6), (8, 5.0, 6), (5, 1.0, 2), (32, 6.0, 32)])
@each("dtype", EPS)
def test_functions_and_their_derivatives(number: int, cutoff: float, p: int, dtype: torch.dtype) -> None:
    """Errors grow with the number of turns n; a derivative multiplies by at most (n pi + p) / cutoff."""
    basis = BesselBasis(number, cutoff, p)
    at = torch.tensor([0.0, 1e-6, 0.03, 0.3, 0.5, 0.7, 0.97, 1 - 2.0**-20]) * cutoff
    for n in {1, number}:
        r = at.to(dtype).requires_grad_()
        y, wanted = basis(r)[:, n - 1], [exact(n, cutoff, p, one) for one in r.tolist()]
        for order in range(4):
            scale = (2 / cutoff) ** 0.5 * n * 3.1416 / cutoff * ((n * 3.1416 + p) / cutoff) ** order
            for orders, found in zip(wanted, y.tolist(), strict=True):
                assert abs(float(found - orders[order])) <= 8 * (n + p) * EPS[dtype] * scale, order
            if order < 3:
                (y,) = torch.autograd.grad(y.sum(), r, create_graph=True)


@pytest.mark.kernels
@each("dtype", [torch.float16, torch.bfloat16, *EPS])
def test_nothing_at_the_cutoff_and_beyond(dtype: torch.dtype) -> None:
    basis = BesselBasis(6, 4.0)
    r = torch.tensor([4.0, 4.5, 1e4, torch.inf], dtype=dtype, requires_grad=True)
    y = basis(r)
    for _ in range(4):
        assert not y.any()
        (y,) = torch.autograd.grad(y.sum(), r, create_graph=True)
    near = basis(torch.linspace(3.9, 4.0, 500, dtype=dtype))
    assert bool((near * near.new_tensor([1, -1, 1, -1, 1, -1]) >= 0).all()), "no rounding below 0"
    assert bool(basis(torch.tensor([torch.nan], dtype=dtype)).isnan().all())


@pytest.mark.kernels
@each("shape", [(), (0,), (1,), (17,), (2, 0), (2, 3), (2, 3, 4)])
def test_shapes_and_strides(shape: tuple[int, ...]) -> None:
    basis = BesselBasis(5, 4.0)
    r = torch.rand(*shape, 2, dtype=torch.float64)[..., 0] * 5
    expected = basis.functions(r) * basis.envelope(r)[..., None]
    torch.testing.assert_close(basis(r), expected, rtol=0, atol=1e-14)


@pytest.mark.kernels
def test_transforms_and_compilers() -> None:
    basis, r = BesselBasis(3, 4.0), torch.tensor([0.0, 1.0, 3.9], dtype=torch.float64)
    assert check_derivatives(basis, [r[1:].requires_grad_()], order=3, tolerance=1e-5).ok
    torch.testing.assert_close(torch.func.vmap(basis)(r), basis(r), rtol=0, atol=0)
    forward, backward = (jac(basis)(r) for jac in (torch.func.jacfwd, torch.func.jacrev))
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-13)
    compiled = torch.compile(basis, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(r), basis(r), rtol=0, atol=0)


@each("basis", [BesselBasis(MOST_FUNCTIONS + 1), BesselBasis(4, p=2.5), BesselBasis(4, p=33)])  # type: ignore[arg-type]
def test_others_are_computed_by_torch(basis: BesselBasis) -> None:
    assert basis.formulas() == ()
    r = torch.tensor([0.3, 4.0])
    torch.testing.assert_close(basis(r), basis.functions(r) * basis.envelope(r)[:, None], rtol=0, atol=0)


def test_a_changed_envelope_is_no_longer_that_of_the_formula() -> None:
    class Half(PolynomialCutoff):
        def forward(self, lengths: torch.Tensor) -> torch.Tensor:
            return super().forward(lengths) / 2

    r = torch.tensor([0.3, 4.0])
    torch.testing.assert_close(BesselBasis(4, envelope=Half(5.0))(r), BesselBasis(4)(r) / 2, rtol=1e-5, atol=1e-6)


def test_what_the_formula_does_not_know_is_asked() -> None:
    class Sevens(BesselBasis):
        def functions(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((*x.shape, self.num_basis), 7.0)

    r, calls = torch.tensor([1.0]), []
    sevens = Sevens(2, 5.0)
    torch.testing.assert_close(sevens(r), 7 * sevens.envelope(r)[:, None].expand(1, 2))
    basis = BesselBasis(2, 5.0)
    wanted = basis.functions(r) * basis.envelope(r)[:, None]
    handle = basis.envelope.register_forward_hook(lambda *given: calls.append(1))
    torch.testing.assert_close(basis(r), wanted)
    assert len(calls) == 1
    handle.remove()
    basis.envelope = PolynomialCutoff(5.0, 3)
    torch.testing.assert_close(basis(r), basis.functions(r) * basis.envelope(r)[:, None])
    basis.envelope = None
    torch.testing.assert_close(basis(r), basis.functions(r))


def test_another_process_runs_a_loaded_network() -> None:
    network, r = RadialNetwork(3, hidden=(4,)), torch.tensor([1.0])
    text = f"import pickle; m, r = pickle.loads({pickle.dumps((network, r))!r}); print(*m(r)[0].tolist())"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    found = torch.tensor([float(number) for number in done.stdout.split()])
    torch.testing.assert_close(found, network(r)[0].detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.kernels
@each("act, width", [("silu", 1), ("tanh", 3), ("sigmoid", 35), ("silu", 8)])
def test_hidden_layers(act: str, width: int) -> None:
    network = RadialNetwork(2, 3, hidden=(width, width)).double()
    first, last = network.formulas()
    assert first.key != last.key, "the last one has the factor of the last weights"
    base = activation_formula(width, (act, 1.5), 0.25)
    x = torch.randn(7, width, dtype=torch.float64, requires_grad=True)
    function = {"silu": torch.nn.functional.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}[act]
    torch.testing.assert_close(run_formula(base, [x])[0], 1.5 * function(0.25 * x), rtol=1e-14, atol=1e-15)
    assert check_derivatives(lambda x: run_formula(base, [x])[0], [x], order=3, tolerance=1e-5).ok


def test_features_of_any_shape_and_none_that_are_no_numbers() -> None:
    network = RadialNetwork(2, 3, hidden=(4,))
    r = torch.rand(2, 3) * 5
    torch.testing.assert_close(network(r)[1], network(r[1]), rtol=1e-6, atol=1e-7)
    assert network(torch.tensor(1.0)).shape == (2,)
    with pytest.raises(DTypeError):
        network(torch.ones(3, dtype=torch.int64))
