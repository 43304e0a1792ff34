"""NequIP's models become this package's, and back: equal energies, forces and stress, to rounding."""

import pytest
import torch
from nequip.model import NequIPGNNModel
from nequip.utils.global_state import set_global_state
from torch import Tensor

from eqlayers.errors import ConfigError
from eqlayers.integrations import from_nequip, to_nequip
from eqlayers.models import NequIP, Potential, Structures
from eqlayers.nn import ZBL, EdgeGeometry
from eqlayers.testing import ToyNetwork
from tests.native.oracle import compare_values

SPECIES = {"H": 1, "C": 6, "O": 8}
CUTOFF = 4.0
BASE = {
    "seed": 1,
    "model_dtype": "float64",
    "r_max": CUTOFF,
    "type_names": list(SPECIES),
    "num_layers": 3,
    "l_max": 2,
    "parity": True,
    "num_features": 8,
    "radial_mlp_depth": 2,
    "radial_mlp_width": 16,
    "avg_num_neighbors": 7.5,
    "per_type_energy_scales": {"H": 1.1, "C": 1.2, "O": 0.9},
    "per_type_energy_shifts": {"H": -1.0, "C": -2.0, "O": -3.0},
    "type_embed_num_features": 5,
}
CASES = {
    "parity": {},
    "odd scalars": {"num_layers": 4, "l_max": 1},
    "no parity": {"parity": False, "num_features": [8, 4, 2]},
    "one step": {"num_layers": 1},
    "default embedding": {"type_embed_num_features": None, "polynomial_cutoff_p": 8, "num_bessels": 5},
    "one scale": {"per_type_energy_scales": 2.0, "per_type_energy_shifts": 0.5},
}


def built(**options: object) -> torch.nn.Module:
    before = torch.get_default_dtype()
    set_global_state()  # which changes it
    try:
        model: torch.nn.Module = NequIPGNNModel(**BASE | options).eval()
    finally:
        torch.set_default_dtype(before)
    return model


def crystal(dtype: torch.dtype = torch.float64) -> Structures:
    """Atoms in a triclinic cell, with all their images within the cutoff."""
    made = torch.Generator().manual_seed(3)
    cell = 4.5 * torch.eye(3, dtype=torch.float64) + torch.rand(3, 3, dtype=torch.float64, generator=made)
    pos = torch.rand(6, 3, dtype=torch.float64, generator=made) @ cell
    steps = torch.cartesian_prod(*[torch.arange(-2, 3)] * 3).double()
    vectors = pos[None, None] - pos[None, :, None] + (steps @ cell)[:, None, None]  # image, src, dst
    image, src, dst = ((vectors.norm(dim=-1) < CUTOFF) & (vectors.norm(dim=-1) > 0)).nonzero(as_tuple=True)
    z = torch.tensor([1, 6, 8, 8, 1, 6])
    return Structures(z, pos.to(dtype), torch.stack([src, dst]), None, 1, cell[None].to(dtype), steps[image].to(dtype))


def theirs(model: torch.nn.Module, atoms: Structures, species: tuple[int, ...] = (1, 6, 8)) -> dict[str, Tensor]:
    kinds = torch.tensor([species.index(z) for z in atoms.z.tolist()])
    assert atoms.cell is not None
    assert atoms.shifts is not None
    data = {
        "pos": atoms.pos.double(),
        "edge_index": atoms.edge_index.flip(0),  # receivers first
        "edge_cell_shift": -atoms.shifts.double(),  # and so the image moves to the other end
        "cell": atoms.cell.double(),
        "pbc": torch.ones(1, 3, dtype=torch.bool),
        "atom_types": kinds,
        "batch": torch.zeros_like(kinds),
        "num_atoms": torch.tensor([len(kinds)]),
    }
    outputs: dict[str, Tensor] = model(data)
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_energies_forces_and_stress_are_equal(name: str) -> None:
    model, atoms = built(**CASES[name]), crystal()
    mine = from_nequip(model)(atoms, ("energy", "energies", "forces", "stress"))
    want = theirs(model, atoms)
    eps = torch.finfo(torch.float64).eps
    for ours, key in (
        ("energy", "total_energy"),
        ("energies", "atomic_energy"),
        ("forces", "forces"),
        ("stress", "stress"),
    ):
        expected = want[key].reshape(mine[ours].shape)
        size = max(float(expected.detach().abs().max()), 1.0)
        assert float((mine[ours] - expected).detach().abs().max()) <= 200 * eps * size, ours
    assert float(want["forces"].detach().abs().max()) > 1e-3  # not all zero


