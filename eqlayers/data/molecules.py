"""Molecules with one label each as flat arrays, and a map-style dataset that slices them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from eqlayers.data.flat import FlatArrays
from eqlayers.data.neighbors import Edges, check_edges, edges_of
from eqlayers.data.splits import check_rows
from eqlayers.data.structure_dataset import SlicedDataset

from ..core.checks import check_type


@dataclass(frozen=True)
class MoleculeArrays(FlatArrays):
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

    fields: ClassVar = {
        "n_atoms": ("iu", "N", ()),
        "z": ("iu", "A", ()),
        "pos": ("f", "A", (3,)),
        "y": ("f", "N", ()),
        "idx": ("iu", "N", ()),
    }
    one: ClassVar = "molecule"
    source: str
    n_atoms: NDArray[np.int64]
    z: NDArray[np.int64]
    pos: NDArray[np.float32]
    y: NDArray[np.float64]
    idx: NDArray[np.int64]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse("finite labels", ~np.isfinite(self.y))

    @property
    def heavy(self) -> NDArray[np.int64]:
        """Number of non-hydrogen atoms of every molecule, `[N]`."""
        return self.count(self.z > 1)


def check_molecules(molecules: Any) -> MoleculeArrays:
    """Return ``molecules`` if they are a data set, else raise ConfigError."""
    what, fix = "a data set (MoleculeArrays)", "Take what load_mini or load_qm9 returns."
    return check_type("molecules", molecules, MoleculeArrays, what, fix)


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
    return Edges(**edges_of(check_molecules(molecules), cutoff, cache))


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
        self.molecules = molecules
        tensors = {name: torch.from_numpy(getattr(molecules, name)) for name in ("z", "pos", "y", "idx")}
        super().__init__(
            molecules,
            edges,
            np.arange(num) if rows is None else check_rows("rows", rows, num),
            {name: tensors[name] for name in ("z", "pos")},
            {name: tensors[name] for name in ("y", "idx")},
        )
