"""Potentials and structures that are tried as native programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule

from eqlayers.models import MACE, TFN, Equiformer, NequIP, Potential, Structures, compress
from eqlayers.models.structures import NeighborLists, collate
from eqlayers.nn import ZBL, Interaction, Linear
from eqlayers.testing import ToyNetwork

SPECIES = [1, 6, 8, 29]
TINY = {"hidden": "4x0e + 4x1o", "layers": 2, "cutoff": 4.0, "radial_hidden": (8,)}
#: Options of networks that from_mace and from_nequip make.
DENSE = {"interactions": "RealAgnosticDensityResidualInteractionBlock", "distance_transform": "agnesi"}
FOUNDATION = {**DENSE, **TINY, "correlation": [3, 1], "use_reduced_cg": True, "hidden": "3x0e + 3x0o + 3x1o + 3x1e"}
PARITY = {**TINY, "hidden": "4x0e + 3x0o + 4x1o + 2x1e", "embedding": 5, "cutoff_p": 8}


class OwnNetwork(torch.nn.Module):
    """A network of layers of the package, as a user writes it."""

    irreps_sh = "0e + 1o"
    cutoff = 4.0

    def __init__(self) -> None:
        super().__init__()
        self.species = tuple(SPECIES)
        self.embedding = torch.nn.Embedding(len(SPECIES), 8)
        self.first = Interaction("8x0e", self.irreps_sh, "8x0e + 8x1o", cutoff=4.0)
        self.second = Interaction("8x0e + 8x1o", self.irreps_sh, "8x0e", cutoff=4.0)
        self.read = torch.nn.Sequential(Linear("8x0e", "4x0e", layout="ir_mul"), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        x = self.first(self.embedding(atom_types), edges.harmonics, edges.lengths, graph)
        return self.read(self.second(x, edges.harmonics, edges.lengths, graph)).squeeze(-1)


NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "MACE": lambda: MACE(SPECIES, lmax=2, correlation=3, **TINY),
    "MACE, tables": lambda: MACE(SPECIES, lmax=2, correlation=2, knots=64, **TINY),
    "MACE, density": lambda: MACE(SPECIES, lmax=1, **FOUNDATION),
    "MACE, density, tables": lambda: MACE(SPECIES, lmax=1, knots=64, **FOUNDATION),
    "NequIP": lambda: NequIP(SPECIES, lmax=2, **TINY),
    "NequIP, tables": lambda: NequIP(SPECIES, lmax=2, knots=64, **PARITY | {"layers": 3}),
    "NequIP, frozen tables": lambda: NequIP(SPECIES, lmax=2, **TINY),
    "TFN": lambda: TFN(SPECIES, lmax=2, **TINY),
    "TFN by torch": lambda: TFN(SPECIES, lmax=2, backend="torch", **TINY),
    "Equiformer": lambda: Equiformer(SPECIES, heads=2, **TINY | {"layers": 1}),
    "toy": lambda: ToyNetwork(len(SPECIES)),
    "of a user": OwnNetwork,
}
STRUCTURES: dict[str, Callable[[], Atoms]] = {
    "one atom": lambda: molecule("H"),
    "two atoms": lambda: molecule("OH"),
    "two lone atoms": lambda: Atoms("OH", positions=[[0, 0, 0], [0, 0, 30.0]]),
    "ethanol": lambda: molecule("CH3CH2OH"),
    "a cell smaller than the cutoff": lambda: bulk("Cu"),
    "a crystal": lambda: rattled(bulk("Cu", cubic=True) * (3, 2, 2)),
}


def rattled(atoms: Atoms) -> Atoms:
    """With atoms moved at random."""
    atoms.rattle(0.1, seed=3)
    return atoms


def made(name: str, dtype: torch.dtype = torch.float64) -> Potential:
    """A potential with weights that are always the same, scales, shifts and a repulsion."""
    torch.manual_seed(3)
    repulsion = ZBL() if name in ("NequIP", "toy", "MACE, density") else None
    potential = Potential(NETWORKS[name](), SPECIES, {1: -13.6, 29: -3.0}, 0.7, repulsion=repulsion)
    if name.endswith("frozen tables"):
        compress(potential.eval(), knots=64)
    return potential.to(dtype).eval()


def batch_of(potential: Potential, *structures: Atoms) -> Structures:
    """Structures as one batch."""
    return collate(potential, list(structures), [NeighborLists(potential.cutoff)(atoms) for atoms in structures])


def edges_of(potential: Potential, atoms: Atoms) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Atomic numbers, vectors of edges, and their ends."""
    batch = batch_of(potential, atoms)
    src, dst = batch.edge_index
    shifts = torch.zeros(len(src), 3) if batch.shifts is None else batch.shifts
    cell = torch.zeros(3, 3) if batch.cell is None else batch.cell[0]
    vectors = batch.pos[dst] - batch.pos[src] + shifts.to(potential.dtype) @ cell.to(potential.dtype)
    return batch.z, vectors.contiguous(), batch.edge_index.contiguous()
