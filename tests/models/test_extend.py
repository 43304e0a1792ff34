"""More species for a trained potential: equal numbers of known ones, rows of new ones, and what is refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers import Graph
from eqlayers.errors import ConfigError, IndexRangeError
from eqlayers.models import (
    MACE,
    TFN,
    Equiformer,
    NequIP,
    Potential,
    Structures,
    describe_potential,
    extend_potential,
    load_potential,
    save_potential,
)
from eqlayers.nn import ZBL, EdgeVectors
from eqlayers.testing import ToyNetwork
from tests.each import each, refused

EPS = torch.finfo(torch.float64).eps
MACES: dict[str, Any] = {"hidden": "4x0e + 4x1o", "correlation": 2, "lmax": 2, "radial_hidden": [8], "cutoff": 4.0}
DENSITY = ["RealAgnosticDensityInteractionBlock", "RealAgnosticDensityResidualInteractionBlock"]
NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "MACE": lambda: MACE([8, 1], **MACES),
    "MACE of one species": lambda: MACE([8], **MACES),
    "MACE with densities": lambda: MACE([1, 8], **MACES, interactions=DENSITY, distance_transform="agnesi"),
    "NequIP": lambda: NequIP([1, 8], hidden="4x0e + 4x1o", lmax=1, layers=3, radial_hidden=[8], cutoff=4.0),
    "TFN": lambda: TFN([1, 8], hidden="4x0e + 4x1o", lmax=1, layers=2, cutoff=4.0),
    "Equiformer": lambda: Equiformer([1, 8], hidden="4x0e + 4x1o", layers=2, radial_hidden=[8], cutoff=4.0),
    "MACE with dipoles": lambda: MACE([1, 8], **MACES, properties=["energy", "dipole"]),
}


def trained(network: torch.nn.Module, **options: Any) -> Potential:
    """With shifts, scales and numbers of neighbours that a training leaves, in float64."""
    species = list(network.species)  # type: ignore[arg-type]
    potential = Potential(network, species, **options).double().eval()
    potential.set_statistics({z: -10.0 * z for z in species}, {z: 0.5 + z for z in species}, 7.0)
    return potential


def known(potential: Potential, atoms: int = 7) -> Structures:
    made = torch.Generator().manual_seed(3)
    z = torch.tensor(potential.species).repeat(atoms)[:atoms]
    pos = 1.3 * torch.randn(atoms, 3, generator=made, dtype=torch.float64)
    pairs = (torch.cdist(pos, pos) < potential.cutoff).fill_diagonal_(False).nonzero().T.contiguous()
    return Structures(z, pos.to(potential.dtype), pairs)


@each("name", NETWORKS)
@each("repulsion", [False, True])
def test_known_structures_keep_their_energies_and_forces(name: str, repulsion: bool) -> None:
    torch.manual_seed(0)
    old = trained(NETWORKS[name](), repulsion=ZBL() if repulsion else None)
    new = extend_potential(old, [16, *old.species, 7], {7: -1500.0})
    assert new.species == (*old.species, 16, 7)
    assert (new.dtype, new.training, new.network.options["species"]) == (old.dtype, False, list(new.species))
    structures = known(old)
    want, found = old(structures), new(structures)
    assert want.keys() >= {"energy", "forces"}
    for label in want:
        bound = 2**12 * EPS * float(want[label].abs().max())
        torch.testing.assert_close(found[label], want[label], rtol=0, atol=bound)
    assert float(want["forces"].abs().max()) > 1e-3
    assert new.shifts.tolist() == [*old.shifts.tolist(), 0.0, -1500.0]
    assert new.scales.tolist() == [*old.scales.tolist(), *[float(old.scales.mean())] * 2]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_new_species_begins_as_the_mean_of_the_known_ones(name: str) -> None:
    torch.manual_seed(0)
    old = trained(NETWORKS[name]())
    new, weights = extend_potential(old, [16]), dict(old.network.named_parameters())
    count, wider = len(old.species), 0
    for key, value in new.network.named_parameters():
        if value.shape == weights[key].shape:
            assert torch.equal(value, weights[key])
            continue
        factor = math.sqrt((count + 1) / count) if key == "embedding" and "MACE" in name else 1.0
        known_rows = factor * weights[key]
        torch.testing.assert_close(value[:count], known_rows, rtol=4 * EPS, atol=0)
        torch.testing.assert_close(value[count], known_rows.mean(0), rtol=8 * EPS, atol=8 * EPS)
        wider += 1
    assert wider > 0
    for key, buffer in old.network.named_buffers():
        if not key.endswith("radii"):
            assert torch.equal(new.network.get_buffer(key), buffer)
    if old.network.__dict__.get("_modules", {}).get("transform") is not None:
        assert new.network.transform.radii.tolist() == [*old.network.transform.radii.tolist(), 1.05]  # of sulfur


def test_a_potential_in_float32_keeps_its_kinds(tmp_path: Any) -> None:
    old = trained(MACE([1, 8], **MACES)).float().train()
    next(old.network.parameters()).requires_grad_(False)
    state = torch.get_rng_state()
    new = extend_potential(old, [9])
    assert torch.equal(torch.get_rng_state(), state)
    assert (new.dtype, new.shifts.dtype, new.training) == (torch.float32, torch.float64, True)
    frozen = [name for name, parameter in new.named_parameters() if not parameter.requires_grad]
    assert frozen == [name for name, parameter in old.named_parameters() if not parameter.requires_grad]
    save_potential(new, tmp_path / "wider.pt")
    assert load_potential(tmp_path / "wider.pt").species == (1, 8, 9)


def test_without_a_new_species_it_is_a_copy() -> None:
    old = trained(NETWORKS["NequIP"]())
    new = extend_potential(old, [8])
    assert describe_potential(new) == describe_potential(old)
    assert all(torch.equal(a, b) for a, b in zip(new.parameters(), old.parameters(), strict=True))
    assert next(new.parameters()) is not next(old.parameters())
    fixed = Potential(ToyNetwork(2), [1, 8])  # takes no species, and needs none
    assert extend_potential(fixed, [1]).species == (1, 8)


class Pairs(torch.nn.Module):
    """A network of users: weights by species, and perhaps something that does not grow as it should."""

    cutoff, irreps_sh = 3.0, "0e"

    def __init__(self, species: list[int], kind: str = "rows") -> None:
        super().__init__()
        self.options, self.species, count = {"species": list(species), "kind": kind}, species, len(species)
        self.norm = count**-0.5 if kind == "norm" else 1.0
        shape = {"square": (count, count), "flat": (3 * count,), "columns": (2, count)}.get(kind, (count, 2))
        self.weight = torch.nn.Parameter(torch.randn(shape))
        if kind == "named" and count > 2:
            self.extra = torch.nn.Parameter(torch.zeros(1))

    def forward(self, kind: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        rows = self.weight.T if self.options["kind"] == "columns" else self.weight.reshape(len(self.species), -1)
        found = self.norm * rows[kind].sum(1)
        return found.index_add(0, graph.edge_index[1], edges.lengths)


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_network_of_users(kind: str) -> None:
    old = Potential(Pairs([1, 8], kind), [1, 8]).eval()
    new = extend_potential(old, [6])
    assert torch.equal(new(known(old))["energy"], old(known(old))["energy"])


test_a_network_that_cannot_be_extended_is_told = refused(
    "kind, message",
    [
        ("square", r"network\.weight, \[2, 2\] with 2 species and \[3, 3\] with 3\. Use the architecture"),
        ("flat", r"network\.weight, \[6\] with 2 species and \[9\] with 3"),
        ("named", r"network\.extra, one in the network to be trained alone"),
        ("norm", r"energies of known species must not change .* in Pairs\. Give the network a method after_extension"),
    ],
    lambda kind: extend_potential(Potential(Pairs([1, 8], kind), [1, 8]), [6]),
)


def test_wrong_arguments() -> None:
    old = trained(NETWORKS["NequIP"]())
    for call, message in (
        (lambda: extend_potential(old.network, [6]), "potential must be a Potential"),  # type: ignore[arg-type]
        (lambda: extend_potential(old, 6), "species must be a list of chemical symbols"),  # type: ignore[arg-type]
        (lambda: extend_potential(old, [119]), "species must be chemical symbols or atomic numbers"),
        (lambda: extend_potential(old, [6], [1.0]), "shifts must be a mapping"),  # type: ignore[arg-type]
        (lambda: extend_potential(old, [6], {8: 1.0}), "shifts must be of the new species C, got O"),
        (lambda: extend_potential(old, [6], {6: math.nan}), "the shift of C must be"),
        (lambda: extend_potential(Potential(ToyNetwork(2), [1, 8]), [6]), "must keep the argument `species`"),
        (lambda: extend_potential(Potential(torch.nn.Linear(1, 1), [1]), [6]), r"network\.cutoff must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(IndexRangeError, match="z must hold species among"):
        old(known(extend_potential(old, [6])))
