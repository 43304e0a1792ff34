"""MACE: gradients of weights, edge cases, options, messages, blocks. The laws of potentials: test_every_model.py."""

import json
from typing import Any

import pytest
import torch
from e3nn import o3

from eqlayers import Graph
from eqlayers.errors import ConfigError, EqlayersError, IrrepsError
from eqlayers.models import MACE, Potential, Structures
from eqlayers.models.mace import INTERACTIONS, MACEInteraction, MACEProduct, Readout, Style
from eqlayers.nn import ZBL, EdgeGeometry, EdgeVectors, NormalizedActivation
from tests.each import refused

SPECIES = (1, 6, 8)
CUTOFF = 4.0
EPS = torch.finfo(torch.float64).eps
PLAIN, RESIDUAL, DENSITY, BOTH = INTERACTIONS


def network(**options: Any) -> MACE:
    torch.manual_seed(3)
    small: dict[str, Any] = {"hidden": "3x0e + 3x1o", "correlation": 2, "lmax": 2, "num_basis": 4, "cutoff": CUTOFF}
    small |= {"radial_hidden": [6], "readout_hidden": "5x0e", "mean_neighbors": 4.0}
    return MACE(SPECIES, **{**small, **options}).double()


def potential(**options: Any) -> Potential:
    repulsion = ZBL() if options.pop("repulsion", False) else None
    return Potential(network(**options), SPECIES, {1: -1.0, 6: -3.0, 8: -5.0}, 0.8, repulsion).double().eval()


