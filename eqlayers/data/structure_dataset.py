"""A map-style dataset of structures for training: every sample is a few slices of flat tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from eqlayers.atoms.periodic import folded
from eqlayers.data.neighbors import Edges, check_edges
from eqlayers.data.splits import check_rows
from eqlayers.data.structures import StructureArrays, check_structures, completed_cells

from ..core.checks import check_dtype


class StructureDataset(torch.utils.data.Dataset[Data]):
    """Map-style dataset of structures: every sample is a few slices of flat tensors.

    A sample is a `torch_geometric.data.Data` with `z` `[A]` int64, `pos` `[A, 3]` (Angstrom; images of the atoms around
    their centre, where float32 is finest, unless the data set has float32 already), `edge_index` `[2, E]` int64 (src,
    dst; dst receives), `idx` and `group` `[1]` int64 (an index of `groups`), and those labels that a structure of the
    data set has, NaN where this one lacks them: `energy` `[1]` float64 (eV), `forces` `[A, 3]` (eV/Angstrom), `stress`
    `[1, 3, 3]` (eV/Angstrom^3), `dipole` `[1, 3]` (e Angstrom), `polarizability` `[1, 3, 3]` (Angstrom^3), `y` `[1]`
    float64 (a property in its own unit); if a structure of the set is periodic, all have `cell` `[1, 3, 3]` and
    `shifts` `[E, 3]`. Batches of a loader have what ``eqlayers.models.Structures.of`` reads.

    Args:
        structures: The data set.
        edges: Its neighbour lists.
        rows: Rows of ``structures`` in this dataset, in order; all if None.
        dtype: Of positions, cells, shifts, forces, stress, dipoles and polarizabilities.

    Attributes:
        structures: The data set.
        rows: Rows of the data set, as a list.
        labels: Names of the labels that occur in these rows.
        groups: Names of their groups, which is what `config_type` of the structures says.
        n_edges: Edges of every sample, `[N]`.
        n_rows: Rows of each label in every sample, `[N]`: its atoms for forces, 1 for others, 0 where it is missing.

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
        edges: Edges,
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
        self.rows: list[int] = chosen.tolist()
        self.n_edges = edges.n_edges[chosen]
        self.n_rows = {name: counts[chosen] for name, counts in structures.label_rows().items()}
        names, group = np.unique(structures.config_type[chosen], return_inverse=True)
        self.groups: tuple[str, ...] = tuple(names.tolist())
        self._group = torch.from_numpy(group.astype(np.int64))
        cell, pos, self._moved = completed_cells(structures.cell, structures.pbc), structures.pos, None
        if pos.dtype == np.float64:
            pos, moved = folded(pos, cell, structures.pbc, structures.n_atoms, edges.cutoff)
            self._moved = torch.from_numpy(moved)
        arrays = {name: getattr(structures, name) for name in ("z", "idx", *structures.labels)} | {"pos": pos}
        self._periodic = structures.has_cells
        if self._periodic:
            arrays["cell"] = cell
            shifts = np.zeros((len(edges.local[0]), 3), np.int16) if edges.shifts is None else edges.shifts
            self._shifts = torch.from_numpy(shifts)
        layout = structures.layout()
        self._tensors = [(name, self._tensor(name, array), layout[name][1] == "A") for name, array in arrays.items()]
        self._local = torch.from_numpy(edges.local)
        self._atom_offsets: list[int] = [0, *np.cumsum(structures.n_atoms).tolist()]
        self._edge_offsets: list[int] = [0, *np.cumsum(edges.n_edges).tolist()]

    def _tensor(self, name: str, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if array.dtype.kind != "f" or name in ("energy", "y") else tensor.to(self.dtype)

    @property
    def taken(self) -> StructureArrays:
        """The structures of these rows alone, at least one."""
        return self.structures.take(np.array(self.rows, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Data:
        row = self.rows[index]
        atoms = slice(self._atom_offsets[row], self._atom_offsets[row + 1])
        pairs = slice(self._edge_offsets[row], self._edge_offsets[row + 1])
        sample = Data(edge_index=self._local[:, pairs].long(), group=self._group[index].reshape(1))
        for name, tensor, of_atoms in self._tensors:
            sample[name] = tensor[atoms] if of_atoms else tensor[row : row + 1]
        if self._periodic:
            src, dst = sample.edge_index
            shifts = self._shifts[pairs]
            if self._moved is not None:
                moved = self._moved[atoms]
                shifts = shifts + moved[dst] - moved[src]
            sample.shifts = shifts.to(self.dtype)
        return sample
