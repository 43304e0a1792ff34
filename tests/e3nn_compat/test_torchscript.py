"""TorchScript: scripted and traced layers give the layer's numbers for all batch shapes, and refuse what it refuses."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from e3nn.util import jit
from e3nn.util.test import assert_auto_jitable
from torch import Tensor

import eqlayers as eq
from eqlayers import nn
from eqlayers.errors import ConfigError, ShapeError
from eqlayers.nn import Norm, SphericalHarmonics
from tests.each import each
from tests.fresh import fresh

pytestmark = [
    pytest.mark.kernels,  # programs have the operator inside
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:Asking to infer:UserWarning"),
]

PATHS = [(0, 0, 0, "uvu", True), (1, 0, 1, "uvw", True), (0, 1, 1, "uvu", False)]
SILU = torch.nn.functional.silu
ARGS = ("2x0e + 2x1o", "2x0e + 1x1o", "2x0e + 2x1o", PATHS)
LAYERS: dict[str, Callable[[], Any]] = {
    "internal": lambda: eq.TensorProduct(*ARGS),
    "shared": lambda: eq.TensorProduct(*ARGS, internal_weights=False),
    "per sample": lambda: eq.TensorProduct(*ARGS, shared_weights=False),
    "ir_mul": lambda: eq.TensorProduct(*ARGS, layout="ir_mul"),
    "backend torch": lambda: eq.TensorProduct(*ARGS, backend="torch"),
    "no weights": lambda: eq.FullTensorProduct("2x0e + 1o", "1o", ["1o"]),
    "no paths": lambda: eq.TensorProduct("2x0e", "1o", "2x1e", []),
    "half": lambda: eq.ElementwiseTensorProduct("2x0e + 1o", "3x0e").half(),
    "square": lambda: eq.TensorSquare("2x0e + 1o", "2x0e + 1e"),
    "square without weights": lambda: eq.TensorSquare("2x0e + 1o"),
    "linear": lambda: eq.Linear("2x0e + 2x1o + 1x0e", "3x0e + 1o + 2e", biases=True),
    "linear per sample": lambda: eq.Linear("2x0e + 1o", "3x0e + 1o", biases=[True, False], shared_weights=False),
    "linear between channels": lambda: eq.Linear("2x0e + 1o", "3x0e", f_in=2, f_out=3, biases=True),
    "linear between channels without biases": lambda: eq.Linear("2x0e + 1o", "3x0e", f_in=2, f_out=3),
    "linear without paths": lambda: eq.Linear("2x0e", "1o"),
    "linear ir_mul": lambda: eq.Linear("2x0e + 2x1o", "3x1o", instructions=[(1, 0)], layout="ir_mul"),
    "norm": lambda: Norm("2x0e + 2x1o"),
    "norm activation": lambda: nn.NormActivation("3x1o + 2x0e + 1o", torch.sigmoid, bias=True),
    "norm activation ir_mul": lambda: nn.NormActivation("3x1o + 2x0e", torch.tanh, False, layout="ir_mul"),
    "activation": lambda: nn.Activation("3x0e + 2x0o + 1o", [SILU, torch.tanh, None]),
    "activation of one group": lambda: nn.Activation("3x0e", [SILU]),
    "gate": lambda: nn.Gate("2x0o", [torch.tanh], "3x0o", [torch.tanh], "2x1e + 1x1o"),
    "gate ir_mul": lambda: nn.Gate("2x0e", [abs], "2x0e + 3x0e", [SILU, torch.tanh], "5x1o", layout="ir_mul"),
    "gate of nothing": lambda: nn.Gate("2x0e", [SILU], "", [], ""),
    "one irrep": lambda: nn.ExtractIr("3x1o + 2x0e + 1o", "1o"),
    "identity": lambda: nn.Identity("2x0e + 1o", "2x0e + 1o"),
    "dropout": lambda: nn.Dropout("2x0e + 1o", 0.5).eval(),
    "sphere": lambda: nn.S2Activation("0e + 1o + 2e", torch.tanh, 6),
    "rotations": lambda: nn.SO3Activation(1, 1, torch.tanh, 2),
    "harmonics": lambda: SphericalHarmonics("0e + 2x1e + 2e", True, "norm"),
    "harmonics of half precision": lambda: SphericalHarmonics([2, 1], False, backend="torch").half(),
}


def arguments(layer: Any, lead: tuple[int, ...]) -> list[Tensor]:
    """Random inputs; weights and biases where the layer has none of its weight_rows."""
    widths = [layer.irreps_in] if hasattr(layer, "irreps_in") else [layer.irreps_in1, layer.irreps_in2]
    dtype = next((b.dtype for b in layer.buffers() if b.numel() and b.is_floating_point()), torch.float32)
    f_in = () if getattr(layer, "f_in", None) is None else (layer.f_in,)
    out = [torch.randn(*lead, *f_in, irreps.dim, dtype=dtype) for irreps in widths]
    if not getattr(layer, "internal_weights", True) and layer.weight_numel:
        weight_rows = () if layer.shared_weights else lead
        out.append(torch.randn(*weight_rows, layer.weight_numel))
        if getattr(layer, "bias_numel", 0):
            out.append(torch.randn(*weight_rows, layer.bias_numel))
    return out


@pytest.mark.thinned(6)
@pytest.mark.parametrize("how", ["script", "trace", "e3nn"])
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_give_the_numbers_of_the_layer(name: str, how: str) -> None:
    """Also for batches of another rank than the traced one; a warning of the tracer would be an error.

    Bit by bit, but where kernels run formulas and TorchScript the layers inside.
    """
    roundings = 8 if name.startswith(("gate", "norm activation")) else 0
    layer = LAYERS[name]()
    if how == "script":
        compiled = torch.jit.script(copy.deepcopy(layer))
    elif how == "trace":
        compiled = torch.jit.trace(layer, tuple(arguments(layer, (3,))))
    else:
        compiled = jit.compile(copy.deepcopy(layer))
    for lead in [(5,), (2, 3), (0,), (1, 4, 1)]:
        inputs = arguments(layer, lead)
        want = layer(*inputs)
        for _ in range(2):  # the second call is the one that torch has optimised
            got = compiled(*inputs)
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=0, atol=roundings * 2**-23)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("how", ["script", "e3nn"])
@pytest.mark.parametrize("name", [n for n in LAYERS if n.startswith(("norm", "gate", "activation", "one", "sphere"))])
def test_scripts_of_one_graph_take_other_dtypes(name: str, how: str) -> None:
    """They are traced in float32, and the graph holds no dtype: moved, they give that of the layer, and its digits."""
    layer = LAYERS[name]()
    scripted = (torch.jit.script if how == "script" else jit.compile)(copy.deepcopy(layer))
    for dtype in (torch.float64, torch.float16, torch.float32):
        layer, scripted = LAYERS[name]().to(dtype), scripted.to(dtype)
        (x,) = arguments(layer, (4,))
        got, want = scripted(x.to(dtype)), layer(x.to(dtype))
        assert got.dtype == want.dtype == dtype
        # constants of a script that were rounded to float32 stay so, and in the end to float16
        bound = 2**-8 if dtype == torch.float16 or name == "sphere" else 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def test_scripts_have_the_digits_of_float64() -> None:
    for name in ("rotations", "sphere", "norm", "norm activation"):
        layer = LAYERS[name]().double()
        x = torch.randn(4, layer.irreps_in.dim, dtype=torch.float64)
        torch.testing.assert_close(torch.jit.script(copy.deepcopy(layer))(x), layer(x), rtol=1e-14, atol=1e-14)


def test_right_is_compiled_too() -> None:
    for name in ("internal", "per sample", "ir_mul"):
        layer = LAYERS[name]()
        scripted = torch.jit.script(layer)
        _, y, *weight = arguments(layer, (4,))
        assert torch.equal(scripted.right(y, *weight), layer.right(y, *weight))


def test_derivatives_of_two_orders() -> None:
    layer = LAYERS["per sample"]()
    scripted = torch.jit.script(layer)
    results = []
    for run in (layer, scripted, scripted, scripted):
        torch.manual_seed(1)
        inputs = [t.requires_grad_() for t in arguments(layer, (4,))]
        first = torch.autograd.grad(run(*inputs).square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        results.append([*first, *second])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))


def test_compiled_layers_refuse_what_the_layer_refuses() -> None:
    """With the layer's own words."""
    internal, external, linear = LAYERS["internal"](), LAYERS["shared"](), LAYERS["linear"]()
    x, y = arguments(internal, (3,))
    for compiled in (torch.jit.script(internal), torch.jit.trace(internal, (x, y))):
        with pytest.raises(RuntimeError, match=r"x must be \[\.\.\., 8\] .*got \[3, 7\]"):
            compiled(x[:, :7], y)
        with pytest.raises(RuntimeError, match="must have the dtype of x"):
            compiled(x, y.double())
    scripted = torch.jit.script(external)
    with pytest.raises(RuntimeError, match="must be given weight"):
        scripted(x, y)
    with pytest.raises(RuntimeError, match=r"weight .* must be \[12\], got \[2, 12\]"):
        scripted(x, y, torch.randn(2, 12))
    for compiled in (torch.jit.script(linear), torch.jit.trace(linear, (torch.randn(2, 9),))):
        with pytest.raises(RuntimeError, match=r"features must be \[\.\.\., 9\]"):
            compiled(torch.randn(2, 8))


