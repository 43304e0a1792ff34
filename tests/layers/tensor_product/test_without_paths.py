"""Layers that no path connects: zeros, from whatever e3nn takes there."""

import re
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

import eqlayers
from eqlayers.errors import EqlayersError
from tests.each import each

#: Names and arguments of linear maps that read nothing of their features: no path, or paths of no copies.
MAPS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("16x0e", "1x1o"), {}),
    (("16x0e", "1x1o"), {"shared_weights": False}),
    (("16x0e", "1x1o"), {"f_in": 2, "f_out": 3}),
    (("2x0e", "2x0e"), {"instructions": []}),
    (("2x0e + 0x1o", "2x1o"), {}),
    (("2x1o", "0x0e"), {"biases": True}),
    (("", "2x0e"), {}),
    (("2x0e", ""), {}),
]
FEATURES = {
    "another width": torch.ones(5, 7, requires_grad=True),
    "no leading axis": torch.ones(4, dtype=torch.float64),
    "no axis": torch.ones(()),
    "two leading axes": torch.ones(2, 3, 6, dtype=torch.bfloat16),
    "integers": torch.ones(3, 4, dtype=torch.int64),
    "no rows": torch.ones(0, 3),
}
PRODUCTS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("TensorProduct", ("2x0e", "1x1o", "1x1e", []), {}),
    ("TensorProduct", ("2x0e", "1x1o", "1x1e", []), {"shared_weights": False}),
    ("TensorProduct", ("2x0e + 0x1o", "1x1o", "1x1e", [(1, 0, 0, "uvw", True)]), {}),
    ("FullyConnectedTensorProduct", ("2x0e", "1x1o", "1x1e"), {"compile_right": True}),
    ("FullTensorProduct", ("2x0e", "1x1o", ["1e"]), {}),
    ("ElementwiseTensorProduct", ("2x0e", "2x1o", ["1e"]), {}),
]


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert (ours.shape, ours.dtype, ours.requires_grad) == (theirs.shape, theirs.dtype, theirs.requires_grad)
    assert torch.equal(ours, theirs)
    assert not ours.any()


def described(layer: Any) -> list[Any]:
    found = [layer.weight_numel, [tuple(ins) for ins in layer.instructions], layer.output_mask.tolist()]
    return [*found, list(layer.state_dict()), [name for name, _ in layer.named_parameters()]]


@each("features", FEATURES)
@each("args, kwargs", MAPS)
def test_a_linear_map_takes_any_width(args: Any, kwargs: Any, features: str) -> None:
    """e3nn looks at the leading axes only; also after the way of accelerate."""
    theirs, x = o3.Linear(*args, **kwargs), FEATURES[features]
    ours = eqlayers.Linear(*args, **kwargs)
    assert described(ours) == described(theirs)
    assert_same(ours(x), theirs(x))
    if "f_in" not in kwargs:  # e3nn does not keep it
        assert_same(eqlayers.Linear.from_e3nn(theirs)(x), theirs(x))


def test_weights_and_biases_of_a_linear_map_are_not_read() -> None:
    x, odd = torch.ones(5, 7), torch.ones(2, 3)
    theirs, ours = (kind("16x0e", "1x1o") for kind in (o3.Linear, eqlayers.Linear))
    assert_same(ours(x, odd, odd), theirs(x, odd, odd))


@pytest.mark.kernels
@pytest.mark.parametrize("how", ["script", "trace", "compile"])
def test_a_linear_map_takes_any_width_in_every_way_to_run_it(how: str) -> None:
    layer, x = eqlayers.Linear("16x0e", "1x1o"), torch.ones(5, 7)
    made = {
        "script": lambda: torch.jit.script(layer),
        "trace": lambda: torch.jit.trace(layer, (torch.ones(2, 3),)),
        "compile": lambda: torch.compile(layer, fullgraph=True, backend="aot_eager"),
    }[how]()
    assert_same(made(x), torch.zeros(5, 3))


def test_one_path_or_bias_is_enough_for_the_width_to_count() -> None:
    for layer in (eqlayers.Linear("2x0e + 1x1o", "1x1o"), eqlayers.Linear("2x1o", "2x0e", biases=True)):
        with pytest.raises(EqlayersError, match=r"features must be \[\.\.\., \d\] for irreps .*, got \[5, 7\]"):
            layer(torch.ones(5, 7))


@pytest.mark.parametrize("value", [None, 1.0, [1.0]])
def test_features_and_weights_must_be_tensors_all_the_same(value: Any) -> None:
    layer = eqlayers.Linear("16x0e", "1x1o")
    with pytest.raises(EqlayersError, match=rf"features must be a tensor of any width, got {re.escape(repr(value))}\."):
        layer(value)
    if value is not None:
        for name in ("weight", "bias"):
            with pytest.raises(EqlayersError, match=rf"{name} must be a tensor.*, got {re.escape(repr(value))}\."):
                layer(torch.ones(5, 7), **{name: value})


@pytest.mark.parametrize(("name", "args", "kwargs"), PRODUCTS)
def test_products(name: str, args: Any, kwargs: Any) -> None:
    """Widths count in e3nn as well; the dtypes of the inputs need not agree there, and the first one's is kept."""
    theirs, ours = getattr(o3, name)(*args, **kwargs), getattr(eqlayers.o3, name)(*args, **kwargs)
    assert described(ours) == described(theirs)
    in1, in2 = theirs.irreps_in1.dim, theirs.irreps_in2.dim
    pairs = [
        (torch.ones(5, in1, requires_grad=True), torch.ones(5, in2)),
        (torch.ones(2, 1, in1), torch.ones(3, in2)),
        (torch.ones(in1), torch.ones(in2)),
        (torch.ones(0, in1), torch.ones(0, in2)),
        (torch.ones(5, in1, dtype=torch.float64), torch.ones(5, in2)),
        (torch.ones(5, in1), torch.ones(5, in2, dtype=torch.float64)),
        (torch.ones(5, in1, dtype=torch.int64), torch.ones(5, in2)),
    ]
    for x, y in pairs:
        assert_same(ours(x, y), theirs(x, y))
        assert_same(eqlayers.TensorProduct.from_e3nn(theirs)(x, y), theirs(x, y))
        if kwargs.get("compile_right"):
            assert_same(ours.right(y), theirs.right(y))
    for x, y in [(torch.ones(5, in1 + 1), torch.ones(5, in2)), (torch.ones(5, in1), torch.ones(5, in2 + 1))]:
        for layer in (ours, theirs):
            with pytest.raises(AssertionError):
                layer(x, y)
    if kwargs.get("shared_weights") is False:
        rows = [torch.ones(1, in1), torch.ones(1, in2), torch.ones(4, 0)]
        assert_same(ours(*rows), theirs(*rows))


def test_a_square() -> None:
    theirs, ours = (space.TensorSquare("2x0e", "1x1e") for space in (o3, eqlayers.o3))
    for x in (torch.ones(5, 2), torch.ones(2), torch.ones(3, 2, dtype=torch.int64)):
        assert_same(ours(x), theirs(x))