def molecule(seed: int = 0, atoms: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    grid = torch.cartesian_prod(*[torch.arange(2.0, dtype=torch.float64)] * 3)[:atoms]
    pos = 1.5 * grid + 0.5 * torch.rand(atoms, 3, generator=generator, dtype=torch.float64)
    return torch.tensor(SPECIES)[(torch.arange(atoms) + seed) % 3], pos


def within(z: torch.Tensor, pos: torch.Tensor, cutoff: float = CUTOFF) -> Structures:
    near = torch.cdist(pos, pos) < cutoff
    return Structures(z, pos, (near & ~torch.eye(len(z), dtype=torch.bool)).nonzero().T)


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"interactions": PLAIN},
    "density": {"interactions": [DENSITY, BOTH]},
    "three layers, two kinds of products": {"layers": 3, "correlation": [3, 1, 2]},
    "l = 2, agnesi": {"hidden": "2x0e + 2x1o + 2x2e", "distance_transform": "agnesi"},
    "both parities, reduced": {"hidden": "2x0e + 2x0o + 2x1o", "lmax": 1, "use_reduced_cg": True},
    "repulsion": {"repulsion": True},
}
each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.mark.thinned(3)
@each_architecture
def test_a_loss_of_forces_reaches_all_parameters(name: str) -> None:
    """But the linear part of what no position moves: weights that are frozen, and biases there are none."""
    model = potential(**ARCHITECTURES[name]).train()
    z, pos = molecule(atoms=8)
    assert set(z.tolist()) == set(SPECIES)
    found = model(within(z, pos))
    assert found["forces"].requires_grad
    loss = found["energy"].square().sum() + found["forces"].square().sum()
    named = {n: p for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    grads = torch.autograd.grad(loss, list(named.values()))
    for key, grad in zip(named, grads, strict=True):
        assert torch.isfinite(grad).all(), key
        assert float(grad.abs().max()) > 0, key


def test_parameters_have_the_gradient_of_differences() -> None:
    model = potential(interactions=BOTH).train()
    structures = within(*molecule(atoms=5))

    def loss() -> torch.Tensor:
        found = model(structures)
        return found["energy"].sum() + found["forces"].square().sum()

    named = {n: p for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    grads = dict(zip(named, torch.autograd.grad(loss(), list(named.values())), strict=True))
    for key in ("network.embedding", "network.messages.1.skip.weight", "network.messages.0.density.weights.0"):
        weight, step = named[key], 1e-5
        place = tuple(int(i) for i in (grads[key].abs() == grads[key].abs().max()).nonzero()[0])
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * step
            values.append(float(loss().detach()))
            with torch.no_grad():
                weight[place] -= sign * step
        slope = float(grads[key][place])
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-5), key


@each_architecture
def test_a_state_dict_carries_everything(name: str) -> None:
    first, options = potential(**ARCHITECTURES[name]), ARCHITECTURES[name]
    first.network.set_mean_neighbors(7.5)
    torch.manual_seed(99)
    second = potential(**options)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.normal_()
    second.load_state_dict(first.state_dict())
    structures = within(*molecule())
    for a, b in zip(first(structures).values(), second(structures).values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("interactions", INTERACTIONS)
def test_a_single_atom_and_none(interactions: str) -> None:
    model = potential(interactions=interactions, repulsion=True)
    one = within(torch.tensor([6]), torch.zeros(1, 3, dtype=torch.float64))
    found = model(one)
    if not INTERACTIONS[interactions].residual:  # whose energy of a lone atom is its shift
        assert float(found["energy"]) == -3.0
    assert found["forces"].tolist() == [[0.0, 0.0, 0.0]]
    none = model(within(torch.empty(0, dtype=torch.int64), torch.empty(0, 3, dtype=torch.float64)))
    assert found["energy"].shape == none["energy"].shape
    assert float(none["energy"]) == 0.0
    assert none["forces"].shape == (0, 3)


def test_float32_is_float64_but_for_rounding() -> None:
    model = potential(repulsion=True, interactions=[DENSITY, BOTH], distance_transform="agnesi")
    structures = within(*molecule())
    exact = model(structures)
    model.float()
    assert model.network.messages[0].mean_neighbors.dtype == torch.float64
    found = model(structures._replace(pos=structures.pos.float()))
    assert (found["energy"].dtype, found["forces"].dtype) == (torch.float64, torch.float32)
    eps = torch.finfo(torch.float32).eps
    for key in ("energy", "forces"):
        size = max(1.0, float(exact[key].abs().max()))
        torch.testing.assert_close(found[key].double(), exact[key], rtol=0, atol=1e3 * eps * size)


def test_the_default_dtype_changes_no_number() -> None:
    def build(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        torch.set_default_dtype(dtype)
        try:
            model = potential(repulsion=True, distance_transform="agnesi")
            source = torch.Generator().manual_seed(5)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=source, dtype=torch.float64))
        finally:
            torch.set_default_dtype(torch.float32)
        return model(within(*molecule()))

    for a, b in zip(build(torch.float32).values(), build(torch.float64).values(), strict=True):
        assert torch.equal(a, b)


def test_neighbours_divide_the_messages() -> None:
    model, double = network(layers=1, correlation=1), network(layers=1, correlation=1)
    double.set_mean_neighbors(8.0)
    structures = within(*molecule())
    kinds = torch.zeros_like(structures.z)
    graph = Graph(structures.edge_index, len(kinds))
    edges = EdgeGeometry(o3.Irreps(model.irreps_sh))(structures.pos, graph)
    alone = model(kinds, edges._replace(lengths=edges.lengths + CUTOFF), graph)
    first, second = (one(kinds, edges, graph) - alone for one in (model, double))
    torch.testing.assert_close(first, 2 * second, rtol=1e-11, atol=1e-13)
    potential_of = Potential(model, SPECIES)
    potential_of.set_statistics({}, 1.0, mean_neighbors=8.0)
    torch.testing.assert_close(model(kinds, edges, graph), double(kinds, edges, graph), rtol=0, atol=0)


def test_options_build_the_network_anew() -> None:
    """From plain values, with the same keys and shapes of weights."""
    first = network(**ARCHITECTURES["l = 2, agnesi"], correlation=[1, 2], interactions=[DENSITY, BOTH], cutoff_p=7)
    assert json.loads(json.dumps(first.options)) == first.options
    second = MACE(**first.options).double()
    second.load_state_dict(first.state_dict())
    models = [Potential(one, SPECIES, repulsion=ZBL(**ZBL(p=4, factor=0.3).options)) for one in (first, second)]
    energies = [model(within(*molecule()))["energy"] for model in models]
    assert torch.equal(*energies)
    assert all(torch.isfinite(value).all() for value in models[0].state_dict().values())


@pytest.mark.long
def test_compiled_it_has_the_same_energies() -> None:
    model = network(interactions=[DENSITY, BOTH])
    structures = within(*molecule())
    kind = torch.tensor([SPECIES.index(z) for z in structures.z.tolist()])
    graph = Graph(structures.edge_index, len(kind))
    edges = EdgeGeometry(o3.Irreps(model.irreps_sh))(structures.pos, graph)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(kind, edges, graph), model(kind, edges, graph), rtol=0, atol=1e3 * EPS)


