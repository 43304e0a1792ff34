"""Tables of graphs have the length that their sizes say, and name the ends of every edge."""

import pytest
import torch

from eqlayers.core.backends.tables import check_graph_tables, edge_tables, endpoints_of, length_of
from eqlayers.core.forms.request import Sizes
from eqlayers.errors import IndexRangeError, ShapeError

EDGES, SIZES, CPU = torch.tensor([[2, 0, 1, 1], [3, 0, 0, 4]]), Sizes(4, 3, 5), torch.device("cpu")


def test_the_length_follows_from_the_sizes() -> None:
    graph = edge_tables(EDGES, 3, 5)
    assert graph.shape == (length_of(*SIZES[:3], CPU),)
    check_graph_tables(graph, SIZES, CPU)
    check_graph_tables(torch.cat([graph, graph[:7]]), SIZES, CPU, behind=7)
    with pytest.raises(ShapeError, match=r"here of 4 rows, 3 senders and 6 receivers, got shape \[\d+\]\. Make them"):
        check_graph_tables(graph, SIZES._replace(receivers=6), CPU)


def test_the_ends_of_every_edge_are_read() -> None:
    ends = endpoints_of(edge_tables(EDGES, 3, 5), SIZES)
    assert torch.equal(torch.stack([ends.src, ends.dst]), EDGES)
    assert (ends.num_src, ends.num_dst) == (3, 5)


@pytest.mark.parametrize("place", [0, 3, 8, 12, 20])
def test_a_damaged_table_names_no_ends(place: int) -> None:
    graph = edge_tables(EDGES, 3, 5)
    graph[place] += 1
    with pytest.raises(IndexRangeError, match="got other numbers"):
        endpoints_of(graph, SIZES)
