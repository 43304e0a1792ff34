"""A replacement with wrong numbers is found, whatever is wrong with it, and the model stays as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import nn

import eqlayers.layers.gate.activation
from eqlayers.errors import MismatchError
from eqlayers.integrations import accelerate, kinds
from eqlayers.integrations.check import _distance, compare
from eqlayers.integrations.kinds.convolution import AcceleratedConvolution, AcceleratedScatter
from eqlayers.integrations.kinds.product import AcceleratedLinear, AcceleratedTensorProduct
from eqlayers.integrations.replacement import Replacement
from eqlayers.layers.tensor_product.lower import ProductPlan
from tests.integrations.test_batch_norm_rules import IRREPS, trained

PATHS = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True), (0, 1, 1, "uvu", True)]


def product() -> Any:
    return o3.TensorProduct("4x0e + 4x1o", "0e + 1o", "4x0e + 4x1o", PATHS, shared_weights=False)


def one_coefficient(new: Any) -> None:
    """The plan with one of its coefficients off by 1e-4, in float32 some hundred roundings."""
    first, *rest = new.plan.instructions
    paths = [first._replace(path_weight=first.path_weight * (1 + 1e-4)), *rest]
    new.plan = ProductPlan(new.plan.irreps, paths, new.plan.layout)


def one_sign(new: Any) -> None:
    *rest, last = new.plan.instructions
    new.plan = ProductPlan(new.plan.irreps, [*rest, last._replace(path_weight=-last.path_weight)], new.plan.layout)


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, Callable[[Any], None]], None]:
    """Make every new replacement of a kind wrong."""

    def spoil(kind: Any, change: Callable[[Any], None]) -> None:
        right = kind.stand_in_for

        def wrong(self: Replacement, original: nn.Module) -> None:
            right(self, original)
            change(self)

        monkeypatch.setattr(kind, "stand_in_for", wrong)

    return spoil


@pytest.mark.parametrize("change", [one_coefficient, one_sign])
def test_a_wrong_product_leaves_the_model_untouched(spoil: Any, change: Any) -> None:
    model = nn.ModuleDict({"first": o3.Linear("2x0e", "2x0e"), "second": product()})
    inside = list(model.modules())
    spoil(AcceleratedTensorProduct, change)
    with pytest.raises(
        MismatchError,
        match=r"replacement of second \(TensorProduct\) must agree.*got a difference of .* in .*not changed",
    ):
        accelerate(model)
    assert all(a is b for a, b in zip(model.modules(), inside, strict=True))
    assert isinstance(accelerate(model, check=False).model["second"], AcceleratedTensorProduct)


def test_wrong_convolutions(spoil: Any, network: Any, inputs: Any) -> None:
    before = network(inputs.pos, inputs.attrs, inputs.edges)
    spoil(AcceleratedScatter, lambda new: one_coefficient(new.tp))
    with pytest.raises(MismatchError, match="replacement of scatter "):
        accelerate(network)
    assert torch.equal(network(inputs.pos, inputs.attrs, inputs.edges), before)
    assert not any(isinstance(module, Replacement) for module in network.modules())


def test_edges_the_wrong_way_round(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    right = AcceleratedConvolution.forward
    monkeypatch.setattr(AcceleratedConvolution, "forward", lambda self, x, y, w, e: right(self, x, y, w, e.flip(0)))
    with pytest.raises(MismatchError, match=r"replacement of blocks\.0\.conv_tp"):
        accelerate(network)
    assert not hasattr(network.blocks[0], "conv_fusion")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kernel_that_is_wrong_in_one_dtype(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """A float32 model is found wrong in float32 as it is, and by its copy in float64; its constants are float32's."""
    right, size = AcceleratedTensorProduct.forward, {torch.float32: 1e-3, torch.float64: 1e-9}[dtype]

    def wrong(self: Any, x: torch.Tensor, *args: Any) -> torch.Tensor:
        return right(self, x, *args) * (1 + size * (x.dtype == dtype))

    model = nn.Sequential(o3.FullyConnectedTensorProduct("2x0e + 2x1o", "1o + 2e", "2x1o + 2x2e + 2x1e"))
    assert accelerate(model, inplace=False).worst < 1
    monkeypatch.setattr(AcceleratedTensorProduct, "forward", wrong)
    with pytest.raises(MismatchError, match=rf"agree with it in {dtype} to .* a difference of {size:.2g} in"):
        accelerate(model)


