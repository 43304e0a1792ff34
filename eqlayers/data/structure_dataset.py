"""Neighbour lists of a whole data set, from a cache, and a map-style dataset of structures for training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from eqlayers.checks import check_dtype, check_path, check_type
from eqlayers.data.cache import cached_arrays, content_key
from eqlayers.data.flat import refuse
from eqlayers.data.neighbors import check_cutoff
from eqlayers.data.splits import check_rows
from eqlayers.data.structures import LABELS, StructureArrays, check_structures, completed_cells
from eqlayers.errors import DataError, ShapeError
from eqlayers.periodic import folded, neighbor_list

OF_STRUCTURES = tuple(name for name in LABELS if name != "forces")

__all__ = ["StructureDataset", "StructureEdges", "structure_edges"]

_FORMAT = "structure-neighbors-1"  # part of every key: changing what a cache holds makes old ones stale


@dataclass(frozen=True)
class StructureEdges:
    """Neighbour lists of all structures, with atoms counted from 0 in each.

    Attributes:
        cutoff: Distance in Angstrom.
        local: Rows (src, dst), `[2, E]`, int32.
        shifts: Lattice vectors that the receiver is moved by, `[E, 3]` int16.
        n_edges: Edges of every structure, `[N]` int64.
    """

    cutoff: float
    local: NDArray[np.int32]
    shifts: NDArray[np.int16]
    n_edges: NDArray[np.int64]


def structure_edges(structures: StructureArrays, cutoff: float, cache: str | Path | None = None) -> StructureEdges:
    """Neighbour lists of a data set, from a cache if there is one that fits.

    Args:
        structures: The data set.
        cutoff: Distance in Angstrom.
        cache: Folder for the cache file, or None for no cache.

    Returns:
        The edges of `neighbor_list`, structure after structure.

    Raises:
        DataError: Two atoms of a structure are at one place.
    """
    data, cutoff = check_structures(structures), check_cutoff(cutoff)
    folder = None if cache is None else Path(check_path("cache", cache, "a folder, or None"))
    ends = np.cumsum(data.n_atoms)

    def build() -> dict[str, NDArray[Any]]:
        pairs, shifts, coincide, far = [np.empty((2, 0), np.int32)], [np.empty((0, 3), np.int16)], [], []
        for row, (end, num) in enumerate(zip(ends.tolist(), data.n_atoms.tolist(), strict=True)):
            try:
                found = neighbor_list(data.pos[end - num : end], data.cell[row], data.pbc[row], cutoff)
            except DataError:  # cells and positions were checked: atoms coincide
                coincide.append(row)
                continue
            pairs.append(found[0].astype(np.int32))
            shifts.append(found[1].astype(np.int16))
            if (shifts[-1] != found[1]).any():
                far.append(row)
        refuse(data.source, data.idx, "atoms at distinct places", np.array(coincide, np.int64), "structures")
        refuse(data.source, data.idx, "atoms within 32,767 lattice vectors", np.array(far, np.int64), "structures")
        n_edges = np.array([part.shape[1] for part in pairs[1:]], dtype=np.int64)
        return {"local": np.concatenate(pairs, axis=1), "shifts": np.concatenate(shifts), "n_edges": n_edges}

    def problem(arrays: Mapping[str, NDArray[Any]]) -> str | None:
        local, shifts, n_edges = arrays["local"], arrays["shifts"], arrays["n_edges"]
        edges = int(n_edges.sum())
        if n_edges.shape != data.n_atoms.shape or local.shape != (2, edges) or shifts.shape != (edges, 3):
            return "its arrays do not fit the data"
        if bool((local >= np.repeat(data.n_atoms, n_edges)).any()) or bool((local < 0).any()):
            return "an edge points outside its structure"
        return None

    if folder is None:
        arrays = build()
    else:
        key = content_key(_FORMAT, cutoff, data.n_atoms, data.pos, data.cell, data.pbc)
        # Files of users have no folder of their own in the cache: the name tells them apart.
        arrays = cached_arrays(folder / f"structures-{cutoff:g}A-{key[:12]}.npz", key, build, problem)
    return StructureEdges(cutoff, arrays["local"], arrays["shifts"], arrays["n_edges"])


class StructureDataset(torch.utils.data.Dataset[Data]):
    """Map-style dataset of structures: every sample is a few slices of flat tensors.

    A sample is a `torch_geometric.data.Data` with `z` `[A]` int64, `pos` `[A, 3]` (Angstrom; images of the atoms around
    their centre, where float32 is finest), `edge_index` `[2, E]` int64 (src, dst; dst receives), `energy` `[1]` float64
    (eV), `forces` `[A, 3]` (eV/Angstrom), `stress` `[1, 3, 3]` (eV/Angstrom^3), `dipole` `[1, 3]` (e Angstrom),
    `polarizability` `[1, 3, 3]` (Angstrom^3), `idx` and `group` `[1]` int64 (a place in `groups`); if a structure of
    the set is periodic, all have `cell` `[1, 3, 3]` and `shifts` `[E, 3]`. Missing labels are NaN. Batches of a loader
    have what ``eqlayers.models.Structures.of`` reads.

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
        check_structure_edges(edges, check_structures(structures))
        self.structures, self.dtype = structures, check_dtype("dtype", dtype)
        self.labels: tuple[str, ...] = ()
        if rows is not None and np.shape(rows) == (0,):  # a part that is not used, such as a test part
            chosen = np.empty(0, np.int64)
        else:
            chosen = np.arange(len(structures)) if rows is None else check_rows("rows", rows, len(structures))
            self.labels = structures.take(chosen).labels
        self.rows: list[int] = chosen.tolist()
        self.n_edges = edges.n_edges[chosen]
        names, group = np.unique(structures.config_type[chosen], return_inverse=True)
        self.groups: tuple[str, ...] = tuple(names.tolist())
        self._group = torch.from_numpy(group.astype(np.int64))
        cell = completed_cells(structures.cell, structures.pbc)
        pos, moved = folded(structures.pos, cell, structures.pbc, structures.n_atoms, edges.cutoff)
        per_atom = {"z": structures.z, "pos": pos, "forces": structures.forces}
        per_structure = {name: getattr(structures, name) for name in (*OF_STRUCTURES, "idx")}
        self._periodic = structures.has_cells
        if self._periodic:
            per_structure["cell"] = cell
        self._of_atoms = {name: self._tensor(name, array) for name, array in per_atom.items()}
        self._of_structures = {name: self._tensor(name, array) for name, array in per_structure.items()}
        self._moved = torch.from_numpy(moved)
        self._local, self._shifts = torch.from_numpy(edges.local), torch.from_numpy(edges.shifts)
        self._atom_ends: list[int] = [0, *np.cumsum(structures.n_atoms).tolist()]
        self._edge_ends: list[int] = [0, *np.cumsum(edges.n_edges).tolist()]

    def _tensor(self, name: str, array: NDArray[Any]) -> torch.Tensor:
        kept = array.dtype.kind != "f" or name == "energy"
        return torch.from_numpy(array) if kept else torch.from_numpy(array).to(self.dtype)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Data:
        row = self.rows[index]
        atoms = slice(self._atom_ends[row], self._atom_ends[row + 1])
        pairs = slice(self._edge_ends[row], self._edge_ends[row + 1])
        sample = Data(edge_index=self._local[:, pairs].long(), group=self._group[index].reshape(1))
        if self._periodic:
            moved, (src, dst) = self._moved[atoms], sample.edge_index
            sample.shifts = (self._shifts[pairs] + moved[dst] - moved[src]).to(self.dtype)
        for name, tensor in self._of_atoms.items():
            sample[name] = tensor[atoms]
        for name, tensor in self._of_structures.items():
            sample[name] = tensor[row : row + 1]
        return sample


def check_structure_edges(edges: Any, structures: StructureArrays) -> StructureEdges:
    """Return ``edges`` if they are the neighbour lists of ``structures``.

    Raises:
        ConfigError: They are none. ShapeError: They are of another data set.
    """
    check_type("edges", edges, StructureEdges, "neighbour lists (StructureEdges)", "Take them from structure_edges.")
    arrays = {name: np.shape(getattr(edges, name)) for name in ("n_edges", "local", "shifts")}
    total = int(np.sum(edges.n_edges)) if arrays["n_edges"] == (len(structures),) else -1
    if (arrays["local"], arrays["shifts"]) != ((2, total), (total, 3)):
        raise ShapeError(
            f"edges must belong to the {len(structures)} structures, got arrays of the shapes "
            f"{list(map(list, arrays.values()))}. Make them anew with structure_edges."
        )
    return edges
