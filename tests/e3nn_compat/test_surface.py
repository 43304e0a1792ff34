"""Parts of layers that users of e3nn see: arguments in order, attributes, methods, texts, first weights, pictures."""

import importlib.util
import inspect
from typing import Any

import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers.errors import ConfigError
from tests.cases import e3nn_defaults
from tests.each import each
from tests.fresh import fresh

CLASSES = [
    "TensorProduct",
    "FullyConnectedTensorProduct",
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "TensorSquare",
    "Linear",
    "Norm",
    "SphericalHarmonics",
]
MAKES: dict[str, tuple[Any, ...]] = {
    "TensorProduct": ("2x1o + 3x0e", "1x1o", "4x0e + 2x2e", [(0, 0, 0, "uvw", True), (0, 0, 1, "uvu", False)]),
    "FullyConnectedTensorProduct": ("2x0e + 1o", "1o", "2x1o + 1e"),
    "ElementwiseTensorProduct": ("2x0e + 2x1o", "4x1o"),
    "FullTensorProduct": ("2x0e + 2x1o", "2x1o + 1e"),
    "TensorSquare": ("3x0e + 2x1o", "2x0e + 1e"),
    "Linear": ("2x0e + 2x1o", "3x0e + 1x1o + 1x2e"),
    "Norm": ("2x0e + 3x1o",),
    "SphericalHarmonics": ("0e + 1o + 2e", True),
}
#: Without weights and instructions, and not made from e3nn's modules.
PLAIN = ("Norm", "SphericalHarmonics")
#: What e3nn generates or compiles.
GENERATED = {"__codegen__", "__e3nn_compile_mode__", "sph_func"}


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_have_e3nns_names_order_and_defaults(name: str) -> None:
    """Ours may follow as keywords only."""
    theirs = list(inspect.signature(getattr(o3, name)).parameters.values())
    ours = list(inspect.signature(getattr(eq.o3, name)).parameters.values())
    assert [(p.name, p.kind, p.default) for p in ours if p.name not in ("simplify", "layout", "backend")] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    assert all(p.kind is p.KEYWORD_ONLY for p in ours if p.name in ("simplify", "layout", "backend"))


METHODS = ("forward", "right", "weight_view_for_instruction", "weight_views", "visualize")
HAS = [(name, method) for name in CLASSES for method in METHODS if hasattr(getattr(o3, name), method)]


def test_every_class_has_methods_to_compare() -> None:
    """Guards the test below against finding nothing."""
    assert set(HAS) >= {(name, "forward") for name in CLASSES} | {("TensorProduct", method) for method in METHODS}


@each("name, method", HAS)
def test_methods_have_e3nns_arguments(name: str, method: str) -> None:
    ours, theirs = (inspect.signature(getattr(getattr(o, name), method)).parameters.values() for o in (eq.o3, o3))
    assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]


@pytest.mark.parametrize("name", CLASSES)
def test_attributes_are_all_there(name: str) -> None:
    """All that e3nn's layers have beside their generated code, with equal values."""
    torch.manual_seed(0)
    theirs = getattr(o3, name)(*MAKES[name])
    torch.manual_seed(0)
    ours = getattr(eq.o3, name)(*MAKES[name])
    for key, value in vars(theirs).items():
        if key.startswith(("_compiled", "_forward", "_backward", "_state_dict", "_load_state")) or key in GENERATED:
            continue
        assert hasattr(ours, key), key
        if isinstance(value, o3.Irreps | bool | int):
            assert getattr(ours, key) == value, key
    entries = [
        (key, value) for key, value in theirs.state_dict().items() if not key.rpartition(".")[2].startswith("_w3j")
    ]
    for key, value in entries:
        assert torch.equal(ours.state_dict()[key], value), key  # the same seed gives the same first weights
    assert getattr(ours, "_profiling_str", None) == (repr(ours) if hasattr(theirs, "_profiling_str") else None)
    start = repr(theirs).removesuffix(")").partition(" | ")[0]
    assert repr(ours).startswith(start)


def test_instructions_have_e3nns_fields_and_values() -> None:
    for name, args in MAKES.items():
        if name not in PLAIN:
            ours, theirs = getattr(eq.o3, name)(*args), getattr(o3, name)(*args)
            for mine, other in zip(ours.instructions, theirs.instructions, strict=True):
                assert mine._fields == other._fields
                assert mine._replace(path_weight=0) == other._replace(path_weight=0)
                assert mine.path_weight == pytest.approx(other.path_weight, rel=1e-15)