def test_other_coefficients_than_the_exact_ones() -> None:
    """A layer whose coefficients were rounded to bfloat16 is off by 1e-3, however exact its replacement is."""
    irreps = "2x0e + 2x1o", "1o + 2e", "2x1o + 2x2e + 2x1e"
    model = nn.Sequential(o3.FullyConnectedTensorProduct(*irreps).bfloat16().float())
    with pytest.raises(MismatchError, match=r"in torch\.float32 to"):
        accelerate(model)
    report = accelerate(nn.Sequential(o3.FullyConnectedTensorProduct(*irreps).double()))
    assert report.worst < 1
    assert "rounding of float32: in torch.float64 results differ by" in report.rows[0].note


class _Float32(nn.Module):
    """A function with a number that stays in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise TypeError("float32 alone")
        return x.sin()


def test_an_original_without_a_copy_in_float64(float32_gate: Any) -> None:
    (row,) = accelerate(nn.Sequential(float32_gate)).replaced
    assert "compared in torch.float32 alone, as a copy in float64 raises TypeError: float32 alone" in row.note
    assert 0 < row.error < 1


@pytest.fixture
def float32_gate(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Whose second moment e3nn takes in float64, before the function refuses it."""
    gate = e3nn_nn.Gate("2x0e", [torch.sin], "2x0e", [torch.sin], "2x1o")
    for part in (gate.act_scalars, gate.act_gates):
        part.acts[0].f = _Float32()
    constant = eqlayers.layers.gate.activation._constant
    monkeypatch.setattr(eqlayers.layers.gate.activation, "_constant", lambda f: constant(torch.sin))
    return gate


