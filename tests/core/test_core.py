"""Checks of arguments, graphs, contractions of operands, and dtypes, devices and species that calls share."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from eqlayers import Graph, TensorProductConv
from eqlayers.core import checks
from eqlayers.core.contraction import Contraction, contraction
from eqlayers.core.dtypes import broadcast_lead, check_same_dtype
from eqlayers.core.species import species_on_device
from eqlayers.errors import ConfigError, DeviceError, DTypeError, IndexRangeError, ShapeError
from eqlayers.nn import SO2Convolution
from tests.each import each

NAN = float("nan")


class WithoutRepr:
    def __repr__(self) -> str:
        raise ValueError("half built")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("5", "'5'"),
        (np.float64(5.0), "np.float64(5.0)"),
        (torch.zeros(2, 3), "a tensor [2, 3] of torch.float32"),
        (torch.zeros(1, requires_grad=True), "a tensor [1] of torch.float32 that requires a gradient"),
        (np.zeros((2, 3), int), "an array [2, 3] of int64"),
        (torch.nn.Linear(1, 1), "a module of type Linear"),
        (WithoutRepr(), "a value of type WithoutRepr"),
        (list(range(1000)), f"{str(list(range(1000)))[:100]}... of type list"),
        ("two\n  lines", r"'two\n lines'"),
    ],
)
def test_what_came_is_named_shortly(value: Any, text: str) -> None:
    assert checks.got(value) == text


@pytest.mark.parametrize("value", [True, 1, np.bool_(True)])
def test_flags(value: Any) -> None:
    assert checks.check_flag("x", value) is True
    with pytest.raises(ShapeError, match=r"^x must be True or False, got 'no'\. Pass one of the two\.$"):
        checks.check_flag("x", "no", ShapeError)


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3), np.uint8(3)])
def test_integers(value: Any) -> None:
    found = checks.check_integer("x", value, 3)
    assert (found, type(found)) == (3, int)
    with pytest.raises(ConfigError, match=r"^x must be a width, at least 4, got .*3.*\. Use 4 or more\.$"):
        checks.check_integer("x", value, 4, what="a width")


@pytest.mark.parametrize(
    "value", [3.0, "3", True, np.bool_(True), torch.tensor(3.0), torch.tensor(True), [3], None, 3j]
)
def test_what_is_no_integer(value: Any) -> None:
    assert not checks.is_integer(value)
    with pytest.raises(ConfigError, match="x must be an integer, at least 0, got"):
        checks.check_integer("x", value, 0)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), Fraction(2), torch.tensor(2.0), np.array(2)])
def test_numbers(value: Any) -> None:
    found = checks.check_number("x", value, above=1)
    assert (found, type(found)) == (2.0, float)
    assert checks.check_number("x", value, at_least=2) == 2.0
    with pytest.raises(ConfigError, match=r"^x must be a finite number above 2, got .*\. Use"):
        checks.check_number("x", value, above=2)
    with pytest.raises(ConfigError, match=r"^x must be a finite number of at least 3 eV, got .*\. Look\.$"):
        checks.check_number("x", value, at_least=3, unit=" eV", fix="Look.")


@each(
    "value",
    [NAN, np.inf, -np.inf, "2", True, None, [2.0], 2j, torch.ones(1), torch.tensor(True), 10**400, np.bool_(True)],
)
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="x must be a finite number, got"):
        checks.check_number("x", value)


def test_a_number_with_a_gradient_is_refused_not_cut_off() -> None:
    with pytest.raises(ConfigError, match=r"a positive number, got tensor\(2\., requires_grad=True\)\. Use"):
        checks.check_number("x", torch.tensor(2.0, requires_grad=True), above=0)


@pytest.mark.parametrize("value", [(1, 2), [1, 2], range(1, 3), np.array([1, 2]), {1, 2}, iter([1, 2])])
def test_items(value: Any) -> None:
    assert list(checks.check_items("x", value, "a list", "Pass one.")) == [1, 2]


@pytest.mark.parametrize("value", ["ab", b"ab", {"a": 1}, 1, None, torch.tensor(1), np.array(1)])
def test_what_has_no_items(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^x must be a list, got .*\. Pass one\.$"):
        checks.check_items("x", value, "a list", "Pass one.")


def test_paths() -> None:
    assert checks.check_path("x", Path("a")) == checks.check_path("x", "a") == "a"
    for value in ("", None, 1, ["a"]):
        with pytest.raises(ConfigError, match="x must be a path, got"):
            checks.check_path("x", value)


def test_joined_graphs_have_their_nodes_one_after_the_other() -> None:
    """Senders and receivers of different numbers are counted apart."""
    first = Graph(torch.tensor([[0, 2, 1], [1, 0, 1]]), 3, 2)
    empty = Graph(torch.zeros(2, 0, dtype=torch.int64), 1, 4)
    last = Graph(torch.tensor([[0, 1], [0, 0]], dtype=torch.int64), 2, 1)
    whole = Graph.joined([first, empty, last])
    assert whole.edge_index.tolist() == [[0, 2, 1, 4, 5], [1, 0, 1, 6, 6]]
    assert (whole.num_src, whole.num_dst) == (6, 7)
    conv = TensorProductConv("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)]).double()
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    parts = [
        conv(x[:3], y[:3], edge_index=first),
        conv(x[3:4], y[3:3], edge_index=empty),
        conv(x[4:], y[3:], edge_index=last),
    ]
    torch.testing.assert_close(conv(x, y, edge_index=whole), torch.cat(parts))


def test_a_graph_of_a_batch_is_not_a_copy() -> None:
    batch = SimpleNamespace(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    graph = Graph.of(batch)
    assert graph.edge_index is batch.edge_index
    assert (graph.num_src, graph.num_dst) == (3, 3)
    assert graph.to("cpu", non_blocking=True) is graph


def test_halves_are_kept_and_serve_training_after_inference() -> None:
    graph = Graph(torch.tensor([[0, 2, 1], [1, 0, 1]]), 3, 2)
    layer = SO2Convolution("2x0e + 1x1o", "2x0e + 1x1o")
    x, vectors = torch.randn(3, 5), torch.randn(3, 3)
    with torch.inference_mode():
        first = layer(x, vectors, graph)
    kept = graph.halves()
    again = layer(x.requires_grad_(), vectors, graph)
    again.sum().backward()
    torch.testing.assert_close(again, first)
    assert all(a is b for a, b in zip(kept, graph.halves(), strict=True))
    assert [(g.num_src, g.num_dst) for g in kept] == [(3, 3), (3, 2)]
    fresh = Graph(graph.edge_index, 3, 2)
    torch.func.grad(lambda t: layer(t, vectors, fresh).sum())(x.detach())
    layer(x, vectors, fresh).sum().backward()


def test_bad_input() -> None:
    with pytest.raises(DTypeError, match=r"edge_index must be an int64 or int32 tensor \[2, E\] or a Graph, got None"):
        Graph.of(SimpleNamespace(num_nodes=3))
    with pytest.raises(ShapeError, match="num_src must be a number of nodes, 0 or more, got None"):
        Graph.of(SimpleNamespace(edge_index=torch.zeros(2, 0, dtype=torch.int64)))
    with pytest.raises(ShapeError, match="graphs must"):
        Graph.joined([])
    with pytest.raises(DTypeError, match=r"graphs\[0\] must"):
        Graph.joined([torch.zeros(2, 0)])
    with pytest.raises(DTypeError, match="graphs must"):
        Graph.joined(3)


def test_ends_that_are_outside_are_found_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends that are inside are looked at once."""
    for edges in ([[0, 3], [1, 0]], [[0, 1], [1, -1]]):
        graph = Graph(torch.tensor(edges), 3)
        for _ in range(2):
            with pytest.raises(IndexRangeError):
                _ = graph.ends
    graph = Graph(torch.tensor([[0, 2], [1, 0]]), 3)
    first = graph.ends
    monkeypatch.setattr("eqlayers.core.graph.check_range", lambda *args: pytest.fail("looked again"))
    torch.testing.assert_close(first, graph.ends)


