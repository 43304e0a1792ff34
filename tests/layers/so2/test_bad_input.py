"""Convolutions in the frames of edges: their words, and what they refuse."""

from __future__ import annotations

import pytest
import torch

import eqlayers as eq
from eqlayers.nn import Linear, SO2Convolution, SO2Linear, TensorProduct


@pytest.mark.kernels
def test_text_and_bad_input() -> None:
    layer, conv = SO2Linear("2x1o", "1x1o", 1), SO2Convolution("2x1o", "1x1o", parity="so3")
    assert repr(layer) == "SO2Linear(2x1o -> 1x1o | mmax 1, o3 | 4 weights | mul_ir, backend auto)"
    assert "2x1o -> 1x1o | so3 | 6 weights" in repr(conv)
    assert "sorting by order m: cpu runs" in layer.explain()
    x, index, vectors = torch.randn(3, 6), torch.tensor([[0, 1], [1, 2]]), torch.randn(2, 3)
    errors = eq.errors
    with pytest.raises(errors.ConfigError, match="mmax must be an integer, at least 0, got -1"):
        SO2Linear("1o", "1o", -1)
    with pytest.raises(errors.ConfigError, match="parity must be one of o3, so3, got 'o2'"):
        SO2Linear("1o", "1o", parity="o2")
    with pytest.raises(errors.ConfigError, match=r"lmax must be .*at least 2, got 1. The irreps have degrees to 2"):
        SO2Convolution("1o", "2e", lmax=1)
    with pytest.raises(errors.ShapeError, match=r"x must be \[\.\.\., 6\]"):
        layer(torch.zeros(2, 5))
    with pytest.raises(errors.ShapeError, match=r"scales must be \[\.\.\., 4\].*got \[3, 5\]"):
        layer(x, torch.zeros(3, 5))
    with pytest.raises(errors.ShapeError, match="leading axes of x, scales must broadcast"):
        layer(x, torch.zeros(2, 4))
    with pytest.raises(errors.ShapeError, match=r"weight must be \[4\], got \[3, 4\]"):
        layer(x, weight=torch.zeros(3, 4))
    with pytest.raises(errors.ShapeError, match=r"weight must be \[4\], the layer has no internal weights, got None"):
        SO2Linear("2x1o", "1x1o", internal_weights=False)(x)
    with pytest.raises(errors.DTypeError, match="scales must have the dtype of x"):
        layer(x, torch.zeros(3, 4).double())
    with pytest.raises(errors.ShapeError, match=r"frames must be \[2, 10\], got \[2, 35\].*lmax"):
        conv(x, torch.zeros(2, 35), index)
    with pytest.raises(errors.ShapeError, match=r"x must be \[1, 6\], got \[1, 3, 6\]. Flatten batch axes"):
        conv(x[None], vectors, index)
    with pytest.raises(errors.ShapeError, match=r"envelope must be \[2\], got \[2, 1\]"):
        conv(x, vectors, index, envelope=torch.zeros(2, 1))
    with pytest.raises(errors.ShapeError, match=r"scales must be \[2, 4\], got \[1, 4\]"):
        conv(x, vectors, index, torch.zeros(1, 4))
    with pytest.raises(errors.DTypeError, match="frames must have the dtype of x"):
        conv(x, vectors.double(), index)
    with pytest.raises(errors.IndexRangeError, match=r"must lie in \[0, 3\)"):
        conv(x, vectors, index + 1)


def test_products_that_have_no_equal() -> None:
    convert, error = SO2Convolution.from_tensor_product, eq.errors.ConfigError
    paths = [(0, 0, 0, "uvw", True)]
    with pytest.raises(error, match="module must be an e3nn"):
        convert(torch.nn.Linear(2, 2))
    with pytest.raises(error, match="normalization must be one of component, norm, integral"):
        convert(TensorProduct("1o", "0e", "1o", paths), normalization="none")
    with pytest.raises(error, match="irreps_in2 must be irreps of spherical harmonics, each once, got 2x0e"):
        convert(TensorProduct("1o", "2x0e", "1o", paths))
    with pytest.raises(error, match="mode 'uvw' or 'uvu', got 'uuu' in path 0"):
        convert(TensorProduct("1o", "0e", "1o", [(0, 0, 0, "uuu", True)]))
    with pytest.raises(error, match="weights must be the layer's own"):
        convert(TensorProduct("1o", "0e", "1o", paths, shared_weights=False))
    tp = TensorProduct("1o", "0e", "1o", paths)
    with pytest.raises(error, match="linear must have no biases"):
        convert(tp, Linear("1o", "1o + 0e", biases=True))
    with pytest.raises(eq.errors.ShapeError, match="irreps_in of the product's result, 1x1o, got 2x1o"):
        convert(tp, Linear("2x1o", "1o"))
    with pytest.raises(error, match="layout of the product, 'mul_ir', got 'ir_mul'"):
        convert(tp, Linear("1o", "1o", layout="ir_mul"))
