"""Molecules as flat arrays, checked once, and a map-style dataset that slices them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from eqlayers.checks import check_path, check_type, got
from eqlayers.data.cache import cached_arrays, content_key
from eqlayers.data.flat import refuse, rows_of_atoms, sum_atoms
from eqlayers.data.neighbors import check_cutoff, radius_graph
from eqlayers.data.splits import check_rows
from eqlayers.errors import DataError, ShapeError

__all__ = ["Edges", "MoleculeArrays", "MoleculeDataset", "neighbor_edges"]

_FORMAT = "neighbors-1"  # part of every key: changing what a cache holds makes old ones stale


@dataclass(frozen=True)
class MoleculeArrays:
    """Every molecule of a data set, one after the other, with the labels of one target.

    Attributes:
        source: Where they come from, for messages.
        n_atoms: Atoms of every molecule, `[N]` int64.
        z: Atomic numbers, `[A]` int64.
        pos: Positions in Angstrom, `[A, 3]` float32.
        y: Labels in the target's unit, `[N]` float64.
        idx: Row of every molecule in its source, `[N]` int64.

    Raises:
        DataError: If there is no molecule, lengths disagree, or a position or a label is not finite.
    """

    source: str
    n_atoms: NDArray[np.int64]
    z: NDArray[np.int64]
    pos: NDArray[np.float32]
    y: NDArray[np.float64]
    idx: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, kinds in (("n_atoms", "iu"), ("z", "iu"), ("pos", "f"), ("y", "f"), ("idx", "iu")):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in kinds:
                kind = "numbers" if kinds == "f" else "integers"
                raise DataError(f"{name} of {self.source} must be an array of {kind}, got {got(array)}. Convert it.")
        num, atoms = len(self.n_atoms), int(self.n_atoms.sum())
        if num == 0:
            raise DataError(
                f"{self.source}: expected at least one molecule; got none; check that the files are complete"
            )
        for name, shape, expected in (
            ("z", self.z.shape, (atoms,)),
            ("pos", self.pos.shape, (atoms, 3)),
            ("y", self.y.shape, (num,)),
            ("idx", self.idx.shape, (num,)),
        ):
            if shape != expected:
                raise DataError(
                    f"{self.source}: expected {name} of shape {list(expected)} for {num} molecules; got {list(shape)}; "
                    "the file is incomplete or corrupt, fetch or make it again"
                )
        self._refuse("at least one atom in every molecule", np.flatnonzero(self.n_atoms < 1))
        self._refuse("atomic numbers from 1 to 118", np.flatnonzero((self.z < 1) | (self.z > 118)), per_atom=True)
        self._refuse("finite positions", np.flatnonzero(~np.isfinite(self.pos).all(axis=1)), per_atom=True)
        self._refuse("finite labels", np.flatnonzero(~np.isfinite(self.y)))

    def _refuse(self, expected: str, rows: NDArray[np.int64], per_atom: bool = False) -> None:
        rows = np.unique(rows_of_atoms(self.n_atoms)[rows]) if per_atom else rows
        refuse(self.source, self.idx, expected, rows, "molecules")

    @property
    def heavy(self) -> NDArray[np.int64]:
        """Number of non-hydrogen atoms of every molecule, `[N]`."""
        return sum_atoms(self.n_atoms, self.z > 1)

    def counts(self, species: tuple[int, ...]) -> NDArray[np.int64]:
        """Number of atoms of every species in every molecule, `[N, S]`."""
        return np.stack([sum_atoms(self.n_atoms, self.z == number) for number in species], axis=1)


@dataclass(frozen=True)
class Edges:
    """Neighbour lists of all molecules, with atoms counted from 0 in each.

    Attributes:
        local: Rows (src, dst), `[2, E]`, in the smallest integer type that holds them.
        n_edges: Edges of every molecule, `[N]` int64.
    """

    local: NDArray[Any]
    n_edges: NDArray[np.int64]


def check_molecules(molecules: Any) -> MoleculeArrays:
    """Return ``molecules`` if they are a data set, else raise ConfigError."""
    return check_type(
        "molecules",
        molecules,
        MoleculeArrays,
        "a data set (MoleculeArrays)",
        "Take what load_mini or load_qm9 returns.",
    )


def check_edges(edges: Any, molecules: MoleculeArrays) -> Edges:
    """Return ``edges`` if they are the neighbour lists of ``molecules``.

    Raises:
        ConfigError: They are none. ShapeError: They are of another data set.
    """
    check_type("edges", edges, Edges, "neighbour lists (Edges)", "Take what neighbor_edges returns.")
    shapes = np.shape(edges.n_edges), np.shape(edges.local)
    arrays = isinstance(edges.n_edges, np.ndarray) and isinstance(edges.local, np.ndarray)
    if not arrays or shapes != (molecules.n_atoms.shape, (2, int(edges.n_edges.sum()))):
        raise ShapeError(
            f"edges must belong to the {len(molecules.n_atoms)} molecules, got {list(shapes[0])} numbers and "
            f"{list(shapes[1])} pairs. Make them anew with neighbor_edges."
        )
    return edges


def neighbor_edges(molecules: MoleculeArrays, cutoff: float, cache: str | Path | None) -> Edges:
    """Neighbour lists of a data set, from a cache if there is one that fits.

    Args:
        molecules: The data set.
        cutoff: Distance in Angstrom.
        cache: Folder for the cache file, or None for no cache.

    Returns:
        The edges of `radius_graph`, molecule after molecule.

    Raises:
        DataError: If two atoms of a molecule coincide.
    """
    n_atoms, cutoff = check_molecules(molecules).n_atoms, check_cutoff(cutoff)
    folder = None if cache is None else Path(check_path("cache", cache, "a folder, or None"))
    small = np.uint8 if n_atoms.max() <= 256 else np.int32

    def build() -> dict[str, NDArray[Any]]:
        sizes = torch.from_numpy(n_atoms)
        edge_index = radius_graph(torch.from_numpy(molecules.pos), cutoff, sizes).numpy()
        molecule = np.repeat(np.arange(len(n_atoms)), n_atoms)[edge_index[1]]
        local = (edge_index - (np.cumsum(n_atoms) - n_atoms)[molecule]).astype(small)
        return {"local": local, "n_edges": np.bincount(molecule, minlength=len(n_atoms)).astype(np.int64)}

    def problem(arrays: Mapping[str, NDArray[Any]]) -> str | None:
        local, n_edges = arrays["local"], arrays["n_edges"]
        if n_edges.shape != n_atoms.shape or local.shape != (2, int(n_edges.sum())) or local.dtype != small:
            return "its arrays do not fit the data"
        if bool((local >= np.repeat(n_atoms, n_edges)).any()):
            return "an edge points outside its molecule"
        return None

    if folder is None:
        arrays = build()
    else:
        key = content_key(_FORMAT, cutoff, n_atoms, molecules.pos)
        arrays = cached_arrays(folder / f"neighbors-{cutoff:g}A.npz", key, build, problem)
    return Edges(arrays["local"], arrays["n_edges"])


class MoleculeDataset(torch.utils.data.Dataset[Data]):
    """Map-style dataset of molecular graphs: every sample is a few slices of flat tensors.

    A sample is a `torch_geometric.data.Data` with `z` `[A]` int64, `pos` `[A, 3]` float32 (Angstrom), `edge_index`
    `[2, E]` int64 (src, dst; dst receives), `y` `[1]` float64 (the target's unit) and `idx` `[1]` int64.

    Args:
        molecules: The data set.
        edges: Its neighbour lists.
        rows: Rows of `molecules` in this dataset, in order; all if None.
    """

    def __init__(self, molecules: MoleculeArrays, edges: Edges, rows: NDArray[np.int64] | None = None) -> None:
        check_edges(edges, check_molecules(molecules))
        num = len(molecules.n_atoms)
        self.molecules = molecules
        self.rows: list[int] = list(range(num)) if rows is None else check_rows("rows", rows, num).tolist()
        self._z = torch.from_numpy(molecules.z)
        self._pos = torch.from_numpy(molecules.pos)
        self._y = torch.from_numpy(molecules.y)
        self._idx = torch.from_numpy(molecules.idx)
        self._local = torch.from_numpy(edges.local)
        self._atom_ends: list[int] = [0, *np.cumsum(molecules.n_atoms).tolist()]
        self._edge_ends: list[int] = [0, *np.cumsum(edges.n_edges).tolist()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Data:
        row = self.rows[index]
        atoms = slice(self._atom_ends[row], self._atom_ends[row + 1])
        pairs = slice(self._edge_ends[row], self._edge_ends[row + 1])
        edge_index: Tensor = self._local[:, pairs].long()
        return Data(
            z=self._z[atoms],
            pos=self._pos[atoms],
            edge_index=edge_index,
            y=self._y[row : row + 1],
            idx=self._idx[row : row + 1],
        )