def test_weights_are_shared_with_the_layer_and_in_its_state() -> None:
    layer = LAYERS["linear"]()
    scripted = torch.jit.script(layer)
    with torch.no_grad():
        layer.weight.mul_(2)
    x = torch.randn(2, 9)
    assert torch.equal(scripted(x), layer(x))
    assert set(scripted.state_dict()) == {"weight", "bias", "output_mask"}
    assert scripted.weight_numel == layer.weight_numel
    assert o3.Irreps(scripted.irreps_out) == layer.irreps_out


class Model(torch.nn.Module):
    def __init__(self, last: torch.nn.Module) -> None:
        super().__init__()
        self.product = eq.TensorProduct(*ARGS)
        self.linear = eq.Linear("2x0e + 2x1o", "4x0e + 1x1o")
        self.last = last

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.last(self.linear(self.product(x, y)))
        return out


def test_models_compile_whole() -> None:
    parts = "3x0e", [torch.tanh], "1x0e", [torch.sigmoid], "1x1o"
    x, y = torch.randn(3, 8), torch.randn(3, 5)
    for last, compiles in (
        (Norm("4x0e + 1x1o"), torch.jit.trace),
        (e3nn_nn.Gate(*parts), lambda model, _: jit.script(model)),
        (nn.Gate(*parts), lambda model, _: jit.script(model)),
    ):
        model = Model(last)
        want = model(x, y)
        compiled = compiles(copy.deepcopy(model), (x, y))
        torch.testing.assert_close(compiled(x, y), want)
        torch.testing.assert_close(compiled(x[:1], y[:1]), model(x[:1], y[:1]))