def test_options_follow_e3nns_defaults_of_the_time_of_construction() -> None:
    args = ("2x1o", "2x1o", "2x1e", [(0, 0, 0, "uuu", True)])
    layers = [eq.TensorProduct(*args), eq.Linear("1o", "1o")]
    assert all(layer._optimize_einsums for layer in layers)
    with e3nn_defaults(optimize_einsums=False, specialized_code=False):
        plain, linear = eq.TensorProduct(*args), eq.Linear("1o", "1o")
        theirs = o3.TensorProduct(*args)
        assert [plain._specialized_code, plain._optimize_einsums, linear._optimize_einsums] == [False] * 3
        assert eq.TensorProduct(*args, _specialized_code=True, _optimize_einsums=True)._optimize_einsums
    theirs.load_state_dict(plain.state_dict())  # the keys are those of the options that held when it was built
    o3.TensorProduct(*args).load_state_dict(layers[0].state_dict())
    assert eq.Linear("1o", "1o", _optimize_einsums=False)._optimize_einsums is False


def test_slices_of_linear_weights_are_e3nns() -> None:
    for biases in (False, True):
        ours, theirs = (cls("2x0e + 2x1o", "3x0e + 1o + 0e", biases=biases) for cls in (eq.Linear, o3.Linear))
        if not hasattr(theirs, "weight_index_slices"):
            pytest.skip("this e3nn has none")
        assert [tuple(s) for s in ours.weight_index_slices] == [tuple(s) for s in theirs.weight_index_slices]
        assert ours.weight_index_slices[0]._fields == theirs.weight_index_slices[0]._fields
        places = ours.weight_index_slices[1]
        view = ours.weight[places.slice_1D].reshape(places.shape_2D)
        assert torch.equal(view, ours.weight_view_for_instruction(1))


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in PLAIN])
def test_layers_made_from_e3nns_look_like_those_made_anew(name: str) -> None:
    theirs = getattr(o3, name)(*MAKES[name], **({} if name in ("Linear", "TensorSquare") else {"compile_right": True}))
    layer, new = getattr(eq.o3, name).from_e3nn(theirs), getattr(eq.o3, name)(*MAKES[name])
    assert repr(layer) == repr(new)
    assert [key for key in vars(new) if not hasattr(layer, key)] == []
    assert layer.irreps_out == new.irreps_out
    assert layer._optimize_einsums is True
    if name == "TensorSquare":
        assert layer.irreps_in == theirs.irreps_in
    elif name != "Linear":
        assert layer._did_compile_right is True


def test_weights_in_the_forms_that_e3nn_takes() -> None:
    ours, theirs = (cls("2x0e + 1o", "3x0e", internal_weights=False) for cls in (eq.Linear, o3.Linear))
    x, weight = torch.randn(4, 5), torch.randn(1, 6)
    torch.testing.assert_close(ours(x, weight), theirs(x, weight))  # a leading axis of length 1
    assert torch.equal(ours(x, weight[0]), ours(x, weight))
    with pytest.raises(eq.errors.ShapeError, match=r"weight of Linear must be \[6\], got \[2, 6\]"):
        ours(x, torch.randn(2, 6))
    without = eq.FullTensorProduct("2x0e", "1o")
    assert torch.equal(without(x[:, :2], x[:, 2:], []), without(x[:, :2], x[:, 2:]))
    with pytest.raises(eq.errors.ShapeError, match=r"must have 0 tensors.*got 1"):
        without(x[:, :2], x[:, 2:], [weight])


def test_right_works_without_and_with_compile_right() -> None:
    """e3nn refuses the first, and 'uvu<v' in both."""
    y = torch.randn(4, 3)
    for options in ({}, {"compile_right": True}, {"compile_left_right": False}):
        layer = eq.TensorProduct("2x1o", "1x1o", "2x1e", [(0, 0, 0, "uvu", True)], **options)
        x = torch.randn(4, 6)
        torch.testing.assert_close(torch.einsum("zi,zij->zj", x, layer.right(y)), layer(x, y))
        assert layer._did_compile_right is options.get("compile_right", False)
    pairs = eq.TensorProduct("3x0e", "3x1o", "3x1o", [(0, 0, 0, "uvu<v", False)])
    x, y = torch.randn(2, 3), torch.randn(2, 9)
    torch.testing.assert_close(torch.einsum("zi,zij->zj", x, pairs.right(y)), pairs(x, y))
    with pytest.raises(eq.errors.ShapeError, match=r"y must be \[\.\.\., 9\]"):
        pairs.right(torch.randn(2, 8))