class _Wrong(torch.autograd.Function):
    """The identity, with a wrong derivative of the given order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: int) -> torch.Tensor:
        ctx.order = order
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gx: torch.Tensor) -> Any:
        return (gx * 1.01, None) if ctx.order == 1 else (_Wrong.apply(gx, 1), None)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", [AcceleratedTensorProduct, AcceleratedLinear])
def test_wrong_derivatives(monkeypatch: pytest.MonkeyPatch, kind: Any, order: int) -> None:
    model = nn.ModuleList([product(), o3.Linear("4x0e + 2x1o", "3x0e + 2x1o", biases=True)])
    right = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args: _Wrong.apply(right(self, *args), order))
    where = {1: "first derivative|second derivative", 2: "second derivative"}[order]
    with pytest.raises(MismatchError, match=where):
        accelerate(model)


def wrong_statistics(layer: Any, y: torch.Tensor) -> torch.Tensor:
    if layer.training:
        layer.running_var.mul_(1.01)
    return y


silu, tanh = torch.nn.functional.silu, torch.tanh
#: Layers, their replacements, and the relative size of an error that must be seen.
KINDS: dict[str, tuple[Callable[[], nn.Module], Any, float]] = {
    "harmonics": (
        lambda: o3.SphericalHarmonics([0, 1, 2], True, "component"),
        kinds.harmonics.AcceleratedSphericalHarmonics,
        1e-4,
    ),
    "harmonics of lengths": (
        lambda: o3.SphericalHarmonics([0, 1, 2], False),
        kinds.harmonics.AcceleratedSphericalHarmonics,
        1e-4,
    ),
    "gate": (lambda: e3nn_nn.Gate("8x0e", [silu], "4x0e", [tanh], "4x1o"), kinds.gate.AcceleratedGate, 1e-4),
    "norm": (lambda: trained(e3nn_nn.BatchNorm(IRREPS)), kinds.batch_norm.AcceleratedBatchNorm, 1e-3),
    "sphere": (lambda: e3nn_nn.S2Activation("0e + 1o + 2e", tanh, 10), kinds.gate.AcceleratedS2Activation, 1e-3),
    "turned sphere": (
        lambda: e3nn_nn.S2Activation("0e + 1o + 2e", silu, 8, "norm", 1, random_rot=True),
        kinds.gate.AcceleratedS2Activation,
        1e-3,
    ),
    "rotations": (lambda: e3nn_nn.SO3Activation(1, 2, silu, 2), kinds.gate.AcceleratedSO3Activation, 1e-3),
}
CHANGES: dict[str, Callable[[Any, torch.Tensor, float], torch.Tensor]] = {
    "a value": lambda layer, y, size: y * (1 + size),
    "a first derivative": lambda layer, y, size: y.detach() + (y - y.detach()) * (1 + 10 * size),
    "the order": lambda layer, y, size: y.roll(1, -1),
    "float64 alone": lambda layer, y, size: y * (1 + 1e-9),  # edges of NequIP are in float64 in a model of float32
    "evaluation": lambda layer, y, size: y if layer.training else y * (1 + size),
    "training": lambda layer, y, size: y * (1 + size) if layer.training else y,
    "statistics": lambda layer, y, size: wrong_statistics(layer, y),
}
WRONG = [(kind, change) for kind in KINDS for change in list(CHANGES)[:3]]
WRONG += [(kind, "float64 alone") for kind in ("harmonics", "harmonics of lengths")]
WRONG += [("norm", change) for change in ("evaluation", "training", "statistics")]


@pytest.mark.parametrize(("kind", "change"), WRONG)
def test_wrong_layers_of_every_kind_are_seen(kind: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, replacement, size = KINDS[kind]
    right = replacement.forward
    monkeypatch.setattr(replacement, "forward", lambda self, x: CHANGES[change](self, right(self, x), size))
    model = nn.Sequential(make(), nn.Linear(9, 1))
    layer, state = model[0], {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(MismatchError, match=rf"replacement of 0 \({type(layer).__name__}\) must agree"):
        accelerate(model, backend="torch")
    assert model[0] is layer
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())


def test_numbers_that_are_not_finite() -> None:
    """Wherever they are: a NaN compares with nothing, so that the largest of several errors would depend on order."""
    value, nan = torch.ones(3).double(), torch.tensor([1.0, torch.nan, 1.0]).double()
    for one, other in ((nan, value), (value, nan), (nan, nan), (value, value / 0), (value / 0, value / 0)):
        assert _distance(one, other, float(one.norm())) == torch.inf
    assert _distance(value, 2 * value, float(value.norm())) == 1.0


def test_a_replacement_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, *args: Any) -> None:
        raise ZeroDivisionError("here")

    monkeypatch.setattr(AcceleratedLinear, "forward", forward)
    with pytest.raises(MismatchError, match="got ZeroDivisionError: here"):
        accelerate(nn.Sequential(o3.Linear("0e", "0e")))


def test_a_linear_map_without_paths_is_fed_another_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which e3nn's takes; a read-out of MACE's for dipoles is built on it."""
    model = nn.Sequential(o3.Linear("16x0e", "1x1o"))
    assert accelerate(model, inplace=False).model[0](torch.ones(2, 0)).tolist() == [[0.0] * 3] * 2
    right = AcceleratedLinear.forward
    monkeypatch.setattr(
        AcceleratedLinear, "forward", lambda self, x, *args: right(self, x, *args) + (x.shape[-1] == 17)
    )
    with pytest.raises(MismatchError, match=r"got another result for features \[\.\.\., 17\]"):
        accelerate(model)

    def strict(self: Any, x: torch.Tensor, *args: Any) -> torch.Tensor:
        self._in.check("features", x)
        return right(self, x, *args)

    monkeypatch.setattr(AcceleratedLinear, "forward", strict)
    with pytest.raises(
        MismatchError, match=r"\[\.\.\., 17\], which the original takes: features must be \[\.\.\., 16\]"
    ):
        accelerate(model)
    assert type(model[0]) is o3.Linear


def test_wrong_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(o3.FullyConnectedTensorProduct("2x1o", "1o", "2x1e", compile_right=True))
    right = AcceleratedTensorProduct.right
    monkeypatch.setattr(AcceleratedTensorProduct, "right", lambda self, y, weight=None: right(self, y, weight).neg())
    with pytest.raises(MismatchError, match=r"right\(\)"):
        accelerate(model)


