"""Layers of a user's own function: its numbers on every backend, rows of all kinds, what it must not do."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers import Graph, to_ir_mul, to_mul_ir
from eqlayers.errors import ConfigError, IndexRangeError, IrrepsError, ShapeError, UnknownNameError
from eqlayers.irreps.algebra import as_irreps
from eqlayers.nn import FormulaLayer
from tests.each import refused

EPS = torch.finfo(torch.float64).eps


def dot(x: Any, y: Any) -> Any:
    return [x[0] * y[0] + x[1] * y[1] + x[2] * y[2]]


def everything(x: Any) -> Any:
    """Every operation on a scalar that may be written."""
    (s,) = x
    return [
        2 - s + 3 * s * s - s**3 / 4 + (-s).tanh() * s.sigmoid() + (s - 1.0).silu() * 0.5 + s.inverse_length() * s**0
    ]


def by_torch(s: Tensor) -> Tensor:
    silu = torch.nn.functional.silu(s - 1.0)
    return 2 - s + 3 * s * s - s**3 / 4 + (-s).tanh() * s.sigmoid() + silu * 0.5 + 1 / s.abs()


@pytest.mark.parametrize("backend", [None, "torch", "reference"])
@pytest.mark.parametrize("channels", [1, 3, 8])
def test_all_operations(channels: int, backend: str | None) -> None:
    layer = FormulaLayer(everything, {"x": f"{channels}x0e"}, f"{channels}x0e", backend=backend)
    x = torch.randn(2, 5, channels, dtype=torch.float64, requires_grad=True)
    found, wanted = layer(x), by_torch(x)
    torch.testing.assert_close(found, wanted, rtol=64 * EPS, atol=64 * EPS)
    pairs = [torch.autograd.grad(z.square().sum(), x, create_graph=True)[0] for z in (found, wanted)]
    torch.testing.assert_close(*pairs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(g.square().sum(), x)[0] for g in pairs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("channels", [2, 4])
def test_components_are_those_of_the_irreps(channels: int, layout: str) -> None:
    """Each is multiplied by its number, which no rotation leaves alone: without the check."""
    irreps = as_irreps(f"{channels}x1o + {channels}x0e + {channels}x2e")
    layer = FormulaLayer(
        lambda x: [n * v for n, v in enumerate(x, start=1)], {"x": irreps}, irreps, layout=layout, check=False
    )
    x = torch.randn(3, irreps.dim, dtype=torch.float64)
    factors = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    wanted = x * torch.tensor([n for part in factors for _ in range(channels) for n in part])
    given = x if layout == "mul_ir" else to_ir_mul(x, irreps)
    found = layer(given)
    torch.testing.assert_close(found if layout == "mul_ir" else to_mul_ir(found, irreps), wanted)


@pytest.mark.kernels
def test_rows_of_all_kinds() -> None:
    src, dst = edge_index = torch.tensor([[0, 2, 1, 0], [1, 1, 0, 3]])
    kinds = {"a": "src", "b": "dst", "c": "each", "d": "one"}
    layer = FormulaLayer(
        lambda a, b, c, d: ([a[0] * b[0] * c[0] * d[0]],) * 4,
        dict.fromkeys("abcd", "4x0e"),
        ["4x0e"] * 4,
        rows=kinds,
        rows_out=["src", "dst", "each", "one"],
    )
    a, b, c, d = (torch.randn(*n, 4, dtype=torch.float64) for n in ((3,), (5,), (4,), ()))
    product = a[src] * b[dst] * c * d
    at_nodes = [product.new_zeros(n, 4).index_add(0, i, product) for n, i in ((3, src), (5, dst))]
    wanted = (*at_nodes, product, product.sum(0))
    for graph in (edge_index, Graph(edge_index, 3, 5)):
        for z, w in zip(layer(a, b, d=d, c=c, graph=graph), wanted, strict=True):
            torch.testing.assert_close(z, w, rtol=0, atol=16 * EPS)
    text = "4x0e (src), 4x0e (dst), 4x0e, 4x0e (one) -> 4x0e (src), 4x0e (dst), 4x0e, 4x0e (one)"
    assert repr(layer) == f"FormulaLayer({text} | 3 operations | mul_ir, backend auto)"


def test_leading_axes_broadcast() -> None:
    layer = FormulaLayer(dot, {"x": "4x1o", "y": "4x1o"}, "4x0e")
    x, y = torch.randn(2, 1, 12), torch.randn(3, 12)
    wanted = (x.unflatten(-1, (4, 3)) * y.unflatten(-1, (4, 3))).sum(-1)
    torch.testing.assert_close(layer(x, y), wanted)
    assert layer(x[0, 0], y[0]).shape == (4,)
    assert layer.irreps_in == {"x": as_irreps("4x1o"), "y": as_irreps("4x1o")}
    total = FormulaLayer(dot, {"x": "4x1o", "y": "4x1o"}, "4x0e", rows_out="one")
    torch.testing.assert_close(total(x, y), wanted.sum((0, 1)))


def test_functions_of_torch_are_those_of_the_value() -> None:
    layer = FormulaLayer(lambda s: [torch.tanh(s[0]) + torch.nn.functional.silu(s[0])], {"s": "4x0e"}, "4x0e")
    s = torch.randn(3, 4)
    torch.testing.assert_close(layer(s), s.tanh() + torch.nn.functional.silu(s))


test_what_a_formula_cannot_have = refused(
    "error, message, function",
    [
        (
            UnknownNameError,
            "among sigmoid, tanh, silu, inverse_length, which kernels know, got exp",
            lambda x: [x[0].exp()],
        ),
        (UnknownNameError, "got sqrt", lambda x: [torch.sqrt(x[0])]),
        (IndexRangeError, r"component of x must lie in \[0, 3\).*a channel, 1x1o, got 3", lambda x: [x[3]]),
    ],
    lambda function: FormulaLayer(function, {"x": "8x1o"}, "8x0e"),
)


def test_functions_that_do_not_commute_are_refused() -> None:
    with pytest.raises(IrrepsError, match=r"function must .*got the result off by .*check=False"):
        FormulaLayer(lambda x: [x[0], x[1], 2 * x[2]], {"x": "4x1o"}, "4x1o")
    with pytest.raises(IrrepsError, match="function must"):
        FormulaLayer(dot, {"x": "4x1o", "y": "4x1o"}, "4x0o")
    FormulaLayer(dot, {"x": "4x1o", "y": "4x1o"}, "4x0o", check=False)


X = {"x": "4x0e"}
BAD: list[tuple[type[Exception], str, Any]] = [
    (ConfigError, "irreps of operands and results must have one multiplicity", lambda: FormulaLayer(dot, X, "2x0e")),
    (ConfigError, "function must return 2 lists", lambda: FormulaLayer(lambda x: [x[0]], X, ["4x0e", "4x0e"])),
]


test_bad_layers = refused("error, message, call", BAD)


def test_bad_calls() -> None:
    plain = FormulaLayer(lambda x: [x[0]], X, "4x0e")
    edges = FormulaLayer(lambda x: [x[0]], X, "4x0e", rows={"x": "src"})
    only = FormulaLayer(lambda x: [x[0]], X, "4x0e", rows_out="dst")
    x, index = torch.ones(2, 4), torch.tensor([[0, 1], [1, 0]])
    for error, text, call in (
        (ShapeError, r"graph must be None, no operand has rows of nodes", lambda: plain(x, graph=index)),
        (ShapeError, r"graph must be a graph or edge_index \[2, E\], got None", lambda: edges(x)),
        (ShapeError, "graph must be a Graph, which says how many nodes", lambda: only(x, graph=index)),
        (ShapeError, r"operands must be x, got 2 and \[\]", lambda: plain(x, x)),
        (ShapeError, r"operands must be x, got 0 and \['y'\]", lambda: plain(y=x)),
        (ShapeError, r"operands must be x, got 1 and \['x'\]", lambda: plain(x, x=x)),
        (ShapeError, r"x must be \[N, 4\], its rows are 'src', got \[1, 2, 4\]", lambda: edges(x[None], graph=index)),
    ):
        with pytest.raises(error, match=text):
            call()
