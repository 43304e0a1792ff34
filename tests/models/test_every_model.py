"""`eqlayers check` of every network that comes with the package, repulsion and all, and of those of the examples."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ase")  # the check makes its examples with it
pytest.importorskip("vesin")
pytest.importorskip("lightning")  # which examples train with

from ase import Atoms
from torch.fx.experimental.proxy_tensor import make_fx

from eqlayers.models import MACE, TFN, Equiformer, NequIP, Potential, Structures
from eqlayers.models.mace import INTERACTIONS
from eqlayers.nn import ZBL
from eqlayers.testing import ToyNetwork, check_potential
from eqlayers.testing.examples import example_structures
from tests.catalogue.cases import on_backend

ROOT = Path(__file__).resolve().parents[2]
SPECIES = [1, 6, 8]
SMALL = {"hidden": "4x0e + 4x1o", "lmax": 2, "cutoff": 4.0, "radial_hidden": (8,)}


def example(name: str) -> Any:
    """The network of a script of `examples/`, whose main is not run."""
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["Network"]


NETWORKS = {
    **{name: lambda name=name: MACE(SPECIES, correlation=2, interactions=name, **SMALL) for name in INTERACTIONS},
    "MACE, three neighbours, agnesi": lambda: MACE(SPECIES, correlation=3, distance_transform="agnesi", **SMALL),
    "NequIP": lambda: NequIP(SPECIES, layers=3, **SMALL),
    "TFN": lambda: TFN(SPECIES, layers=2, **SMALL),
    "Equiformer": lambda: Equiformer(SPECIES, "4x0e + 4x1o", heads=2, layers=2, cutoff=4.0, radial_hidden=(8,)),
    "toy": lambda: ToyNetwork(3),
    "example 10": lambda: example("10_own_network")(SPECIES, width=4),
    "example 11": lambda: example("11_mace_from_layers")(SPECIES, channels=4, lmax=2),
}


def near() -> list[Atoms]:
    """Molecule and crystal whose atoms are so near that all pairs repel each other."""
    structures = example_structures(SPECIES, 4.0)
    for atoms in structures:
        atoms.set_cell(0.7 * atoms.cell.array)
        atoms.positions *= 0.7
        atoms.rattle(0.05, seed=1)  # in a perfect crystal all forces cancel
    return structures


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "repulsion"), [*((name, False) for name in NETWORKS), ("toy", True), ("NequIP", True)]
)
def test_every_property_of_a_potential_holds(name: str, repulsion: bool) -> None:
    torch.manual_seed(3)
    shifts = {1: -13.6, 6: -1030.0, 8: -2042.0}
    potential = Potential(NETWORKS[name](), SPECIES, shifts, 0.7, repulsion=ZBL() if repulsion else None)
    report = check_potential(potential, near() if repulsion else None)
    assert report.ok, str(report)


def test_the_repulsion_is_felt_in_what_is_checked() -> None:
    """Else the rows above said nothing of it."""
    from eqlayers.integrations.ase import Calculator

    for atoms in near():
        calculators = [Calculator(Potential(ToyNetwork(3), SPECIES, repulsion=part)) for part in (None, ZBL())]
        forces = [calculator.get_forces(atoms) for calculator in calculators]
        assert np.linalg.norm(forces[1] - forces[0], axis=1).min() > 1.0


def chain(atoms: int, edges: bool = True) -> tuple[torch.Tensor, ...]:
    """Numbers, places and neighbours of a bent chain; one structure."""
    numbers = torch.arange(atoms)
    pos = torch.stack([1.1 * numbers, 0.3 * numbers.sin(), 0.2 * (2 * numbers).cos()], 1).double()
    near = ((pos[:, None] - pos).norm(dim=2) < 3.0).fill_diagonal_(False) if edges else torch.zeros(atoms, atoms)
    return torch.tensor(SPECIES)[numbers % 3], pos, near.nonzero().T.contiguous()


#: Of two layers, for kernels; an Equiformer of two has as many kernels as the others together.
TINY = {"hidden": "2x0e + 2x1o", "layers": 2, "cutoff": 4.0, "radial_hidden": (4,)}
COMPILED = {
    "MACE": lambda: MACE(SPECIES, lmax=2, correlation=2, **TINY),
    "NequIP": lambda: NequIP(SPECIES, lmax=2, **TINY),
    "TFN": lambda: TFN(SPECIES, lmax=2, **TINY),
    "Equiformer": lambda: Equiformer(SPECIES, heads=2, **(TINY | {"layers": 1})),
}


@pytest.mark.kernels
@pytest.mark.parametrize(
    "name", ["MACE", "Equiformer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("NequIP", "TFN"))]
)
def test_kernels_give_the_numbers_of_torch(name: str) -> None:
    """Energy, forces and the gradient of a loss of both, on compiled kernels and on backend 'torch'."""
    found = []
    for backend in (None, "torch"):
        torch.manual_seed(3)
        potential = on_backend(Potential(COMPILED[name](), SPECIES, repulsion=ZBL()).double().train(), backend)
        results = potential(Structures(*chain(7)), ("energy", "forces"))
        loss = results["energy"].square().sum() + results["forces"].square().sum()
        weights = [p for p in potential.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        found.append([*results.values(), *slopes])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-11 * max(1.0, float(wanted.detach().abs().max())))
    assert float(found[0][1].detach().abs().max()) > 1e-3


class EnergyAndForces(torch.nn.Module):
    """A module for programs without this package's classes: tensors in, tensors out."""

    def __init__(self, potential: Potential) -> None:
        super().__init__()
        self.potential = potential

    def forward(self, z: torch.Tensor, pos: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.potential(Structures(z, pos, edge_index), ("energy", "forces"))
        return found["energy"], found["forces"]


#: One of each kind, by where they run; the others take seconds each and no other way.
EXPORTED = {
    "TFN": (),
    "MACE of one layer": (),
    **dict.fromkeys(("RealAgnosticResidualInteractionBlock", "NequIP", "Equiformer"), pytest.mark.long),
}


@pytest.mark.kernels  # programs have the operator inside
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=EXPORTED.get(name, pytest.mark.slow))
        for name in (*NETWORKS, "MACE of one layer", "toy with repulsion", "TFN of three properties")
    ],
)
def test_it_is_exported_with_free_numbers_of_atoms_and_edges(name: str) -> None:
    """Traced with its forces and exported, as NequIP does, on a few atoms; right for none, one and many."""
    torch.manual_seed(3)
    both = {"properties": ("energy", "dipole", "polarizability"), "hidden": "4x0e + 4x1o + 4x2e"}
    network = {
        "MACE of one layer": lambda: MACE(SPECIES, lmax=1, correlation=2, **(TINY | {"layers": 1})),
        "toy with repulsion": lambda: ToyNetwork(3),
        "TFN of three properties": lambda: TFN(SPECIES, layers=2, **(SMALL | both)),
    }
    repulsion = ZBL() if name == "toy with repulsion" else None
    potential = Potential((NETWORKS | network)[name](), SPECIES, repulsion=repulsion)
    model = EnergyAndForces(potential.double().eval())
    inputs = chain(7)
    traced = make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
    free = torch.export.Dim.DYNAMIC
    program = torch.export.export(traced, inputs, dynamic_shapes=({0: free}, {0: free}, {1: free}))
    exported = program.module()
    for sample in (chain(0), chain(1), chain(2), chain(5, edges=False), chain(40)):
        for found, wanted in zip(exported(*sample), model(*sample), strict=True):
            bound = 1e-12 * max(1.0, float(wanted.abs().max()) if wanted.numel() else 0.0)
            torch.testing.assert_close(found, wanted, rtol=0, atol=bound)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MACE of one layer", "TFN"])
def test_torch_compile_gives_the_same_energies(name: str) -> None:
    """One graph for any numbers of atoms, none of which has to have a neighbour."""
    torch.compiler.reset()
    torch.manual_seed(3)
    options = TINY | {"layers": 1}
    network = TFN(SPECIES, lmax=1, **options) if name == "TFN" else MACE(SPECIES, lmax=1, correlation=2, **options)
    potential = Potential(network, SPECIES).double().eval()
    compiled = torch.compile(potential.atomic_energies, backend="aot_eager", dynamic=True)
    for sample in (chain(7), chain(1), chain(5, edges=False), chain(20)):
        results, wanted = compiled(Structures(*sample)), potential.atomic_energies(Structures(*sample))
        torch.testing.assert_close(results, wanted, rtol=1e-13, atol=1e-13)
