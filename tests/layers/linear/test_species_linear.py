"""Linear maps by species: e3nn's product with a one-hot input, without the zeros."""

import pytest
import torch
from e3nn import o3
from torch.nn.functional import one_hot

from eqlayers.errors import DeviceError, IndexRangeError
from eqlayers.layers.linear import structured_linear
from eqlayers.nn import Linear, SpeciesLinear

pytestmark = pytest.mark.kernels
IN, OUT, KIND = "6x0e + 5x1o + 2x0e", "4x0e + 3x1o + 2x2e", torch.tensor([0, 2, 2, 1, 0, 2, 0])


@pytest.fixture(params=["generated C", "each species", "masked", "gathered"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The backend, for each of the four ways; the last two are those of GPUs."""
    if request.param in ("masked", "gathered"):
        monkeypatch.setattr(SpeciesLinear, "_of_each_species", SpeciesLinear._of_any_species)
    monkeypatch.setattr(structured_linear, "MASKED", 0 if request.param == "gathered" else 3)
    return None if request.param == "generated C" else "torch"


@pytest.fixture
def layer(backend: str | None) -> SpeciesLinear:
    torch.manual_seed(0)
    return SpeciesLinear(IN, OUT, 3, backend=backend).double()


def test_it_is_e3nns_product_with_one_hot_attributes(layer: SpeciesLinear) -> None:
    theirs = o3.FullyConnectedTensorProduct(IN, "3x0e", OUT).double()
    x = torch.randn(7, layer.irreps_in.dim, dtype=torch.float64)
    rows = []
    for ins, w in zip(theirs.instructions, theirs.weight_views(), strict=True):
        # both normalise by the numbers of what arrives at an output: here three species more
        assert ins.path_shape[1] == 3
        rows.append((w.permute(1, 0, 2) / 3**0.5).reshape(3, -1))
    with torch.no_grad():
        layer.weight.copy_(torch.cat(rows, 1))
    want = theirs(x, one_hot(KIND, 3).double()).detach()
    torch.testing.assert_close(layer(x, KIND), want, rtol=0, atol=20 * 2.0**-52 * float(want.abs().max()))


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_each_species_is_a_linear_map(layout: str, backend: str | None) -> None:
    layer = SpeciesLinear(IN, OUT, 3, layout=layout, backend=backend)
    x = torch.randn(7, layer.irreps_in.dim)
    plain = Linear(IN, OUT, internal_weights=False, shared_weights=True, layout=layout)
    want = torch.stack([plain(row[None], layer.weight[k])[0] for row, k in zip(x, KIND.tolist(), strict=True)])
    torch.testing.assert_close(layer(x, KIND), want)


def test_derivatives(layer: SpeciesLinear) -> None:
    x = torch.randn(4, layer.irreps_in.dim, dtype=torch.float64, requires_grad=True)
    kind = torch.tensor([2, 0, 2, 1])

    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(layer, {"weight": weight}, (x, kind))
        return found

    assert torch.autograd.gradcheck(run, (x, layer.weight))
    assert torch.autograd.gradgradcheck(run, (x, layer.weight), fast_mode=True)


def test_species_that_are_absent_and_no_atoms(layer: SpeciesLinear) -> None:
    x = torch.randn(2, layer.irreps_in.dim, dtype=torch.float64)
    out = layer(x, torch.tensor([1, 1]))
    torch.testing.assert_close(out, layer.linear(x, layer.weight[1]))
    (grad,) = torch.autograd.grad(out.sum(), layer.weight)
    assert [float(row.abs().max()) > 0 for row in grad] == [False, True, False]
    assert layer(x[:0], KIND[:0]).shape == (0, layer.irreps_out.dim)


def test_traced_and_mapped_it_is_the_same(layer: SpeciesLinear) -> None:
    x = torch.randn(7, layer.irreps_in.dim, dtype=torch.float64)
    want = layer(x, KIND)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, KIND), want, rtol=1e-14, atol=1e-14)
    many = torch.func.vmap(lambda rows: layer(rows, KIND))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(many, torch.stack([want, 2 * want]), rtol=1e-14, atol=1e-14)


def test_generated_c_needs_no_gathered_weights(
    layer: SpeciesLinear, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(7, layer.irreps_in.dim, dtype=torch.float64)
    if backend is None:
        monkeypatch.setattr(layer, "_of_any_species", None)  # the other two ways
    assert layer(x, KIND).shape == (7, layer.irreps_out.dim)
    with pytest.raises(DeviceError, match="kind must"):
        layer(x[:2], torch.zeros(2, dtype=torch.int64, device="meta"))
    with pytest.raises(IndexRangeError, match="kind must"):
        layer(x, KIND + 1)


def test_autocast_and_frozen_weights(layer: SpeciesLinear) -> None:
    x = torch.randn(7, layer.irreps_in.dim, requires_grad=True)
    layer.float().requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, KIND)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), layer(x, KIND), rtol=0.1, atol=0.1)
    (grad,) = torch.autograd.grad(layer(x, KIND).sum(), x)
    assert float(grad.abs().min()) > 0
