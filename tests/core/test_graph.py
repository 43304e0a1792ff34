"""Graphs from batches and from other graphs; where convolutions use them is tested with these."""

from types import SimpleNamespace

import pytest
import torch

from eqlayers import Graph, TensorProductConv
from eqlayers.errors import DTypeError, IndexRangeError, ShapeError
from eqlayers.nn import SO2Convolution


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
