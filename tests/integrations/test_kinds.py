"""Every kind of e3nn layer, replaced and put back: same numbers, same Parameters, same state dict, same objects."""

import io
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import nn

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.replacement import Replacement
from tests.each import each
from tests.integrations.conftest import copies

CHANNELS = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True), (0, 1, 1, "uvu", True)]
MODES = [(0, 0, 0, "uvw", True), (1, 0, 1, "uvv", True), (1, 0, 2, "uuw", True), (1, 0, 3, "uuu", True)]
LAYERS = {
    "fully connected": lambda: o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "3x0e + 2x1o + 1x2e"),
    "with right": lambda: o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x1o", "3x0e + 2x1o", compile_right=True),
    "weights per sample": lambda: o3.TensorProduct(
        "4x0e + 4x1o", "0e + 1o", "4x0e + 4x1o", CHANNELS, shared_weights=False, internal_weights=False
    ),
    "weights given": lambda: o3.TensorProduct(
        "4x0e + 4x1o", "0e + 1o", "4x0e + 4x1o", CHANNELS, internal_weights=False
    ),
    "many modes": lambda: o3.TensorProduct("3x0e + 2x1o", "2x1o", "2x1o + 2x0e + 3x1e + 2x2e", MODES),
    "norm normalisation": lambda: o3.FullyConnectedTensorProduct(
        "4x0e + 2x1o", "2x1o", "3x0e + 2x1o", irrep_normalization="norm", path_normalization="path"
    ),
    "elementwise": lambda: o3.ElementwiseTensorProduct("3x0e + 2x1o", "5x0e"),
    "full": lambda: o3.FullTensorProduct("2x0e + 1o", "1o + 0e"),
    "square": lambda: o3.TensorSquare("3x0e + 2x1o"),
    "square with weights": lambda: o3.TensorSquare("3x0e + 2x1o", "2x0e + 1o + 1e"),
    "no paths": lambda: o3.TensorProduct("2x0e", "1o", "2x0e", []),
    "linear": lambda: o3.Linear("4x0e + 3x1o", "2x0e + 2x1o"),
    "linear with biases": lambda: o3.Linear("4x0e + 3x1o", "2x0e + 2x1o + 1e", biases=True),
    "linear, weights per sample": lambda: o3.Linear("4x0e + 3x1o", "2x0e + 2x1o", shared_weights=False),
}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest, float64: None) -> nn.Module:
    return LAYERS[request.param]()


