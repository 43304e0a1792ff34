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

from eqlayers.errors import ConfigError, EqlayersError, IrrepsError
from eqlayers.models import MACE, TFN, Equiformer, NequIP, Potential, Structures
from eqlayers.models.mace import INTERACTIONS
from eqlayers.nn import ZBL
from eqlayers.testing import ToyNetwork, check_potential
from eqlayers.testing.networks import example_structures
from tests.catalogue.cases import on_backend
from tests.each import refused

ROOT = Path(__file__).resolve().parents[2]
SPECIES = [1, 6, 8]
HIDDEN = "4x0e + 4x1o + 4x2e"
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


PLAIN, _, DENSITY, BOTH = INTERACTIONS
#: Architectures whose laws are checked beside these.
MORE = {
    "MACE, plain": lambda: MACE(SPECIES, correlation=2, interactions=PLAIN, **SMALL),
    "MACE, two densities": lambda: MACE(SPECIES, correlation=2, interactions=[DENSITY, BOTH], **SMALL),
    "MACE, two kinds of products": lambda: MACE(SPECIES, layers=3, correlation=[3, 1, 2], **SMALL),
    "MACE, l = 2": lambda: MACE(SPECIES, correlation=2, distance_transform="agnesi", **(SMALL | {"hidden": HIDDEN})),
    "MACE, both parities, reduced": lambda: MACE(
        SPECIES, "3x0e + 3x0o + 3x1o", correlation=2, lmax=1, cutoff=4.0, use_reduced_cg=True, readout_hidden="5x0e"
    ),
    "NequIP, one step": lambda: NequIP(SPECIES, "8x0e", lmax=1, layers=1, cutoff=4.0),
    "NequIP, l = 2": lambda: NequIP(SPECIES, layers=3, cutoff_p=5, **(SMALL | {"hidden": HIDDEN})),
    "NequIP, parity": lambda: NequIP(SPECIES, "4x0e + 4x0o + 2x1o + 2x1e + 2x2o", lmax=2, layers=4, cutoff=4.0),
    "TFN, one step": lambda: TFN(SPECIES, "8x0e", lmax=1, layers=1, cutoff=4.0),
    "TFN, l = 2": lambda: TFN(SPECIES, layers=2, **(SMALL | {"hidden": HIDDEN})),
    "TFN, parity": lambda: TFN(SPECIES, "4x0e + 3x0o + 4x1o + 2x1e + 2x2e", lmax=2, layers=3, cutoff=4.0),
}
SEVERE = ("NequIP, parity", "TFN, parity", "MACE, l = 2", "MACE, two kinds of products")


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


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SEVERE)) for one in MORE])
def test_every_property_holds_in_other_architectures(name: str) -> None:
    torch.manual_seed(3)
    report = check_potential(Potential(MORE[name](), SPECIES, {1: -13.6, 8: -2042.0}, 0.7))
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", COMPILED)
def test_torch_compile_gives_the_same_energies(name: str, dtype: torch.dtype) -> None:
    """One graph for any numbers of atoms, none of which has to have a neighbour."""
    torch.compiler.reset()
    torch.manual_seed(3)
    potential = Potential(COMPILED[name](), SPECIES).to(dtype).eval()
    compiled = torch.compile(potential.atomic_energies, backend="aot_eager", dynamic=True, fullgraph=True)
    for z, pos, edges in (chain(7), chain(1), chain(5, edges=False), chain(20)):
        structures = Structures(z, pos.to(dtype), edges).checked(dtype)
        wanted = potential.atomic_energies(structures)  # plans are made under a lock, which no graph holds
        results = compiled(structures)
        bound = 200 * torch.finfo(dtype).eps
        torch.testing.assert_close(results, wanted, rtol=bound, atol=bound)


BAD: list[tuple[Any, dict[str, Any], type[EqlayersError], str]] = [
    *((kind, {"hidden": "4x1o"}, IrrepsError, "hidden must") for kind in (MACE, NequIP, TFN, Equiformer)),
    *((kind, {"layers": 0}, ConfigError, "layers must") for kind in (MACE, NequIP, TFN, Equiformer)),
    *((kind, {"species": []}, ConfigError, "species must") for kind in (MACE, NequIP, TFN, Equiformer)),
    *((kind, {"cutoff": -1.0}, ConfigError, "cutoff must") for kind in (MACE, NequIP, TFN, Equiformer)),
    (Equiformer, {"hidden": "4x0e + 6x1o"}, IrrepsError, r"that 4 heads divide, got 4x0e\+6x1o"),
    (Equiformer, {"hidden": "4x0e + 4x1o", "embedding": 6}, IrrepsError, "embedding must .* that 4 heads divide"),
    (Equiformer, {"heads": 0}, ConfigError, "heads must"),
    (Equiformer, {"mmax": -1}, ConfigError, "mmax must"),
]


test_bad_options = refused(
    "kind, options, error, message", BAD, lambda kind, options: kind(**({"species": [1]} | options))
)
