"""Pairs of a layer and its peer in `eqlayers bench layers`: every layer has one, and both agree with the definition."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from e3nn import o3

from eqlayers import Graph, nn
from eqlayers.bench.config import find_config
from eqlayers.bench.layers import PAIRS, Pair
from eqlayers.bench.layers import run as layers
from eqlayers.bench.layers.edges import HEADS, PlainAggregate, PlainSO2
from eqlayers.bench.layers.features import Drawn, PlainBatchNorm, PlainNorm, plain_drop_path
from eqlayers.bench.layers.pair import DEGREE, atoms_and_edges, blocks, features, graph_of, joined, nodes_of
from eqlayers.bench.layers.polynomials import POLYNOMIALS, couplings
from eqlayers.bench.layers.products import SPECIES, TheirSpecies, plain_cross, scalars
from eqlayers.bench.layers.radial import CUTOFF, NUMBER, PlainTransform, PlainZBL, chebyshev, polynomial
from eqlayers.bench.layers.run import LayerCase, build, read_layer_suite
from eqlayers.bench.results import OURS
from eqlayers.bench.run import run_suite
from eqlayers.errors import ConfigError, EqlayersError
from tests.catalogue.test_layers import CASES as LAYERS
from tests.each import each

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


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layer", [name for name in PAIRS if name not in POLYNOMIALS])
def test_both_have_the_numbers_of_the_definition_and_as_many_weights(layer: str) -> None:
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


@each("centred", [False, True])
def test_plain_norms_give_each_group_a_mean_square_of_one(centred: bool) -> None:
    irreps = "6x0e+2x0o+3x1o"
    x = features(irreps, 5) + 2
    even, odd, vectors = blocks(PlainNorm(irreps, centred).double()(x), irreps)
    for group in (even, odd, vectors):
        torch.testing.assert_close(group.square().mean((1, 2)), torch.ones(5).double(), rtol=1e-4, atol=1e-4)
    assert bool((even.mean(1).abs() < 1e-12).all()) is centred, "of even scalars alone"
    assert bool((odd.mean(1).abs() > 1e-3).any())


def test_running_mean_squares_move_by_a_tenth() -> None:
    layer, x = PlainBatchNorm("2x0e+1x1o").double(), torch.tensor([[1.0, 2, 0, 0, 3], [3.0, 2, 3, 0, 0]]).double()
    layer(x)
    # mean squares 5 and 4 of the scalars, 3 of the components of the vectors
    torch.testing.assert_close(layer.running_squared_norm, torch.tensor([1.4, 1.3, 1.2]).double())


def test_whole_graphs_are_left_out_alike_at_every_call() -> None:
    batch = torch.arange(60) // 3
    layer = Drawn(plain_drop_path)
    out = layer(torch.ones(60, 2), batch)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert all(len(part.unique()) == 1 for part in out.split(3))
    assert torch.equal(layer(torch.ones(60, 2), batch), out)


def test_operations_of_a_contraction_are_of_atoms_and_of_species(layer_config: Path) -> None:
    """Rows have the polynomials, species the sums of weights; both have channels."""
    (case,) = read_layer_suite(str(layer_config)).only("power/*").cases

    def count(**changes: int) -> int:
        rows = changes.pop("rows", case.rows)
        return build(replace(case, rows=rows, options={**case.options, **changes}), CPU).operations["fwd"]

    assert count(channels=4) == 2 * count()
    assert count(rows=5, elements=4) - count(rows=5) == count(elements=4) - count() > 0
    assert count(rows=5) - count(rows=4) == count(rows=4) - count() > 0


@each("degree", [1, 2, 3])
def test_couplings_turn_as_their_irrep_says(degree: int) -> None:
    irreps = o3.Irreps("0e+1o")
    rotation = -o3.rand_matrix()  # an inversion as well
    matrix = irreps.D_from_matrix(rotation).double().numpy()
    tensors = couplings(str(irreps), degree)
    assert len(tensors) == {1: 2, 2: 6, 3: 20}[degree]  # every irrep in the product of those before with 0e+1o
    assert [ir.l for ir, _ in tensors] == sorted(ir.l for ir, _ in tensors)
    for ir, tensor in tensors:
        turned = tensor
        for axis in range(1, degree + 1):
            turned = np.moveaxis(np.tensordot(turned, matrix, (axis, 0)), -1, axis)
        whole = np.tensordot(ir.D_from_matrix(rotation).double().numpy(), tensor, (1, 0))
        np.testing.assert_allclose(turned, whole, atol=1e-5)
        assert np.square(tensor).sum() == pytest.approx(ir.dim), "normalised"


def test_one_copy_of_a_vector_contracts_to_its_square() -> None:
    """The scalar of degree 2 is the sum of squares over the root of 3, times its weight."""
    options = {"in": "1o", "out": "0e", "channels": 1, "elements": 2, "correlation": 2}
    layer = POLYNOMIALS["SymmetricContraction"].theirs(options).double()
    x, y = torch.tensor([[[1.0, 2.0, 2.0]]]).double(), torch.tensor([[0.0, 1.0]]).double()
    weight = dict(layer.named_parameters())["contractions.0.weights_max"][1, 0, 0].double()
    torch.testing.assert_close(layer(x, y), (9 / 3**0.5 * weight).view(1, 1), rtol=1e-6, atol=1e-6)


def test_weights_of_a_species_are_a_matrix_over_the_root_of_its_width() -> None:
    layer, kind = TheirSpecies("3x0e+2x1o").double(), torch.tensor([4, 0, 4])
    x = features("3x0e+2x1o", 3)
    rows = []
    for row, species in zip(x, kind, strict=True):
        scalar, vector = layer.weight[species].split([9, 4])
        first = row[:3] @ scalar.view(3, 3) / 3**0.5
        second = vector.view(2, 2).T @ row[3:].view(2, 3) / 2**0.5
        rows.append(torch.cat([first, second.flatten()]))
    torch.testing.assert_close(layer(x, kind), torch.stack(rows))
    assert layer.weight.shape == (SPECIES, 13)


def test_the_plain_formula_is_a_gated_cross_product() -> None:
    s, a, b = scalars("2x1e", 4), features("2x1e", 4), features("2x1e", 4)
    cross = np.cross(a.view(4, 2, 3).numpy(), b.view(4, 2, 3).numpy())
    gates = (s / (1 + torch.exp(-s))).numpy()
    np.testing.assert_allclose(plain_cross(s, a, b).view(4, 2, 3).numpy(), gates[..., None] * cross, rtol=1e-12)


PAIR = Graph(torch.tensor([[0, 1], [1, 0]]), 2, 2)


def test_chebyshev_polynomials_are_cosines_of_multiples() -> None:
    r = torch.linspace(0.1, CUTOFF - 0.1, 40, dtype=torch.float64)
    angles = np.arange(NUMBER) * np.arccos(1 - 2 * r.numpy()[:, None] / CUTOFF)
    np.testing.assert_allclose(chebyshev(r).numpy(), np.cos(angles) * polynomial(r).numpy()[:, None], atol=1e-12)


def test_the_plain_transform_at_the_mean_radius() -> None:
    """Where the length is the mean of both radii, both powers are one."""
    layer = PlainTransform()
    r = (0.5 * layer.radii[:2].sum()).repeat(2)
    torch.testing.assert_close(layer(r, torch.tensor([0, 1]), PAIR), torch.full_like(r, 1 / (1 + 1.0805 / 2)))


def test_close_atoms_repel_as_screened_charges() -> None:
    """The energy of carbon and oxygen by the universal potential, half for each, times the envelope."""
    r, z = 0.4, torch.tensor([6, 8])
    reach = float(nn.ZBL().radii[z].sum())
    length = 0.4543 * 0.529 / (6**0.3 + 8**0.3)
    terms = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4028), (0.02817, 0.2016))
    screened = sum(a * np.exp(-b * r / length) for a, b in terms)
    u, p = r / reach, 6
    envelope = 1 - (p + 1) * (p + 2) / 2 * u**p + p * (p + 2) * u ** (p + 1) - p * (p + 1) / 2 * u ** (p + 2)
    energies = PlainZBL()(torch.full((2,), r, dtype=torch.float64), z, PAIR)
    assert energies.tolist() == pytest.approx([0.5 * 14.3996 * 48 / r * screened * envelope] * 2, rel=1e-6)


def test_the_shipped_settings() -> None:
    suite = read_layer_suite()
    assert len({case.name for case in suite.cases}) == len(suite.cases)
    goals = {case.name: case.goals for case in suite.cases if case.goals}
    assert goals == {
        "harmonics/l3/E2000": {"ratio": {"fwd": 5.0, "fwd+bwd": 5.0}},
        "contraction/0e+1o-c3/N64": {"ratio": {"fwd": 100.0, "fwd+bwd": 50.0}},
    }
    degrees = {(c.options["lmax"], c.dtype) for c in suite.cases if c.layer == "SphericalHarmonics" and c.rows == 2000}
    assert degrees == {(l, dtype) for l in (1, 2, 3, 6) for dtype in ("float32", "float64")}
    catalogue = read_layer_suite("catalogue")
    assert {case.layer for case in (*suite.cases, *catalogue.cases)} == set(PAIRS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device: cpu", "device: gpu", "expected a device among cpu, cuda; got 'gpu'"),
        ("layer: EdgeGeometry", "layer: EdgeGeometri", "among .*; got 'EdgeGeometri'. Did you mean 'EdgeGeometry'"),
        ("    layer: SphericalHarmonics\n", "", "expected the key 'layer'|expected a key among"),
        ("rows: [4, 7]", "rows: [0]", r"rows must be a list of positive integers, got \[0\]"),
        ("lmax: [2]", "l_max: [2]", "got 'l_max'. Did you mean 'lmax'"),
        ("peers: [e3nn]\n", "peers: [einsum]\n", "expected a peer of SphericalHarmonics among e3nn, e3nn-compiled"),
        ("dtypes: [float32,", "dtypes: [float16,", "expected a dtype among float32, float64; got 'float16'"),
        ("goals: {ratio: {fwd: 100}}", "goals: {share: {fwd: 1}}", "expected a goal among ratio, memory; got 'share'"),
        ("goals: {ratio: {fwd: 100}}", "goals: {ratio: {bwd: 1}}", "must have keys among fwd, fwd"),
        ("in: 0e+1o", "in: 0e+1x", "in must be"),
    ],
)
def test_wrong_settings(old: str, new: str, message: str, layer_config: Path) -> None:
    text = layer_config.read_text()
    assert old in text
    layer_config.write_text(text.replace(old, new, 1))
    with pytest.raises(EqlayersError, match=message):
        read_layer_suite(str(layer_config))


def test_wrong_arguments(layer_config: Path) -> None:
    with pytest.raises(ConfigError, match=r"--only must .*got 'x'"):
        read_layer_suite(str(layer_config)).only("x")
    suite = read_layer_suite(str(layer_config))
    with pytest.raises(ConfigError, match="Did you mean 'einsum'"):
        run_suite(suite, peers=["einsun"])
    with pytest.raises(ConfigError, match=r"backend must be one of .* got 'fast'"):
        run_suite(suite, backend="fast")
