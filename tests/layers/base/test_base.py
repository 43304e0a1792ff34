"""Facts that users read off a layer: weight views, repr, backends, counts, masks, irreps in any form."""

from typing import Any

import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers import FullyConnectedTensorProduct, Linear, TensorProduct
from eqlayers.nn import GatedNonlinearity, Interaction

pytestmark = pytest.mark.kernels  # its texts name the backend that users get

ROWS = [(0, 0, 0, "uvu", False), (0, 0, 0, "uvw", True), (1, 0, 1, "uvu", True, 2.0)]
ARGS = ("2x0e + 3x1o", "1x0e", "2x0e + 3x1o + 4x2e", ROWS)


def test_weight_view_of_one_instruction_where_an_earlier_one_has_no_weight(twins: Any) -> None:
    """e3nn 0.6 counts the places of weightless instructions too and reads the wrong weights."""
    for shared in (True, False):
        layer = TensorProduct(*ARGS, shared_weights=shared, internal_weights=False)
        lead = () if shared else (5,)
        weight = torch.arange(float(7 * (1 if shared else 5))).reshape(*lead, 7)
        assert torch.equal(layer.weight_view_for_instruction(1, weight), weight[..., :4].reshape(*lead, 2, 1, 2))
        assert torch.equal(layer.weight_view_for_instruction(2, weight), weight[..., 4:].reshape(*lead, 3, 1))
        views = list(layer.weight_views(weight, yield_instruction=True))
        assert [number for number, _, _ in views] == [1, 2]
        assert all(ins is layer.instructions[number] for number, ins, _ in views)
        with pytest.raises(eq.errors.ShapeError, match=r"instruction 0 .* must have a weight.*weight_views\(\)"):
            layer.weight_view_for_instruction(0, weight)
    theirs = twins.e3nn(o3.TensorProduct, *ARGS)
    ours = TensorProduct(*ARGS).double()
    ours.load_state_dict(theirs.state_dict())
    for mine, other in zip(ours.weight_views(), theirs.weight_views(), strict=True):
        assert torch.equal(mine, other)


def test_views_write_through() -> None:
    layer = TensorProduct(*ARGS)
    with torch.no_grad():
        layer.weight_view_for_instruction(2).zero_()
    assert layer.weight[4:].tolist() == [0.0] * 3
    assert (layer.weight[:4] != 0).all()


def test_repr() -> None:
    layer = TensorProduct(*ARGS)
    assert repr(layer) == (
        "TensorProduct(2x0e+3x1o x 1x0e -> 2x0e+3x1o+4x2e | 9 paths | 7 weights | mul_ir, backend auto)"
    )
    assert repr(layer).split(" | mul_ir")[0] + ")" == repr(o3.TensorProduct(*ARGS))
    assert repr(FullyConnectedTensorProduct("2x0e", "1o", "3x1o", layout="ir_mul", backend="torch")) == (
        "FullyConnectedTensorProduct(2x0e x 1x1o -> 3x1o | 6 paths | 6 weights | ir_mul, backend torch)"
    )


def test_counts_and_mask() -> None:
    layer = TensorProduct(*ARGS)
    assert (layer.num_paths, layer.weight_numel) == (3, 7)
    assert layer.output_mask.tolist() == [1.0] * 11 + [0.0] * 20
    assert (layer._in1_dim, layer._in2_dim) == (11, 1)
    assert (layer.internal_weights, layer.shared_weights) == (True, True)
    off = TensorProduct("0e", "0e", "0e", [(0, 0, 0, "uuu", True, 0.0)])  # a coefficient of zero reaches nothing
    assert off.output_mask.tolist() == [0.0]