test_what_cannot_be_is_an_error = refused(
    "options, error, message",
    [
        ({"hidden": "4x0e + 2x1o"}, IrrepsError, r"one multiplicity with even scalars first, got 4x0e\+2x1o"),
        ({"hidden": "4x0e + 4x0e"}, IrrepsError, "must be different irreps"),
        ({"hidden": "?"}, IrrepsError, "hidden must be irreps such as"),
        ({"lmax": 12}, ConfigError, "lmax must be an integer, at most 11, got 12"),
        ({"correlation": 5}, ConfigError, "correlation must be"),
        ({"correlation": [2]}, ConfigError, "correlation must be one value or 2, one a layer, got 1"),
        ({"interactions": "Residual"}, ConfigError, "interactions must be one of RealAgnosticInteractionBlock, "),
        ({"readout_hidden": "16x1o"}, IrrepsError, "readout_hidden must be even scalars, got 16x1o"),
        ({"activation": "relu"}, ConfigError, "activation must be one of silu"),
        ({"distance_transform": "soft"}, ConfigError, "distance_transform must be one of agnesi, got 'soft'"),
        ({"cutoff_p": 1}, ConfigError, "p must be"),
        ({"radial_hidden": 64}, ConfigError, "radial_hidden must be a list of widths"),
        ({"mean_neighbors": 0}, ConfigError, "mean_neighbors must be a positive number"),
        ({"use_reduced_cg": "no"}, ConfigError, "use_reduced_cg must be True or False"),
        ({"backend": "fast"}, EqlayersError, "fast"),
    ],
    lambda options: network(**options),
)


HIDDEN, HARMONICS, MESSAGE = (o3.Irreps(text) for text in ("2x0e", "0e+1o", "2x0e+2x1o"))


def messages(style: Style, neighbors: int, **options: float) -> torch.Tensor:
    """The message to an atom from some neighbours that lie alike."""
    torch.manual_seed(0)
    mean = {"mean_neighbors": 4.0} | options
    block = MACEInteraction(style, HIDDEN, HARMONICS, MESSAGE, MESSAGE, 2, 3, (4,), **mean).double()
    basis = torch.tensor([[0.5, -0.3, 0.8]]).double().expand(neighbors, -1)
    harmonics = torch.tensor([[1.0, 0.6, 0.0, 0.8]]).double().expand(neighbors, -1)
    length, vectors = torch.ones(neighbors).double(), harmonics[:, 1:]
    edges = EdgeVectors(vectors, length, vectors, harmonics)
    graph = Graph(torch.stack([torch.arange(neighbors) + 1, torch.zeros(neighbors).long()]), neighbors + 1)
    x = torch.tensor([[0.0, 0.0], *[[1.0, -2.0]] * neighbors]).double()
    species = torch.zeros(neighbors + 1).long()
    message, skip = block(x, species, edges, basis, graph)
    assert (skip is None) is not style.residual
    return message[0].detach()


def test_messages_are_divided_by_the_mean_number_of_neighbours() -> None:
    style = INTERACTIONS["RealAgnosticResidualInteractionBlock"]
    one = messages(style, 1)
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(messages(style, 3), 3 * one)
    torch.testing.assert_close(messages(style, 1, mean_neighbors=2.0), 2 * one)
    with pytest.raises(ConfigError, match=r"mean_neighbors must .*got 0"):
        messages(style, 1, mean_neighbors=0)


def test_messages_are_divided_by_a_density_that_counts_near_neighbours() -> None:
    """By 1 and n times the weight of one neighbour, which two numbers of neighbours tell."""
    style = INTERACTIONS["RealAgnosticDensityInteractionBlock"]
    one, two, five = (messages(style, n) for n in (1, 2, 5))
    ratio = float(two[0] / one[0])  # 2 (1 + t) / (1 + 2 t)
    weight = (2 - ratio) / (2 * ratio - 2)
    assert 0 < weight < 1
    torch.testing.assert_close(two, ratio * one)
    torch.testing.assert_close(five, 5 * (1 + weight) / (1 + 5 * weight) * one)


def test_products_are_mixed_and_added_to_what_went_past() -> None:
    block = MACEProduct(MESSAGE, HIDDEN, 2, 2, True).double()
    species = torch.tensor([0, 1, 1])
    message, skip = torch.randn(3, 2, 4).double(), torch.randn(3, 2).double()
    message = message.flatten(1)
    alone = block(message, None, species)
    torch.testing.assert_close(block(message, skip, species), alone + skip)
    torch.testing.assert_close(block(message, skip, species)[1:], block(message[1:], skip[1:], species[1:]))


def test_scalars_are_read_through_a_hidden_layer_and_tensors_are_not() -> None:
    torch.manual_seed(1)
    block = Readout(o3.Irreps("2x0e+1x1o"), o3.Irreps("0e+1o"), o3.Irreps("3x0e")).double()
    x = torch.randn(4, 5).double()
    first, second = (one.weight.detach() for one in block.maps)
    hidden = NormalizedActivation("silu")(x[:, :2] @ first.view(2, 3) / 2**0.5)
    scalars = hidden @ second.view(3, 1) / 3**0.5
    vectors = x[:, 2:] * block.tensors.weight.detach()  # type: ignore[union-attr]
    torch.testing.assert_close(block(x).detach(), torch.cat([scalars, vectors], 1))
    assert Readout(o3.Irreps("2x0e+1x1o"), o3.Irreps("1o")).double()(x).shape == (4, 3), "no scalars at all"
