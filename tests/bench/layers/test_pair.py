"""Pairs of a layer and its peer in `eqlayers bench layers`: every layer has one, and their operands fit."""

import math

import pytest
import torch

from eqlayers.bench.config import find_config
from eqlayers.bench.layers import PAIRS, Pair
from eqlayers.bench.layers import run as layers
from eqlayers.bench.layers.cases import LayerCase
from eqlayers.bench.layers.pair import DEGREE, atoms_and_edges, blocks, graph_of, joined, nodes_of
from eqlayers.bench.layers.run import build
from eqlayers.bench.results import OURS
from tests.catalogue.test_layers import CASES as LAYERS

CPU = torch.device("cpu")
IRREPS = {
    "CartesianTensor": "2x0e+2x2e+1x4e",
    **dict.fromkeys(("WignerD", "S2Activation"), "0e+1o+2e"),
    "SO3Activation": "1x0e+3x1e",
    "Activation": "3x0e+2x0o+2x1o",
    **dict.fromkeys(("AttentionAggregate", "EquivariantAttention"), "8x0e+4x1o"),
    **dict.fromkeys(("SO2Linear", "SO2Convolution"), "3x0e+2x1o+2x1e+1x2e"),
    **dict.fromkeys(("EdgeFrame", "RotateFeatures"), "0e+1o+2e"),
    "FormulaLayer": "4x1e",
    "SO3Linear": "3x0e+3x1o+3x2e",
}


#: Layers of the list whose rows are in another suite.
ELSEWHERE = {
    **dict.fromkeys(("TensorProduct", "FullyConnectedTensorProduct", "TensorProductConv"), "cpu"),
    "Interaction": "step",
    "NormalizedActivation": "catalogue",  # by the rows of Activation, which has it inside
}


def case_of(layer: str) -> LayerCase:
    rows = 60 if layer == "DropPath" else 4  # three graphs
    return LayerCase("a", layer, rows, "float64", options={"irreps": IRREPS.get(layer, "3x0e+2x1o+2x2e")})


def test_every_layer_of_the_list_is_timed() -> None:
    classes = {case.name.split(",")[0] for case in LAYERS}
    assert classes == {*PAIRS, *ELSEWHERE}
    assert not set(PAIRS) & set(ELSEWHERE)
    assert all(find_config(suite).is_file() for suite in ELSEWHERE.values())


def agree(layer: str) -> None:
    """A layer and its peer have the numbers of the definition, and as many weights."""
    case = case_of(layer)
    subject = build(case, CPU)
    assert list(subject.makers) == [OURS, PAIRS[layer].peer]
    items = [make() for make in subject.makers.values()]
    assert len(items[0].weights) == len(items[1].weights)
    cotangents, tangent = layers.drawn(items[0], subject, torch.float64)
    for direction in ("fwd", "fwd+bwd"):
        exact = layers.exact_results(subject, direction, cotangents, tangent)
        for item in items:
            verdict = layers.compare(layers.prepare(item, direction, cotangents, tangent), exact, torch.float32)
            assert verdict.status == "ok", (item.name, direction, verdict.reason)
            assert any(float(value.abs().max()) > 1e-3 for value in exact.values())


def test_a_layer_of_other_numbers_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PAIRS["Norm"]
    monkeypatch.setitem(PAIRS, "Norm", Pair(lambda i: lambda x: 1.001 * right.ours(i).double()(x), right.theirs))
    subject = build(case_of("Norm"), CPU)
    item = subject.makers[OURS]()
    cotangents, tangent = layers.drawn(item, subject, torch.float64)
    exact = layers.exact_results(subject, "fwd", cotangents, tangent)
    assert layers.compare(layers.prepare(item, "fwd", cotangents, tangent), exact, torch.float32).status == "wrong"


def test_random_edges_have_no_zero_vector() -> None:
    torch.manual_seed(1)
    pos, (src, dst) = atoms_and_edges(500)
    assert len(pos) == math.ceil(500 / DEGREE)
    assert (src != dst).all()
    assert (dst.diff() >= 0).all()
    assert float((pos[dst] - pos[src]).norm(dim=1).min()) > 1
    assert int(max(src.max(), dst.max())) < len(pos)


def test_groups_taken_apart_and_joined_are_the_features() -> None:
    x = torch.arange(22.0).view(2, 11)
    scalars, vectors, tensor = blocks(x, "3x0e+1o+2e")
    assert (scalars.shape, vectors.shape, tensor.shape) == ((2, 3, 1), (2, 1, 3), (2, 1, 5))
    assert torch.equal(joined([scalars, vectors, tensor]), x)


def test_nodes_are_those_of_the_graph_even_if_edges_are_few() -> None:
    for edges in (1, DEGREE, DEGREE + 1, 40):
        graph = graph_of(edges, CPU)
        assert len(nodes_of("2x0e", edges)) == graph.num_dst == max(2, math.ceil(edges / DEGREE))
        assert graph.edge_index.shape == (2, edges)
