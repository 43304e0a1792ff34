"""Mistakes in several arguments at once, or whose message has a hint; tests/test_bad_calls.py has single arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import zeros

import eqlayers as eq
from eqlayers import Linear, SO3Scale, TensorProduct, TensorSquare
from eqlayers.errors import (
    BackendError,
    ConfigError,
    DTypeError,
    EqlayersError,
    IndexRangeError,
    IrrepsError,
    ShapeError,
)
from eqlayers.nn import Interaction
from tests.each import refused

ROW = (0, 0, 0, "uvw", True)


def product(*rows: Any, in1: str = "2x1o", in2: str = "3x1o", out: str = "4x0e", **options: Any) -> TensorProduct:
    return TensorProduct(in1, in2, out, rows or [ROW], **options)


X, Y = zeros(5, 6), zeros(5, 9)
OWN, EXTERNAL, SAMPLES = product(), product(internal_weights=False), product(shared_weights=False)
LINEAR, AXES = Linear("2x1o", "3x1o"), Linear("2x0e", "3x0e", f_in=4, f_out=5)
FREE = Linear("2x0e", "3x0e", shared_weights=False, biases=True)
SCALE = SO3Scale("2x0e+1o", "external")

MISTAKES: list[tuple[type[EqlayersError], str, Callable[[], Any]]] = [
    # ---- constructors
    (IndexRangeError, "i_in1.*Count irreps groups", lambda: product((1, 0, 0, "uvw", True))),
    (IrrepsError, "instructions.*Use FullyConnectedTensorProduct", lambda: TensorProduct("0e", "0e", "0e", None)),
    (IrrepsError, "'uuu'.*got 2 and 3. Use 'uvw'", lambda: product((0, 0, 0, "uuu", True))),
    (IrrepsError, "'u<vw'.*got 2 and 3", lambda: product((0, 0, 0, "u<vw", True))),
    (IrrepsError, "'uvu'.*2 of out.*got 4", lambda: product((0, 0, 0, "uvu", True))),
    (IrrepsError, "'uvuv'.*6 of out.*got 4", lambda: product((0, 0, 0, "uvuv", True))),
    (IrrepsError, "'uvw'.*has_weight", lambda: product((0, 0, 0, "uvw", False))),
    (IrrepsError, "parity of 1o x 1o is 'e'.*Use 0e", lambda: product(out="4x0o")),
    (IrrepsError, "1o x 1o holds degrees 0 to 2.*3e. Drop", lambda: product(out="4x3e")),
    (ConfigError, "internal_weights.*Pass weights per", lambda: product(internal_weights=True, shared_weights=False)),
    (IrrepsError, "filter_ir_out.*irreps_out", lambda: TensorSquare("1o", "0e", ["0e"])),
    (ConfigError, "f_in and f_out.*got 2 and None", lambda: Linear("0e", "0e", f_in=2)),
    (IrrepsError, "equal irreps, got 0e -> 1o", lambda: Linear("0e", "1o", instructions=[(0, 0)])),
    (ConfigError, "values.*scale='fixed', got None", lambda: SO3Scale("0e", "fixed")),
    (ConfigError, "values.*scale='learned', got 2", lambda: SO3Scale("0e", "learned", 2.0)),
    (IrrepsError, "irreps_out.*4x1o. Add degrees", lambda: Interaction("4x0e", "0e", "4x1o")),
    # ---- calls
    (ShapeError, r"x .*6\].*\[5, 7\]. Build the layer for this width", lambda: OWN(zeros(5, 7), Y)),
    (ShapeError, "x .*features go last.*movedim", lambda: OWN(X.T, Y)),
    (ShapeError, r"y .*`y\.flatten\(-2\)`, layout 'ir_mul'", lambda: OWN(X, Y.reshape(5, 3, 3))),
    (ShapeError, r"x, y must broadcast, got \[\[5\], \[4\]\]", lambda: OWN(X, Y[:4])),
    (ShapeError, "x, y, weight must broadcast", lambda: SAMPLES(X, Y, zeros(3, 24))),
    (DTypeError, "y .*dtype of x.*float64", lambda: OWN(X, Y.double())),
    (DTypeError, "x .*int64. Convert", lambda: OWN(X.long(), Y.long())),
    (DTypeError, "weight .*dtype of x.*float32", lambda: OWN(X.double(), Y.double())),
    (ShapeError, r"weight .*\[24\], got \[25\]", lambda: OWN(X, Y, zeros(25))),
    (ShapeError, r"weight .*\[5, 24\].*shared_weights=False", lambda: OWN(X, Y, zeros(5, 24))),
    (ShapeError, r"batch axis, got \[24\]", lambda: SAMPLES(X, Y, zeros(24))),
    (ShapeError, "weight .*got None. Pass weight=", lambda: EXTERNAL(X, Y)),
    (ShapeError, "list of weights .*got 2", lambda: EXTERNAL(X, Y, [zeros(24)] * 2)),
    (ShapeError, r"weight 0 .*\[2, 3, 5\]. Order", lambda: EXTERNAL(X, Y, [zeros(2, 3, 5)])),
    (ShapeError, r"features .*6\].*\[5, 9\]", lambda: LINEAR(Y)),
    (ShapeError, r"weight of Linear .*\[5, 6\].*shared_weights=False", lambda: LINEAR(X, zeros(5, 6))),
    (DTypeError, "weight .*dtype of features", lambda: LINEAR(X.double())),
    (DTypeError, "bias .*dtype of features", lambda: FREE(zeros(5, 2), zeros(5, 6), zeros(5, 3).double())),
    (ShapeError, "features, weight, bias must broadcast", lambda: FREE(zeros(5, 2), zeros(4, 6), zeros(4, 3))),
    (ShapeError, "weight of Linear .*got None", lambda: FREE(zeros(5, 2))),
    (ShapeError, "bias of Linear .*got None", lambda: FREE(zeros(5, 2), zeros(5, 6))),
    (ShapeError, "features .*4, 2.*Put the f_in axis", lambda: AXES(zeros(5, 2))),
    (ShapeError, "scales .*'external', got None", lambda: SCALE(zeros(5, 5))),
    (ShapeError, "scales .*None for scale='learned'", lambda: SO3Scale("2x0e+1o")(zeros(5, 5), zeros(5, 3))),
    (ShapeError, "scales .*one per copy.*Check per=", lambda: SCALE(zeros(5, 5), zeros(5, 5))),
    (ShapeError, "x, scales must broadcast", lambda: SCALE(zeros(5, 5), zeros(4, 3))),
    (DTypeError, "scales .*dtype of x", lambda: SCALE(zeros(5, 5), zeros(5, 3).double())),
]


test_mistakes = refused("error, message, call", MISTAKES)


def test_errors_are_also_the_errors_that_python_users_catch() -> None:
    pairs: list[tuple[type[EqlayersError], type[Exception]]] = [
        (ShapeError, ValueError),
        (DTypeError, TypeError),
        (IndexRangeError, IndexError),
    ]
    pairs += [(IrrepsError, ValueError), (ConfigError, ValueError), (BackendError, RuntimeError)]
    # what e3nn raises for the same mistakes
    pairs += [(IrrepsError, AssertionError), (ConfigError, AssertionError), (IndexRangeError, ValueError)]
    pairs += [(ShapeError, AssertionError), (ShapeError, RuntimeError)]
    assert [error.__name__ for error, builtin in pairs if not issubclass(error, builtin)] == []


def test_a_refused_backend_says_why() -> None:
    layer = product(backend="triton", internal_weights=False)
    x, y, weight = (zeros(*shape, device="meta") for shape in ((5, 6), (5, 9), (24,)))
    with pytest.raises(BackendError, match=r"backend 'triton' must accept this call, but it .*Pass backend=None"):
        layer(x, y, weight)


def test_scale_needs_scale_infos() -> None:
    infos = eq.sparse.sparse_product_infos([0], [0], [0], in1_size=1, in2_size=1, out_size=1)
    with pytest.raises(DTypeError, match="sparse_scale_infos"):
        eq.functional.sparse_scale(torch.ones(1, 1), infos[0], infos[1])
