"""Networks that are compared at equal time: this package's, schnetpack's and torch-geometric's, in one form.

A form is a module with ``forward(batch) -> {"energy": [G] float64, "forces": [A, 3]}`` or ``{"property": [G]}``, whose
shifts and scale come from the training part.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.utils.data.dataloader
from torch import Tensor, nn

from eqlayers.models import MACE, TFN, Equiformer, MoleculeNetwork, NequIP, Potential, Structures
from eqlayers.train.module import atom_shifts


class PaiNN(nn.Module):
    """PaiNN of schnetpack: energies, or with ``dipole`` the norm of a dipole of charges and atomic vectors."""

    def __init__(self, cutoff: float, width: int, dipole: bool) -> None:
        super().__init__()
        loader: Any = torch.utils.data.dataloader
        if not hasattr(loader, "T_co"):  # schnetpack 2.0 imports this name, which torch has dropped
            loader.T_co = TypeVar("T_co", covariant=True)
        import schnetpack.nn
        from schnetpack.atomistic import Atomwise, DipoleMoment
        from schnetpack.representation import PaiNN as Representation

        basis = schnetpack.nn.BesselRBF(n_rbf=20, cutoff=cutoff)
        self.body = Representation(width, 3, basis, schnetpack.nn.CosineCutoff(cutoff))
        self.key = "dipole_moment" if dipole else "energy"
        vector = {"predict_magnitude": True, "use_vector_representation": True}
        self.head = DipoleMoment(width, **vector) if dipole else Atomwise(n_in=width, output_key="energy")

    def forward(self, batch: Any, pos: Tensor) -> Tensor:
        """``[G]``."""
        src, dst = batch.edge_index
        found = {"_atomic_numbers": batch.z, "_idx_i": dst, "_idx_j": src, "_Rij": pos[src] - pos[dst]}
        found |= {"_idx_m": batch.batch, "_n_atoms": torch.bincount(batch.batch), "_positions": pos}
        value: Tensor = self.head(self.body(found))[self.key]
        return value


class SchNet(nn.Module):
    """SchNet of torch-geometric: energies, or with ``dipole`` the norm of a dipole of charges."""

    def __init__(self, cutoff: float, width: int, dipole: bool) -> None:
        super().__init__()
        import ase.data  # noqa: F401 torch-geometric asks for it without importing it
        from torch_geometric.nn import SchNet as Network

        self.edges: Tensor | None = None
        self.net = Network(width, width, 3, cutoff=cutoff, interaction_graph=self.graph, dipole=dipole).float()

    def graph(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The edges of the batch, in place of a search that needs another package."""
        assert self.edges is not None
        src, dst = self.edges
        return self.edges, (pos[src] - pos[dst]).norm(dim=1)

    def forward(self, batch: Any, pos: Tensor) -> Tensor:
        """``[G]``."""
        self.edges = batch.edge_index
        value: Tensor = self.net(batch.z, pos, batch.batch).squeeze(-1)
        return value


class Peer(nn.Module):
    """A network of another package, with the shifts, the scale and the forces that our potentials have."""

    def __init__(self, network: nn.Module, shifts: dict[int, float], scale: float, forces: bool) -> None:
        super().__init__()
        self.network, self.scale, self.forces = network, scale, forces
        table = torch.zeros(119, dtype=torch.float64)
        for z, shift in shifts.items():
            table[z] = shift
        self.register_buffer("shifts", table)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """See the top of this file."""
        pos = batch.pos.detach().requires_grad_(self.forces)
        value = self.network(batch, pos) * self.scale
        base = torch.zeros(batch.num_graphs, dtype=torch.float64).index_add(0, batch.batch, self.shifts[batch.z])
        found = {"energy" if self.forces else "property": value.double() + base}
        if self.forces:
            (slope,) = torch.autograd.grad(value.sum(), pos, create_graph=self.training)
            found["forces"] = -slope
        return found


class Ours(nn.Module):
    """A network of atoms in a potential: energies with forces, energies, or the norm of a dipole."""

    def __init__(self, network: nn.Module, statistics: Any, quantity: str) -> None:
        super().__init__()
        self.potential, self.quantity = Potential(network, network.species), quantity
        dipole = {"dipole": statistics.scale} if quantity == "mu" else None
        self.potential.set_statistics(statistics.shifts, statistics.scale, statistics.mean_neighbors, dipole)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """See the top of this file."""
        asked = {"forces": ("energy", "forces"), "U0": ("energy",), "mu": ("dipole",)}[self.quantity]
        found = self.potential(Structures.of(batch), asked)
        if self.quantity == "forces":
            return found
        return {"property": found["energy"] if self.quantity == "U0" else found["dipole"].norm(dim=1)}


