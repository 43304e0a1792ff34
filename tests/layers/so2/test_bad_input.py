"""Convolutions in the frames of edges: their text, and mistakes in several arguments at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eqlayers.errors import ConfigError, DTypeError, EqlayersError, IndexRangeError, ShapeError
from eqlayers.nn import Linear, SO2Convolution, SO2Linear, TensorProduct
from tests.each import refused

LAYER, CONV = SO2Linear("2x1o", "1x1o", 1), SO2Convolution("2x1o", "1x1o", parity="so3")
X, VECTORS, EDGES = torch.ones(3, 6), torch.ones(2, 3), torch.tensor([[0, 1], [1, 2]])
PATHS = [(0, 0, 0, "uvw", True)]
PRODUCT = TensorProduct("1o", "0e", "1o", PATHS)
convert = SO2Convolution.from_tensor_product

MISTAKES: list[tuple[type[EqlayersError], str, Callable[[], Any]]] = [
    (ConfigError, "lmax .*at least 2, got 1", lambda: SO2Convolution("1o", "2e", lmax=1)),
    (ShapeError, "x, scales must broadcast", lambda: LAYER(X, torch.zeros(2, 4))),
    (ShapeError, r"weight must be \[4\], got \[3, 4\]", lambda: LAYER(X, weight=torch.zeros(3, 4))),
    (ShapeError, "weight .*got None", lambda: SO2Linear("2x1o", "1x1o", internal_weights=False)(X)),
    (DTypeError, "scales .*dtype of x", lambda: LAYER(X, torch.zeros(3, 4).double())),
    (ShapeError, r"frames .*\[2, 10\], got \[2, 35\].*lmax", lambda: CONV(X, torch.zeros(2, 35), EDGES)),
    (ShapeError, "x .*Flatten batch axes", lambda: CONV(X[None], VECTORS, EDGES)),
    (ShapeError, "envelope", lambda: CONV(X, VECTORS, EDGES, envelope=torch.zeros(2, 1))),
    (ShapeError, r"scales .*\[2, 4\], got \[1, 4\]", lambda: CONV(X, VECTORS, EDGES, torch.zeros(1, 4))),
    (DTypeError, "frames .*dtype of x", lambda: CONV(X, VECTORS.double(), EDGES)),
    (IndexRangeError, r"must lie in \[0, 3\)", lambda: CONV(X, VECTORS, EDGES + 1)),
    (ConfigError, "normalization", lambda: convert(PRODUCT, normalization="none")),
    (ConfigError, "irreps_in2.*2x0e", lambda: convert(TensorProduct("1o", "2x0e", "1o", PATHS))),
    (ConfigError, "'uuu' in path 0", lambda: convert(TensorProduct("1o", "0e", "1o", [(0, 0, 0, "uuu", True)]))),
    (ConfigError, "weights", lambda: convert(TensorProduct("1o", "0e", "1o", PATHS, shared_weights=False))),
    (ConfigError, "linear .*biases", lambda: convert(PRODUCT, Linear("1o", "1o + 0e", biases=True))),
    (ShapeError, "irreps_in .*1x1o, got 2x1o", lambda: convert(PRODUCT, Linear("2x1o", "1o"))),
    (ConfigError, "layout .*got 'ir_mul'", lambda: convert(PRODUCT, Linear("1o", "1o", layout="ir_mul"))),
]


test_mistakes = refused("error, message, call", MISTAKES)


@pytest.mark.kernels
def test_text() -> None:
    assert repr(LAYER) == "SO2Linear(2x1o -> 1x1o | mmax 1, o3 | 4 weights | mul_ir, backend auto)"
    assert "2x1o -> 1x1o | so3 | 6 weights" in repr(CONV)
    assert "sorting by order m: cpu runs" in LAYER.explain()