def call(module: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Value, and gradients with respect to all inputs and parameters."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        exact = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return exact.to(module.output_mask.dtype).requires_grad_()

    one = hasattr(module, "irreps_in")  # linear maps and squares
    inputs = (
        [draw(7, module.irreps_in.dim)] if one else [draw(7, module.irreps_in1.dim), draw(7, module.irreps_in2.dim)]
    )
    if not module.internal_weights and module.weight_numel:
        inputs.append(draw(*(() if module.shared_weights else (7,)), module.weight_numel))
        if getattr(module, "bias_numel", 0):
            inputs.append(draw(7, module.bias_numel))
    value = module(*inputs)
    results = {"value": value}
    wanted = {str(i): t for i, t in enumerate(inputs)} | dict(module.named_parameters())
    if value.requires_grad:
        grads = torch.autograd.grad(value.square().sum(), list(wanted.values()), materialize_grads=True)
        results.update(zip(wanted, grads, strict=True))
    return results


@pytest.mark.thinned(3)
def test_numbers_parameters_and_state_stay(layer: Any, close: Any) -> None:
    model = nn.Sequential(layer)
    before, state, parameters = call(layer), model.state_dict(), list(model.parameters())
    report = accelerate(model)
    (row,) = report.rows
    assert (row.path, row.kind, row.reason) == ("0", type(layer).__name__, "")
    assert row.paths == len(layer.instructions)
    assert row.error is not None
    assert row.error <= 1
    assert isinstance(model[0], Replacement)
    close(call(model[0]), before)
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    after = model.state_dict()
    assert list(after) == list(state)
    for key, value in state.items():
        assert torch.equal(after[key], value)
        assert after[key].dtype == value.dtype
    assert deaccelerate(model)[0] is layer
    assert all(torch.equal(value, before[name]) for name, value in call(layer).items())


def test_attributes_that_users_read(layer: Any) -> None:
    new = accelerate(nn.Sequential(layer)).model[0]
    for name, value in vars(layer).items():
        if not name.startswith("_") or name in ("_specialized_code", "_optimize_einsums", "_in1_dim"):
            assert getattr(new, name) == value, name
    assert torch.equal(new.output_mask, layer.output_mask)
    if hasattr(layer, "right") and layer._did_compile_right:
        y = torch.randn(3, layer.irreps_in2.dim, dtype=torch.float64)
        torch.testing.assert_close(new.right(y), layer.right(y))


@pytest.mark.kernels
@pytest.mark.thinned(3)
@each("backend", ["reference", "torch", "cpu", None])
def test_backends(layer: Any, close: Any, backend: str | None) -> None:
    before = call(layer)
    report = accelerate(nn.Sequential(layer), backend=backend)
    (row,) = report.replaced
    assert row.backend == "torch" or backend in (None, row.backend)
    assert report.model[0].backend == backend
    close(call(report.model[0]), before)


@pytest.mark.thinned(3)
@each("through", range(3))
def test_copies_can_be_turned_back(layer: Any, through: int) -> None:
    model = accelerate(nn.Sequential(layer)).model
    expected = call(model[0])
    other = copies(model)[through]
    assert all(torch.equal(value, expected[name]) for name, value in call(other[0]).items())
    assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    changed = call(other[0])["value"]
    back = deaccelerate(other)[0]
    assert type(back) is type(layer)
    assert back is not layer
    torch.testing.assert_close(call(back)["value"], changed)


def test_weights_are_written_once() -> None:
    """The original travels with its replacement, but both hold the same Parameters."""
    layer = o3.FullyConnectedTensorProduct("64x0e", "16x0e", "64x0e")
    sizes = []
    for model in (layer, accelerate(nn.Sequential(layer)).model):
        file = io.BytesIO()
        torch.save(model, file)
        sizes.append(file.tell())
    assert layer.weight.numel() * 4 > 200_000
    assert sizes[1] < sizes[0] + 50_000


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_and_moves(layer: Any, dtype: torch.dtype) -> None:
    """To another dtype while it is replaced; the original follows when it comes back."""
    model = nn.Sequential(layer)
    exact = call(layer)["value"].detach()
    assert accelerate(model).replaced
    model.to(dtype)
    value = call(model[0])["value"]
    assert value.dtype == dtype
    back = deaccelerate(model)[0]
    assert back is layer
    assert {t.dtype for t in [*back.parameters(), *back.buffers()] if t.is_floating_point()} == {dtype}
    # inputs, weights, coefficients and about ten terms of size one to ten are rounded
    for result in (value.detach(), call(back)["value"].detach()):
        assert (result.double() - exact).abs().max() <= 100 * torch.finfo(dtype).eps * (1 + float(exact.abs().max()))


def test_a_float32_layer_in_float64() -> None:
    """Its coefficients keep the rounding of float32: the report notes it, and there is no mismatch."""
    layer = o3.FullyConnectedTensorProduct("2x0e + 2x1o", "1o + 2e", "2x1o + 2x2e + 2x1e").double()
    before = call(layer)["value"].detach()
    report = accelerate(nn.Sequential(layer))
    (row,) = report.replaced
    assert "rounding of float32" in row.note
    assert row.note in str(report)
    error = float((call(report.model[0])["value"].detach() - before).abs().max() / before.abs().max())
    assert 1e-12 < error < 1e-6


MODULES = {
    "gate": lambda: e3nn_nn.Gate("8x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o"),
    "norm": lambda: o3.Norm("3x0e + 3x1o"),
    "norm activation": lambda: e3nn_nn.NormActivation("3x0e + 3x1o", torch.sigmoid),
    "reduced": lambda: o3.ReducedTensorProducts("ij=ji", i="1x0e + 1x1o"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_hold_products(name: str, float64: None) -> None:
    if name == "reduced" and torch.__version__ < "2.7":
        pytest.skip("e3nn 0.6 scripts the whole with torch 2.6: nothing can be taken out of it")
    module = MODULES[name]()
    irreps = o3.Irreps("1x0e + 1x1o") if name == "reduced" else module.irreps_in
    xs = [torch.randn(5, irreps.dim) for _ in range(2 if name == "reduced" else 1)]
    before, state = module(*xs), module.state_dict()
    report = accelerate(module, targets="product")
    assert report.replaced
    assert not report.skipped
    assert list(module.state_dict()) == list(state)
    torch.testing.assert_close(module(*xs), before, rtol=1e-12, atol=1e-13)
    deaccelerate(module)
    assert torch.equal(module(*xs), before)


def test_what_is_no_layer_of_these_stays() -> None:
    model = nn.ModuleList([e3nn_nn.FullyConnectedNet([3, 4], torch.tanh), o3.ToS2Grid(2, 6), nn.Linear(3, 3)])
    inside = list(model.modules())
    assert accelerate(model).rows == ()
    assert all(a is b for a, b in zip(model.modules(), inside, strict=True))


def test_containers_and_modules_in_two_places() -> None:
    shared = o3.Linear("2x0e", "2x0e")
    model = nn.ModuleDict({"a": nn.Sequential(shared, nn.Tanh(), shared), "b": nn.ModuleList([shared])})
    report = accelerate(model)
    (row,) = report.rows
    assert row.places == ("a.0", "a.2", "b.0")
    assert "a.0 (+2 more)" in str(report)
    assert model["a"][0] is model["a"][2] is model["b"][0] is not shared
    deaccelerate(model)
    assert model["a"][0] is model["a"][2] is model["b"][0] is shared


def test_targets_choose_kinds() -> None:
    model = nn.ModuleList([o3.Linear("2x0e", "2x0e"), o3.FullTensorProduct("1o", "1o")])
    assert [row.path for row in accelerate(model, targets="linear").rows] == ["0"]
    assert [row.target for row in accelerate(model, targets=["product"]).replaced] == ["product"]
    assert [row.path for row in accelerate(model).skipped] == ["0", "1"]


def test_a_copy_is_changed_if_not_in_place() -> None:
    model = nn.Sequential(o3.Linear("2x0e", "2x0e"))
    report = accelerate(model, inplace=False)
    assert report.model is not model
    assert isinstance(report.model[0], Replacement)
    assert type(model[0]) is o3.Linear
    assert report.model[0].weight is not model[0].weight


def test_a_changed_copy_has_the_keys_of_the_model() -> None:
    """e3nn's own copy of a square has more keys than the square; a model that was left alone must load them."""
    model = nn.ModuleDict({"square": o3.TensorSquare("4x0e + 2x1o", "3x0e"), "mix": o3.Linear("3x0e", "2x0e")})
    report = accelerate(model, inplace=False)
    assert not report.skipped
    assert list(report.model.state_dict()) == list(model.state_dict())
    model.load_state_dict(report.model.state_dict())
    report.model.load_state_dict(model.state_dict())


def test_a_layer_by_itself() -> None:
    layer = o3.Linear("2x0e", "2x0e")
    new = accelerate(layer, inplace=False).model
    assert isinstance(new, Replacement)
    assert type(deaccelerate(new)) is o3.Linear