class Molecules(nn.Module):
    """``MoleculeNetwork``, which has read-outs of its own for properties."""

    def __init__(self, network: nn.Module, data: Any) -> None:
        super().__init__()
        self.network, found = network, data.statistics
        network.set_statistics(atom_shifts(network, found, data.target), found.scale, found.mean_neighbors)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """See the top of this file."""
        return {"property": self.network(batch.z, batch.pos, batch.edge_index, batch.batch, batch.num_graphs)}


def _potential(make: Callable[..., nn.Module], **options: Any) -> Callable[..., nn.Module]:
    def build(data: Any, quantity: str) -> nn.Module:
        properties = ["dipole" if quantity == "mu" else "energy"]
        network = make(data.statistics.species, cutoff=data.cutoff, properties=properties, **options)
        return Ours(network, data.statistics, quantity)

    return build


def _molecules(data: Any, quantity: str) -> nn.Module:
    readout = "vector" if quantity == "mu" else "scalar"
    sizes: dict[str, Any] = {"layers": 4, "knots": 256, **{k: DEGREE_2[k] for k in ("hidden", "lmax", "radial_hidden")}}
    return Molecules(MoleculeNetwork(data.statistics.species, cutoff=data.cutoff, readout=readout, **sizes), data)


def _peer(network: type[nn.Module], width: int) -> Callable[..., nn.Module]:
    def build(data: Any, quantity: str) -> nn.Module:
        found, dipole = data.statistics, quantity == "mu"
        shifts = {} if dipole else dict(found.shifts)  # a norm has no constant part
        return Peer(network(data.cutoff, width, dipole), shifts, found.scale, quantity == "forces")

    return build


class Model(NamedTuple):
    """One row of the table of models.

    Attributes:
        package: Where the network comes from, as it is imported; with a name for tables.
        about: Its sizes.
        rate: Highest learning rate.
        cutoff: Angstrom.
        quantities: What it can learn: forces (with energies), U0, mu.
        make: The form from a data module and the quantity.
    """

    package: tuple[str, str]
    about: str
    rate: float
    cutoff: float
    quantities: tuple[str, ...]
    make: Callable[[Any, str], nn.Module]

    @property
    def there(self) -> bool:
        """Whether its package can be imported."""
        return importlib.util.find_spec(self.package[0]) is not None


HERE, SCHNETPACK = ("eqlayers", "this package"), ("schnetpack", "schnetpack")
MACE_SIZES: dict[str, Any] = {
    "hidden": "64x0e + 64x1o",
    "correlation": 3,
    "lmax": 3,
    "layers": 2,
    "radial_hidden": [32],
}
DEGREE_2: dict[str, Any] = {"hidden": "16x0e + 16x1o + 16x2e", "lmax": 2, "layers": 3, "radial_hidden": [32]}
FRAMES: dict[str, Any] = {"hidden": "16x0e + 16x1o + 16x2e", "layers": 3, "radial_hidden": [32]}
ALL = ("forces", "U0", "mu")

#: A network more is a line more.
MODELS = {
    "MACE": Model(HERE, "64 channels, degree 3, 2 layers", 3e-2, 4.0, ALL, _potential(MACE, **MACE_SIZES)),
    "NequIP": Model(HERE, "16 channels, degree 2, 3 layers", 2e-2, 4.0, ALL, _potential(NequIP, **DEGREE_2)),
    "TFN": Model(HERE, "16 channels, degree 2, 3 layers", 2e-2, 4.0, ALL, _potential(TFN, **DEGREE_2)),
    "Equiformer": Model(HERE, "16 channels, degree 2, 3 layers", 3e-2, 4.0, ALL, _potential(Equiformer, **FRAMES)),
    "MoleculeNetwork": Model(HERE, "16 channels, degree 2, 4 layers", 2e-2, 3.5, ("U0", "mu"), _molecules),
    "PaiNN": Model(SCHNETPACK, "64 channels, 3 layers", 8e-3, 5.0, ALL, _peer(PaiNN, 64)),
    "PaiNN-32": Model(SCHNETPACK, "32 channels, 3 layers", 8e-3, 5.0, ALL, _peer(PaiNN, 32)),
    "SchNet": Model(("torch_geometric", "torch-geometric"), "64 channels, 3 layers", 2e-3, 5.0, ALL, _peer(SchNet, 64)),
}