@pytest.mark.parametrize(
    ("internal", "shared", "expected"),
    [
        (None, None, (True, True)),
        (None, True, (True, True)),
        (None, False, (False, False)),
        (False, None, (False, True)),
        (True, True, (True, True)),
    ],
)
def test_ownership_defaults_are_e3nns(internal: bool | None, shared: bool | None, expected: tuple[bool, bool]) -> None:
    kwargs: dict[str, Any] = {"internal_weights": internal, "shared_weights": shared}
    theirs, ours = o3.TensorProduct(*ARGS, **kwargs), TensorProduct(*ARGS, **kwargs)
    assert (ours.internal_weights, ours.shared_weights) == expected
    assert (theirs.internal_weights, theirs.shared_weights) == expected
    assert isinstance(ours.weight, torch.nn.Parameter) == isinstance(theirs.weight, torch.nn.Parameter)
    assert ours.weight.shape == theirs.weight.shape


@pytest.mark.parametrize("form", [str, o3.Irreps, list, tuple, lambda i: [(mul, (ir.l, ir.p)) for mul, ir in i]])
def test_irreps_in_any_form(form: Any) -> None:
    given = form(o3.Irreps("2x0e+3x1o"))
    product = FullyConnectedTensorProduct(given, given, given)
    linear = Linear(given, given)
    assert product.irreps_in1 == linear.irreps_out == o3.Irreps("2x0e+3x1o")
    assert product(torch.randn(2, 11), torch.randn(2, 11)).shape == linear(torch.randn(2, 11)).shape == (2, 11)


def test_explain_names_backends_and_reasons() -> None:
    layer = TensorProduct(*ARGS)
    text = layer.explain()
    assert text.startswith("TensorProduct on cpu, torch.float32, backend=auto\n")
    assert text.count(": cpu runs") == 1  # all paths in one call
    assert "  all 3 paths: torch runs\n" in TensorProduct(*ARGS, backend="torch").explain()
    for name in eq.core.backends.registry.BACKENDS:
        assert f"    {name}: " in text
    assert layer.selected_backend() == "cpu"
    named = TensorProduct(*ARGS, backend="reference")
    assert named.selected_backend() == "reference"
    assert "backend=reference" in named.explain()
    refused = TensorProduct(*ARGS, backend="triton").explain(dtype=torch.float64).splitlines()
    assert refused[1].endswith("triton was named and refuses, so that the layer raises BackendError")
    assert "mix channels" in refused[2] or "needs " in refused[2]  # as it is interpreted, old, or neither
    assert eq.explain(torch.nn.Sequential(layer, torch.nn.Linear(1, 1))).startswith("0: TensorProduct on cpu")
    assert eq.explain(torch.nn.Linear(1, 1)) == "Linear holds no product layers"


def test_a_layer_made_of_layers_names_the_backends_of_all() -> None:
    """`explain` asks each of them."""
    gate = GatedNonlinearity("8x0e + 4x1o")
    assert gate.selected_backend() == "cpu"
    assert Interaction("8x0e", "0e + 1o", "8x0e + 4x1o").selected_backend() == "cpu"
    assert Interaction("8x0e", "0e + 1o", "8x0e + 4x1o", backend="torch").selected_backend() == "torch"


def test_backends_give_equal_numbers(twins: Any) -> None:
    results = {}
    for backend in ("torch", "reference"):
        layer = TensorProduct(*ARGS, backend=backend, internal_weights=False)
        inputs = {"x": torch.ones(2, 11).double(), "y": torch.ones(2, 1).double() * 3, "w": torch.ones(7).double()}
        results[backend] = twins.two_orders(layer, inputs, ("x", "y", "w"))
    twins.assert_close(results["torch"], results["reference"], 40)


def test_old_name_of_the_normalisation_warns() -> None:
    with pytest.warns(DeprecationWarning, match="irrep_normalization"):
        layer = TensorProduct("1o", "1o", "0e", [(0, 0, 0, "uuu", False)], normalization="norm")
    assert layer.instructions[0].path_weight == 3.0


def test_a_device_that_is_not_there_is_named() -> None:
    layer = eq.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)])
    missing = f"cuda:{torch.cuda.device_count()}"
    for ask in (layer.explain, layer.selected_backend):
        with pytest.raises(eq.errors.DeviceError, match=f"that torch can use here, got '{missing}'"):
            ask(missing)