SIZES = {"n": 5, "i": 2, "j": 3, "k": 4, "a": 3, "b": 2, "c": 5}
LETTERS = st.lists(st.sampled_from(sorted(SIZES)), unique=True, max_size=5).map("".join)


@st.composite
def specs(draw: st.DrawFn) -> str:
    first, second = draw(LETTERS), draw(LETTERS)
    known = sorted(set(first + second))
    out = "".join(draw(st.permutations(known)))[: draw(st.integers(0, len(known)))]
    return f"{first},{second}->{out}"


@given(specs(), st.sampled_from([0, 1, 5, 8]))
@settings(derandomize=True, database=None, deadline=None, max_examples=150)
def test_equals_einsum(spec: str, rows: int) -> None:
    sizes = SIZES | {"n": rows}
    first, second = spec.partition("->")[0].split(",")
    torch.manual_seed(2)
    x, y = (torch.randn([sizes[c] for c in letters], dtype=torch.float64) for letters in (first, second))
    want, got = torch.einsum(spec, x, y), contraction(spec, SIZES)(x, y)
    assert got.shape == want.shape
    assert torch.allclose(got, want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("specs", [["nia", "nj", "ijk"], ["ijk", "nia", "njab"], ["nia", "njb", "ijk", "nab"]])
@pytest.mark.parametrize("result", ["nkb", "k", "nka", "bkn"])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_several_operands_are_contracted_two_at_a_time(specs: list[str], result: str, rows: int) -> None:
    """Letters that no operand has are left out of the result; the rows may be summed."""
    result = "".join(letter for letter in result if any(letter in spec for spec in specs))
    made = Contraction(specs, result, SIZES)
    torch.manual_seed(3)
    sizes = SIZES | {"n": rows}
    tensors = [torch.randn([sizes[letter] for letter in spec], dtype=torch.float64) for spec in specs]
    want = torch.einsum(f"{','.join(specs)}->{result}", tensors)
    torch.testing.assert_close(made(*tensors), want, rtol=0, atol=1e-12)
    assert len(made.equations) == len(specs) - 1
    assert made.operations > 0


def test_leading_axes_broadcast():
    assert broadcast_lead(x=(), y=(2, 1), w=(3,)) == (2, 3)
    assert broadcast_lead(x=(), y=()) == ()
    with pytest.raises(ShapeError, match=r"leading axes of x, y must .*got \[\[2\], \[3\]\]"):
        broadcast_lead(x=(2,), y=(3,))


def test_kinds_must_agree():
    x = torch.zeros(2)
    check_same_dtype(a=x, b=x, c=x)
    check_same_dtype(a=x, b=x[:0].long(), c=x[:0].to("meta"))  # nothing of these is read
    with pytest.raises(DTypeError, match=r"c must have the dtype of a, torch\.float32, got torch\.float64.*Convert"):
        check_same_dtype(a=x, b=x, c=x.double())
    with pytest.raises(DeviceError, match=r"b must be on the device of a, cpu, got meta.*\.to\('cpu'\)"):
        check_same_dtype(a=x, b=x.to("meta"))
    with pytest.raises(DTypeError, match=r"a must be float64, float32, float16 or bfloat16, got torch\.int64"):
        check_same_dtype(a=x.long())
    with pytest.raises(DTypeError, match=r"b must be a tensor .*got \[1\.0\]\. Use torch\.as_tensor"):
        check_same_dtype(a=x, b=[1.0])


def test_species_on_a_gpu_are_sorted_in_a_compiled_graph() -> None:
    """torch.compile cannot trace the question whether a CUDA graph is captured, so a trace does not ask it."""

    def ends(y: torch.Tensor) -> torch.Tensor:
        return species_on_device(y, 3).graph.edge_index

    with FakeTensorMode(allow_non_fake_inputs=True):
        y = torch.empty(6, dtype=torch.int64, device="cuda")
        compiled = torch.compile(ends, fullgraph=True, backend="eager")
        assert compiled(y).shape == (2, 6)
