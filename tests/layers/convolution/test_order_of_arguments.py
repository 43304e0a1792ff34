"""Edges given as weights or attributes are said to look like edges, with the order of the arguments."""

import pytest
import torch

import eqlayers as eq
from eqlayers import functional
from eqlayers.errors import DTypeError, ShapeError
from tests.each import refused

PATHS = [(0, 0, 0, "uvu", True)]
PRODUCT = eq.TensorProduct("2x0e", "0e", "2x0e", PATHS)
CONV = eq.TensorProductConv("2x0e", "0e", "2x0e", PATHS, shared_weights=False)
OWN = eq.TensorProductConv("2x0e", "0e", "2x0e", PATHS)
PLAIN = eq.TensorProduct("2x0e", "0e", "2x0e", [(0, 0, 0, "uvu", False)])
X, Y, E = torch.ones(3, 2), torch.ones(4, 1), torch.tensor([[0, 1, 2, 0], [1, 0, 1, 2]])
SQUARE = torch.tensor([[0, 1], [1, 0]])  # as long as the weights of two edges, and there are two weights for each
CONV_ORDER = r"The order of arguments is x, edge_attr, weight, edge_index: check it"
ORDER = "The order of arguments is x, y, weight"
EDGES = r"looks like edge_index\. "


test_edges_in_the_place_of_another_argument = refused("message, call", [
        (r"weight of TensorProduct .*tensor \[2, 4\] of torch.int64, which " + EDGES + ORDER,
            lambda: PRODUCT(X, X[:, :1], E)),
        (r"weight of TensorProductConv .*got a tensor \[2, 4\] of torch.int64, which " + EDGES + CONV_ORDER,
            lambda: CONV(X, Y, E, torch.ones(4, 2))),
        (r"weight of TensorProductConv .*got a tensor \[2, 2\] of torch.int64, which " + EDGES + CONV_ORDER,
            lambda: CONV(X, Y[:2], SQUARE, torch.ones(4, 2))),
        (r"got a tensor \[2, 4\] of torch.int32, which " + EDGES, lambda: CONV(X, Y, E.int(), None)),
        (r"got Graph\(4 edges, .*, which " + EDGES + CONV_ORDER, lambda: CONV(X, Y, eq.Graph(E, 3))),
        (r"weight of TensorProductConv .*" + EDGES + CONV_ORDER, lambda: OWN(X, Y, E)),
        (r"edge_attr of TensorProductConv .*" + EDGES + CONV_ORDER, lambda: CONV(X, E, Y)),
        (r"got a tensor \[3\] of torch.int64\. The order of arguments is x, y, weight",
            lambda: PRODUCT(X, X[:, :1], torch.zeros(3).long())),
        (r"weight must be .*" + EDGES + "The order of arguments is plan, x, y, weight",
            lambda: functional.tensor_product(PRODUCT.plan, X, X[:, :1], E)),
        (r"weight must be .*" + EDGES + "The order of arguments is plan, x, edge_attr, weight, edge_index",
            lambda: functional.tensor_product_conv(CONV.plan, X, Y[:2], SQUARE, E)),
    ], error=DTypeError)  # fmt: skip


def test_other_errors_stay() -> None:
    with pytest.raises(ShapeError, match=r"weight of TensorProduct must be \[2\], got \[3\]"):
        PRODUCT(X, X[:, :1], torch.ones(3))
    with pytest.raises(ShapeError, match=r"weight of TensorProductConv must be \[\.\.\., 2\] with"):
        CONV(X, Y, torch.ones(4, 3), E)
    with pytest.raises(ShapeError, match="weight of Linear must"):
        eq.Linear("2x0e", "2x0e")(X, E)


def test_layers_without_weights_take_an_empty_tensor_of_any_kind() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    torch.testing.assert_close(PLAIN(X, X[:, :1], empty), PLAIN(X, X[:, :1]))