@each("name", CLASSES)
@each("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_layers_move_and_run_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    layer = getattr(eq.o3, name)(*MAKES[name]).to(dtype)
    assert {tensor.dtype for tensor in layer.state_dict().values() if tensor.is_floating_point()} <= {dtype}
    widths = [layer.irreps_in] if hasattr(layer, "irreps_in") else [layer.irreps_in1, layer.irreps_in2]
    out = layer(*(torch.ones(3, irreps.dim, dtype=dtype) for irreps in widths))
    assert out.dtype == dtype
    assert out.shape == (3, layer.irreps_out.dim)
    assert torch.isfinite(out).all()


@pytest.mark.kernels
@pytest.mark.parametrize("name", CLASSES)
def test_meta_construction_ends_by_loading(name: str) -> None:
    """By ``to_empty`` and by ``assign=True``, from e3nn's own state."""
    theirs = getattr(o3, name)(*MAKES[name])
    for assign in (False, True):
        with torch.device("meta"):
            layer = getattr(eq.o3, name)(*MAKES[name])
        if not assign:
            layer = layer.to_empty(device="cpu")
        layer.load_state_dict(theirs.state_dict(), assign=assign)
        assert {t.device.type for t in [*layer.parameters(), *layer.buffers()]} <= {"cpu"}
        widths = [layer.irreps_in] if hasattr(layer, "irreps_in") else [layer.irreps_in1, layer.irreps_in2]
        inputs = [torch.randn(3, irreps.dim) for irreps in widths]
        torch.testing.assert_close(layer(*inputs), theirs(*inputs))
        assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in layer.parameters())


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def axes() -> Any:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib")
    from matplotlib import figure

    return figure.Figure().add_subplot()


def test_visualize_draws_every_path_and_names_every_group(axes: Any) -> None:
    layer = eq.TensorProduct(*MAKES["TensorProduct"])
    figure, same = layer.visualize(ax=axes)
    assert same is axes
    assert figure is axes.figure
    assert [text.get_text() for text in axes.texts] == [
        "$2 \\times 1o$",
        "$3 \\times 0e$",
        "$1o$",
        "$4 \\times 0e$",
        "$2 \\times 2e$",
    ]
    assert len(axes.lines) == 3 + 3 * len(layer.instructions)  # sides, and three lines per path
    weighted, plain = axes.lines[3], axes.lines[6]
    assert plain.get_color() == "black"
    assert weighted.get_color() not in ("black", "green")
    ends = {tuple(line.get_xydata()[0]) for line in axes.lines[3:6]}
    texts = {text.xy for text in axes.texts}
    assert ends <= texts  # a path begins where the label of its group stands


def test_visualize_shades_by_weights(axes: Any) -> None:
    layer = eq.FullyConnectedTensorProduct("1x0e + 1x1o", "1x1o", "1x1o + 1x0e")
    with torch.no_grad():
        for number, view in enumerate(layer.weight_views()):
            view.fill_(float(number))
    layer.visualize(ax=axes)
    darkness = [1 - sum(line.get_color()[:3]) for line in axes.lines[3::3]]
    assert darkness == sorted(darkness)
    assert darkness[0] < darkness[-1]
    external = eq.FullyConnectedTensorProduct("1x0e", "1x1o", "1x1o", internal_weights=False)
    axes.clear()
    external.visualize(ax=axes)
    assert axes.lines[3].get_color() == "green"
    axes.clear()
    external.visualize(weight=torch.zeros(1), ax=axes, aspect_ratio="auto")
    assert axes.lines[3].get_color() != "green"
    with pytest.raises(ConfigError, match=r"aspect_ratio must .*got 'wide'"):
        external.visualize(aspect_ratio="wide", ax=axes)


def test_matplotlib_is_imported_by_visualize_only() -> None:
    code = "import sys, eqlayers as eq; eq.FullTensorProduct('1o', '1o'); assert 'matplotlib' not in sys.modules"
    done = fresh(code)
    assert done.returncode == 0, done.stderr