@pytest.mark.parametrize("name", CASES)
def test_native_programs_have_all_values(name: str) -> None:
    atoms = crystal()
    (src, dst), (cell,), shifts = atoms.edge_index, atoms.cell, atoms.shifts
    vectors = atoms.pos[dst] - atoms.pos[src] + shifts @ cell
    one = atoms.z[:1], vectors[:0], atoms.edge_index[:, :0]
    structures = {"a crystal": (atoms.z, vectors, atoms.edge_index), "one atom": one}
    compare_values(from_nequip(built(**CASES[name])), structures)


def test_a_model_in_float32_stays_one() -> None:
    model = built(model_dtype="float32")
    potential = from_nequip(model)
    assert potential.dtype == torch.float32
    mine, want = potential(crystal(torch.float32)), theirs(model, crystal())
    scale = float(want["forces"].detach().abs().max())
    assert float((mine["forces"].double() - want["forces"].double()).detach().abs().max()) < 1e-4 * max(scale, 1.0)


def test_what_this_package_has_not_is_refused() -> None:
    for options, message in (
        ({"bessel_trainable": True}, "whole numbers of half waves"),
        ({"readout_mlp_hidden_layers_depth": 1}, "a linear read-out"),
        ({"per_edge_type_cutoff": {"H": 2.0}}, "one cutoff"),
        ({"convnet_resnet": True, "num_layers": 4, "parity": False}, "no residual connections"),
    ):
        model = built(**options)
        if "bessel_trainable" in options:
            with torch.no_grad():
                next(p for name, p in model.named_parameters() if "bessel_weights" in name).add_(0.1)
        with pytest.raises(ConfigError, match=message):
            from_nequip(model)
    with pytest.raises(ConfigError, match="the parts of a NequIPGNNModel"):
        from_nequip(torch.nn.Linear(2, 2))


def test_nothing_but_the_weights_of_the_model_counts() -> None:
    """The result is a network of its own: training it leaves the other as it was."""
    model = built()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    potential = from_nequip(model)
    assert isinstance(potential, Potential)
    assert isinstance(potential.geometry, EdgeGeometry)
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str) -> None:
    """Potentials that never were nequip's come back as well: weights, scales and numbers of neighbours of its own."""
    atoms, eps = crystal(), torch.finfo(torch.float64).eps
    for made in (from_nequip(built(**CASES[name])), own(name)):
        want = made(atoms, ("energy", "energies", "forces", "stress"))
        model = to_nequip(made)
        assert torch.get_default_dtype() == torch.float32
        results, again = theirs(model, atoms, made.species), from_nequip(model)(atoms, ("energies", "forces"))
        for ours, key in (("energies", "atomic_energy"), ("forces", "forces"), ("stress", "stress")):
            size = max(float(want[ours].detach().abs().max()), 1.0)
            assert float((results[key].reshape(want[ours].shape) - want[ours]).detach().abs().max()) <= 400 * eps * size
            if ours in again:
                assert float((again[ours] - want[ours]).detach().abs().max()) <= 400 * eps * size


def own(name: str) -> Potential:
    torch.manual_seed(4)
    options = from_nequip(built(**CASES[name])).network.options
    network = NequIP(**options | {"species": [8, 1, 6], "cutoff": CUTOFF, "radial_hidden": [7, 7]})
    network.set_mean_neighbors(4.3)
    made = Potential(network, [8, 1, 6], {1: -3.0, 6: -4.0, 8: -5.0}, {1: 0.5, 6: 1.5, 8: 2.5})
    return made.double().eval()


def test_what_nequip_has_not_is_refused() -> None:
    options = {"species": [1, 6, 8], "hidden": "4x0e + 4x1o", "lmax": 1, "layers": 2}
    for potential, message in (
        (Potential(NequIP(**options, embedding=2), [1, 6, 8]), "independent rows"),
        (Potential(NequIP(**options, radial_hidden=(8, 4)), [1, 6, 8]), "layers of one width"),
        (Potential(NequIP(**options, properties=["dipole"]), [1, 6, 8]), "properties of the potential must be energy"),
        (Potential(NequIP(**options), [1, 6, 8], repulsion=ZBL()), "repulsion of the potential must be None"),
        (Potential(ToyNetwork(1), [1]), r"potential\.network must be eqlayers\.models\.NequIP"),
    ):
        with pytest.raises(ConfigError, match=message):
            to_nequip(potential)