def test_a_state_dict_that_would_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are compared, also if the numbers are right."""
    layers = [o3.FullTensorProduct("1o", "1o"), o3.Linear("2x0e", "0e")]
    save = AcceleratedTensorProduct._save_to_state_dict

    def fewer(self: Any, destination: Any, prefix: str, keep_vars: bool) -> None:
        save(self, destination, prefix, keep_vars)
        del destination[prefix + "output_mask"]

    monkeypatch.setattr(AcceleratedTensorProduct, "_save_to_state_dict", fewer)
    report = accelerate(nn.ModuleList(layers), check=False)
    assert [row.reason for row in report.skipped] == [
        "has a state dict with keys that its replacement would not write: output_mask"
    ]
    changed = AcceleratedLinear._save_to_state_dict

    def other(self: Any, destination: Any, prefix: str, keep_vars: bool) -> None:
        changed(self, destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"] + 1

    monkeypatch.setattr(AcceleratedLinear, "_save_to_state_dict", other)
    report = accelerate(nn.ModuleList(layers[1:]), check=False)
    assert [row.reason for row in report.skipped] == ["has a state dict whose weight its replacement would change"]


@pytest.mark.parametrize("inside", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu")])
def test_nothing_else_changes(network: Any, inputs: Any, inside: Any) -> None:
    """Random numbers, gradients, modes, buffers; and it works in any context."""
    energy, forces = inputs.energy_and_forces(network)
    (energy.sum() + forces.square().sum()).backward()
    network.blocks[0].eval()
    network.skip.weight.requires_grad_(False)
    grads = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    modes = {name: m.training for name, m in network.named_modules() if not name.rpartition(".")[2].startswith("_comp")}
    state = {key: value.clone() for key, value in network.state_dict().items()}
    random, dtype, enabled = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    with inside():
        report = accelerate(network)
    assert report.worst is not None
    assert 0 < report.worst < 1
    assert torch.equal(torch.get_rng_state(), random)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (dtype, enabled)
    now = dict(network.named_parameters())
    assert {name for name, p in now.items() if p.grad is not None} == set(grads)
    assert all(torch.equal(now[name].grad, grad) for name, grad in grads.items())
    assert not network.skip.weight.requires_grad
    modes_now = {name: module.training for name, module in network.named_modules()}
    assert all(modes_now[name] == mode for name, mode in modes.items())
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


def test_without_a_check_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceleratedLinear, "forward", None)
    (row,) = accelerate(nn.Sequential(o3.Linear("2x0e", "0e")), check=False).rows
    assert (row.error, row.saved_bytes, row.replacement) == (None, None, "AcceleratedLinear")


@pytest.mark.kernels
def test_the_sum_of_the_bytes_that_are_saved() -> None:
    """A product of n channels with a scalar: e3nn keeps a product of 4 bytes per channel and row at the least."""
    layer = o3.FullyConnectedTensorProduct("8x0e + 8x1o", "4x0e + 4x1o", "8x0e + 8x1o")
    report = accelerate(nn.ModuleList([layer, layer]))
    assert report.saved_bytes == report.rows[0].saved_bytes > 8 * 4 * 4
    assert "less for backward" in report.summary()


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_coarse_matrix_products_of_the_user(precision: str) -> None:
    """With TF32 allowed the original is off by 1e-3 of its terms, and so may the replacement be."""
    layer, new = o3.Linear("64x0e", "8x0e"), accelerate(o3.Linear("64x0e", "8x0e"), inplace=False).model
    new.weight = layer.weight
    exact = compare(layer, new).error
    torch.set_float32_matmul_precision(precision)
    try:
        assert compare(layer, new).error < max(exact, 1e-9)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Equal rows in plain text and as rich draws them."""
    rich = pytest.importorskip("rich.console")
    report = accelerate(
        nn.ModuleDict({"layer": o3.Linear("2x0e", "2x0e"), "left": torch.compile(o3.Linear("0e", "0e"))})
    )
    rich.Console(width=200).print(report)
    drawn, plain = capsys.readouterr().out, str(report)
    for text in ("layer", "AcceleratedLinear", "torch", "left: left._orig_mod", report.summary()):
        assert text in drawn
        assert text in plain
    assert plain.splitlines()[0].split() == ["module", "was", "is", "backend", "paths", "error/tolerance", "saved/row"]