def test_saved_layers_run_in_a_process_that_never_built_them(tmp_path: Path) -> None:
    layer = LAYERS["internal"]()
    x, y = arguments(layer, (3,))
    torch.jit.script(layer).save(str(tmp_path / "script.pt"))
    torch.jit.trace(layer, (x, y)).save(str(tmp_path / "trace.pt"))
    torch.save((x, y, layer(x, y).detach()), tmp_path / "case.pt")
    code = (
        "import torch, eqlayers.nn\n"
        "x, y, want = torch.load('case.pt')\n"
        "for name in ('script.pt', 'trace.pt'):\n"
        "    assert torch.equal(torch.jit.load(name)(x, y), want), name"
    )
    done = fresh(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_forward_of_ones_own_is_refused_not_left_out() -> None:
    class Doubled(eq.TensorProduct):
        def forward(self, x: Any, y: Any, weight: Any = None) -> Tensor:
            return 2 * super().forward(x, y, weight)

    layer = Doubled(*ARGS)
    with pytest.raises(ConfigError, match=r"must have the forward of TensorProduct .*got Doubled .*torch\.compile"):
        torch.jit.script(layer)
    x, y = arguments(layer, (3,))
    assert torch.equal(torch.jit.trace(layer, (x, y))(x, y), layer(x, y))
    conv = eq.TensorProductConv("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)])
    with pytest.raises(
        ConfigError, match=r"a TorchScript wrapper to be scripted .*, got TensorProductConv, which.*Use torch\.compile"
    ):
        torch.jit.script(conv)


CHECKED = ["internal", "per sample", "square", "linear", "norm", "norm activation", "activation", "gate", "one irrep"]


@each("name", [*CHECKED, "activation of one group", "identity", "dropout", "sphere", "rotations"])
def test_e3nns_own_check_passes(name: str) -> None:
    layer = LAYERS[name]()
    assert jit.get_compile_mode(layer) == jit.get_compile_mode(
        getattr(o3, type(layer).__name__, None) or getattr(e3nn_nn, type(layer).__name__)
    )
    if name != "per sample":  # e3nn draws no weights
        assert_auto_jitable(layer)


PRODUCT, LINEAR = eq.TensorProduct(*ARGS), eq.Linear("2x0e + 2x1o", "3x0e + 1o", biases=True)
SPECS = [
    "",
    "null",
    "[]",
    "{}",
    "{",
    "[" * 100_000,
    '"text"',
    PRODUCT._spec().replace("2x0e", "2x0z"),
    PRODUCT._spec().replace("uvw", "wvu"),
    PRODUCT._spec().replace("2x1o", "1x1o"),
    PRODUCT._spec().replace("mul_ir", "ir"),
    PRODUCT._spec()[:-1],
]


@each("spec", SPECS)
def test_texts_that_describe_no_layer(spec: str) -> None:
    x, y, w = torch.ones(3, 8), torch.ones(3, 5), torch.ones(PRODUCT.weight_numel)
    for call in (
        lambda: torch.ops.eqlayers.layer_product(spec, x, y, None, w),
        lambda: torch.ops.eqlayers.layer_right(spec, y, None, w),
        lambda: torch.ops.eqlayers.layer_linear(spec, x, None, None, w, w),
    ):
        with pytest.raises(ConfigError, match=r"spec must be the description that a layer gave to Tor.* Script the la"):
            call()


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: torch.cat([t, t]), lambda t: t[None], lambda t: t[:0]])
def test_weights_of_another_layer_in_a_scripted_one(change: Callable[[Tensor], Tensor]) -> None:
    x, y, ops = torch.ones(3, 8), torch.ones(3, 5), torch.ops.eqlayers
    weight, bias = change(PRODUCT.weight), LINEAR.bias
    message = r"(weight|bias) of the scripted layer must be \[\d+\], got \[.*\]\. Load the state of this layer"
    with pytest.raises(ShapeError, match=message):
        ops.layer_product(PRODUCT._spec(), x, y, None, weight)
    with pytest.raises(ShapeError, match=message):
        ops.layer_right(PRODUCT._spec(), y, None, weight)
    with pytest.raises(ShapeError, match=message):
        ops.layer_linear(LINEAR._spec(), x, None, None, change(LINEAR.weight), bias)
    with pytest.raises(ShapeError, match=message):
        ops.layer_linear(LINEAR._spec(), x, None, None, LINEAR.weight, change(bias))


def test_scripted_dropout_heeds_the_mode_and_draws_what_the_layer_draws() -> None:
    layer, x = nn.Dropout("20x0e + 20x1o", 0.5), torch.ones(7, 80)
    scripted = torch.jit.script(layer)
    results = []
    for run in (layer, scripted):
        torch.manual_seed(3)
        results.append(run(x))
    assert torch.equal(*results)
    assert not torch.equal(results[0], x)
    assert torch.equal(scripted.eval()(x), x)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [n for n in LAYERS if n.split()[0] in ("gate", "activation", "norm", "sphere", "one")])
def test_traced_wrappers_refuse_other_widths_and_have_the_layers_gradients(name: str) -> None:
    layer = LAYERS[name]()
    scripted = torch.jit.script(layer)
    (x,) = arguments(layer, (4,))
    for wrong in (x[:, :-1], torch.cat([x, x[:, :1]], 1)):
        with pytest.raises(RuntimeError, match=r"features must be \[\.\.\., \d+\] for this layer, got \[4, \d+\]"):
            scripted(wrong)
    x.requires_grad_()
    want, got = (torch.autograd.grad(run(x).square().sum(), x)[0] for run in (layer, scripted))
    torch.testing.assert_close(got, want)
