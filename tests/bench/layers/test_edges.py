"""Rotations, frames, attention and maps of SO(2) that the benchmark has beside ours agree with ours."""

import math

import pytest
import torch
from e3nn import o3

from eqlayers.bench.layers.edges import ANGULAR, EDGES, HEADS, PlainAggregate, PlainSO2
from eqlayers.bench.layers.pair import features, graph_of
from tests.bench.layers.test_pair import CPU, agree


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layer", [*ANGULAR, *EDGES])
def test_both_have_the_numbers_of_the_definition(layer: str) -> None:
    agree(layer)


def test_plain_maps_of_so2_turn_with_the_edge_about_its_axis_alone() -> None:
    irreps = o3.Irreps("2x0e+1x1o+1x1e+1x2e")
    layer, x = PlainSO2(str(irreps)).double(), features(str(irreps), 4)
    for rotation, turns in ((o3.matrix_y(torch.tensor(0.7)), True), (o3.matrix_x(torch.tensor(0.7)), False)):
        matrix = irreps.D_from_matrix(rotation).double()
        apart = (layer(x @ matrix.T) - layer(x) @ matrix.T).detach().abs().max()
        assert (float(apart) < 1e-5) is turns, "e3nn has its matrices in float32"


def test_equal_edges_share_a_node_with_its_sink() -> None:
    """A sink of weight 2 takes its part of n edges of weight 1: a node without edges receives nothing."""
    graph = graph_of(60, CPU)
    layer = PlainAggregate(f"{HEADS}x0e").double()
    torch.nn.init.constant_(layer.sink, math.log(2))
    out = layer(torch.ones(60, HEADS).double(), torch.zeros(60, HEADS).double(), graph).detach()
    count = torch.bincount(graph.edge_index[1], minlength=graph.num_dst).double()
    torch.testing.assert_close(out, (count / (count + 2))[:, None].expand(-1, HEADS))
