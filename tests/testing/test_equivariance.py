"""The residual is zero for what commutes with O(3) and large for what does not."""

import pytest
import torch
from e3nn import o3

from eqlayers.errors import ConfigError, IrrepsError
from eqlayers.testing import equivariance_residual, random_orthogonal


@pytest.mark.parametrize("determinant", [1, -1])
def test_random_orthogonal_matrices(determinant):
    for seed in range(5):
        q = random_orthogonal(seed, determinant)
        assert q.dtype == torch.float64
        torch.testing.assert_close(q @ q.T, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-14)
        assert torch.linalg.det(q).item() == pytest.approx(determinant, abs=1e-14)
        assert torch.equal(q, random_orthogonal(seed, determinant))
    assert not torch.equal(random_orthogonal(0), random_orthogonal(1))


def norms(x):
    """[N, 6]: two vectors scaled by functions of their lengths."""
    v = x.reshape(-1, 2, 3)
    return (v * (1 + v.norm(dim=-1, keepdim=True)).log()).reshape(-1, 6)


@pytest.mark.parametrize("determinant", [1, -1])
def test_equivariant_functions_have_no_residual(determinant):
    options = {"determinant": determinant, "seed": 3}
    assert equivariance_residual(norms, ["2x1o"], "2x1o", **options) < 1e-14
    assert equivariance_residual(lambda x: 2 * x, ["2x0e+3x1o+2e+3o"], "2x0e+3x1o+2e+3o", **options) < 1e-13
    product = o3.FullTensorProduct("1o+2e", "1o").double()
    assert equivariance_residual(product, ["1o+2e", "1o"], product.irreps_out, **options) < 1e-6  # e3nn: float32 tables


def test_functions_that_are_not_equivariant_are_caught():
    assert equivariance_residual(torch.abs, ["1o"], "1o") > 1e-2
    assert equivariance_residual(lambda x: x.roll(1, -1), ["2e"], "2e") > 1e-2
    assert equivariance_residual(lambda x: x[..., :1], ["1o"], "0e") > 1e-2
    assert equivariance_residual(lambda x: 2 * x, ["1o"], "1e", determinant=-1) > 1e-2


def test_parity_shows_under_the_inversion_only():
    def cross(x, y):
        return torch.linalg.cross(x, y)

    for determinant in (1, -1):
        assert equivariance_residual(cross, ["1o", "1o"], "1e", determinant=determinant) < 1e-14
    assert equivariance_residual(cross, ["1o", "1o"], "1o", determinant=1) < 1e-14
    assert equivariance_residual(cross, ["1o", "1o"], "1o", determinant=-1) > 1e-2


def test_a_small_fault_shows_at_its_size():
    fault = torch.tensor([1.0, 1.0, 1.0 + 1e-6], dtype=torch.float64)
    assert 1e-8 < equivariance_residual(lambda x: x * fault, ["1o"], "1o") < 1e-5


def test_layouts():
    def norms_ir_mul(x):
        return (
            norms(x.reshape(-1, 3, 2).transpose(1, 2).reshape(-1, 6)).reshape(-1, 2, 3).transpose(1, 2).reshape(-1, 6)
        )

    assert equivariance_residual(norms_ir_mul, ["2x1o"], "2x1o", layout="ir_mul") < 1e-14
    assert equivariance_residual(norms_ir_mul, ["2x1o"], "2x1o", layout="mul_ir") > 1e-2
    assert equivariance_residual(norms, ["2x1o"], "2x1o", layout="ir_mul") > 1e-2
    with pytest.raises(ConfigError, match="layout"):
        equivariance_residual(norms, ["2x1o"], "2x1o", layout="rows")


def test_own_inputs_dtype_and_seed():
    x = torch.randn(7, 6)
    seen = []
    residual = equivariance_residual(lambda t: (seen.append(t), norms(t))[1], ["2x1o"], "2x1o", [x])
    assert residual < 1e-6
    assert seen[0] is x
    assert seen[1].dtype == torch.float32
    residuals = [equivariance_residual(torch.abs, ["1o"], "1o", seed=s) for s in (1, 1, 2)]
    assert residuals[0] == residuals[1] != residuals[2]
    with pytest.raises(IrrepsError):
        equivariance_residual(norms, ["2x1"], "2x1o")


def test_random_state_and_defaults_of_torch():
    want, state, before = (
        equivariance_residual(torch.abs, ["1o"], "1o"),
        torch.get_rng_state(),
        torch.get_default_dtype(),
    )
    torch.set_default_dtype(torch.float64)
    try:
        assert equivariance_residual(torch.abs, ["1o"], "1o") == want
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(state, torch.get_rng_state())
    with torch.device("meta"):
        assert random_orthogonal(1).device.type == "cpu"
