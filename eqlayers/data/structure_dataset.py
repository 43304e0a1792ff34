"""Map-style datasets of structures and molecules for training: every sample is a few slices of flat tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from eqlayers.atoms.periodic import folded
from eqlayers.data.neighbors import Edges, StructureEdges, check_edges
from eqlayers.data.splits import check_rows
from eqlayers.data.structures import (
    LABELS,
    FlatArrays,
    MoleculeArrays,
    StructureArrays,
    check_molecules,
    check_structures,
    completed_cells,
)

from ..core.checks import check_dtype

OF_STRUCTURES = tuple(name for name in LABELS if name != "forces")


class SlicedDataset(torch.utils.data.Dataset[Data]):
    """Samples that are slices of tensors of all structures, with their edges.

    Args:
        data: The data set, whose neighbour lists ``edges`` are.
        edges: Neighbour lists.
        rows: Rows of ``data`` in this dataset, in order.
        tensors: Of atoms `[A, ...]` or structures `[N, ...]`, by the name of the field, which is the name in a sample.

    Attributes:
        data: The data set.
        n_edges: Edges of every sample, `[N]`.
        n_rows: Rows of each label in every sample, `[N]`: its atoms for forces, 1 for others, 0 where it is missing.
    """

    rows: list[int]

    def __init__(
        self, data: FlatArrays, edges: Edges, rows: NDArray[np.int64], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self.data, self.rows = data, rows.tolist()
        self.n_edges = edges.n_edges[rows]
        self.n_rows = {name: counts[rows] for name, counts in data.label_rows().items()}
        kinds = data.kinds()
        self._tensors = [(name, tensor, kinds[name][1] == "A") for name, tensor in tensors.items()]
        self._local = torch.from_numpy(edges.local)
        self._atom_ends: list[int] = [0, *np.cumsum(data.n_atoms).tolist()]
        self._edge_ends: list[int] = [0, *np.cumsum(edges.n_edges).tolist()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Data:
        row = self.rows[index]
        atoms = slice(self._atom_ends[row], self._atom_ends[row + 1])
        pairs = slice(self._edge_ends[row], self._edge_ends[row + 1])
        sample = Data(edge_index=self._local[:, pairs].long())
        self.add(sample, index, atoms, pairs)
        for name, tensor, of_atoms in self._tensors:
            sample[name] = tensor[atoms] if of_atoms else tensor[row : row + 1]
        return sample

    def add(self, sample: Data, index: int, atoms: slice, pairs: slice) -> None:
        """Add what is no slice to the sample ``index``."""


class MoleculeDataset(SlicedDataset):
    """Map-style dataset of molecular graphs.

    A sample is a `torch_geometric.data.Data` with `z` `[A]` int64, `pos` `[A, 3]` float32 (Angstrom), `edge_index`
    `[2, E]` int64 (src, dst; dst receives), `y` `[1]` float64 (the target's unit) and `idx` `[1]` int64.

    Args:
        molecules: The data set.
        edges: Its neighbour lists.
        rows: Rows of `molecules` in this dataset, in order; all if None.
    """

    def __init__(self, molecules: MoleculeArrays, edges: Edges, rows: NDArray[np.int64] | None = None) -> None:
        check_edges(edges, check_molecules(molecules))
        num = len(molecules)
        chosen = np.arange(num) if rows is None else check_rows("rows", rows, num)
        tensors = {name: torch.from_numpy(getattr(molecules, name)) for name in ("z", "pos", "y", "idx")}
        super().__init__(molecules, edges, chosen, tensors)


class StructureDataset(SlicedDataset):
    """Map-style dataset of structures.

    A sample is a `torch_geometric.data.Data` with `z` `[A]` int64, `pos` `[A, 3]` (Angstrom; images of the atoms around
    their centre, where float32 is finest), `edge_index` `[2, E]` int64 (src, dst; dst receives), `energy` `[1]` float64
    (eV), `forces` `[A, 3]` (eV/Angstrom), `stress` `[1, 3, 3]` (eV/Angstrom^3), `dipole` `[1, 3]` (e Angstrom),
    `polarizability` `[1, 3, 3]` (Angstrom^3), `y` `[1]` float64 (a property in its own unit), `idx` and `group` `[1]`
    int64 (a place in `groups`); if a structure of the set is periodic, all have `cell` `[1, 3, 3]` and `shifts` `[E,
    3]`. Missing labels are NaN. Batches of a loader have what ``eqlayers.models.Structures.of`` reads.

    Args:
        structures: The data set.
        edges: Its neighbour lists.
        rows: Rows of ``structures`` in this dataset, in order; all if None.
        dtype: Of positions, cells, shifts, forces, stress, dipoles and polarizabilities.

    Attributes:
        labels: Names of the labels that occur in these rows.
        groups: Names of their groups, which is what `config_type` of the structures says.
        n_edges: Edges of every sample, `[N]`.

    Example:
        >>> pair = StructureArrays.of("a test", n_atoms=[2], z=[1, 1], pos=[[0, 0, 0], [0, 0, 0.74]], energy=[-31.0])
        >>> from eqlayers.data.neighbors import structure_edges
        >>> dataset = StructureDataset(pair, structure_edges(pair, cutoff=5.0))
        >>> dataset[0].energy, dataset.labels
        (tensor([-31.], dtype=torch.float64), ('energy',))
    """

    def __init__(
        self,
        structures: StructureArrays,
        edges: StructureEdges,
        rows: NDArray[np.int64] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_edges(edges, check_structures(structures))
        self.structures, self.dtype = structures, check_dtype("dtype", dtype)
        self.labels: tuple[str, ...] = ()
        if rows is not None and np.shape(rows) == (0,):  # a part that is not used, such as a test part
            chosen = np.empty(0, np.int64)
        else:
            chosen = np.arange(len(structures)) if rows is None else check_rows("rows", rows, len(structures))
            self.labels = structures.take(chosen).labels
        names, group = np.unique(structures.config_type[chosen], return_inverse=True)
        self.groups: tuple[str, ...] = tuple(names.tolist())
        self._group = torch.from_numpy(group.astype(np.int64))
        cell = completed_cells(structures.cell, structures.pbc)
        pos, moved = folded(structures.pos, cell, structures.pbc, structures.n_atoms, edges.cutoff)
        arrays = {"z": structures.z, "pos": pos, "forces": structures.forces}
        arrays |= {name: getattr(structures, name) for name in (*OF_STRUCTURES, "idx")}
        self._periodic = structures.has_cells
        if self._periodic:
            arrays["cell"] = cell
        super().__init__(structures, edges, chosen, {name: self._tensor(name, a) for name, a in arrays.items()})
        self._moved, self._shifts = torch.from_numpy(moved), torch.from_numpy(edges.shifts)

    def _tensor(self, name: str, array: NDArray[Any]) -> torch.Tensor:
        kept = array.dtype.kind != "f" or name in ("energy", "y")
        return torch.from_numpy(array) if kept else torch.from_numpy(array).to(self.dtype)

    def add(self, sample: Data, index: int, atoms: slice, pairs: slice) -> None:
        """Add the group, and the shifts of edges across periods."""
        sample.group = self._group[index].reshape(1)
        if self._periodic:
            moved, (src, dst) = self._moved[atoms], sample.edge_index
            sample.shifts = (self._shifts[pairs] + moved[dst] - moved[src]).to(self.dtype)
