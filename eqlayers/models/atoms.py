"""Structures from ASE's Atoms: checked, with neighbour lists that live as long as atoms stay near their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..atoms.elements import symbols_of
from ..core.checks import check_number, check_type, got
from ..core.errors import ConfigError, DataError, IndexRangeError
from .committee import Committee
from .molecule_property import MoleculeProperty
from .potential import Potential
from .structures import Structures

if TYPE_CHECKING:
    from ase import Atoms

_SAME_PLACE = 1e-6  # Angstrom; directions between nearer atoms are noise
_FLAT = 1e-6  # volume of a cell by the lengths of its vectors


def check_atoms(atoms: Any, species: Sequence[int], name: str = "atoms") -> Atoms:
    """Atoms that a potential can take.

    Example:
        >>> from ase import Atoms
        >>> check_atoms(Atoms("Cu"), species=[1, 8])
        Traceback (most recent call last):
        ...
        eqlayers.errors.IndexRangeError: atoms must be of the model's species H, O, got also Cu. ...
    """
    import ase

    check_type(name, atoms, ase.Atoms, "an ase.Atoms", "Read one with ase.io.read(path).")
    if not len(atoms):
        raise ConfigError(f"{name} must be at least one atom, got none. Leave out empty structures.")
    unknown = sorted(set(atoms.numbers.tolist()) - set(species))
    if unknown:
        raise IndexRangeError(
            f"{name} must be of the model's species {symbols_of(species)}, got also {symbols_of(unknown)}. Use "
            "a model that was trained on them."
        )
    for what, values in (("positions", atoms.positions), ("cell", atoms.cell.array)):
        if not np.isfinite(values).all():
            raise DataError(f"{what} of {name} must be finite, got NaN or infinity. Look at the step before.")
    cell = periodic_cell(atoms)
    lengths = np.linalg.norm(cell, axis=1)
    if abs(np.linalg.det(cell)) <= _FLAT * lengths.prod():
        raise DataError(
            f"cell of {name} must have a volume, with independent lattice vectors along its periodic axes "
            f"{atoms.pbc.tolist()}, got {atoms.cell.array.tolist()}. Set the cell, or atoms.pbc = False."
        )
    return atoms


def periodic_cell(atoms: Atoms) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``[3, 3]`` Angstrom: lattice vectors of periodic axes, completed by unit vectors across them.

    Example:
        >>> from ase import Atoms
        >>> periodic_cell(Atoms("H", cell=[3, 4, 0], pbc=[True, False, False])).tolist()
        [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    from ase.geometry import complete_cell

    kept = _without_open_axes(atoms)
    axes = np.linalg.norm(kept, axis=1) > 0
    if (axes != atoms.pbc).any():  # a periodic axis without a vector: no completion hides it
        return kept
    return np.asarray(complete_cell(kept), dtype=np.float64)


def has_volume(atoms: Atoms) -> bool:
    """Whether a structure has a volume, and so a stress: something is periodic, and three lattice vectors span one.

    It is ASE's, of all three vectors: a slab's holds its vacuum.

    Example:
        >>> from ase import Atoms
        >>> [has_volume(Atoms("H", cell=[3, 3, height], pbc=[True, True, False])) for height in (0, 15)]
        [False, True]
    """
    return bool(atoms.pbc.any() and atoms.cell.volume > 0)


def _without_open_axes(atoms: Atoms) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``[3, 3]``: 0 in place of the vectors of open axes, so that the volume is 0, too."""
    return np.where(atoms.pbc[:, None], atoms.cell.array, 0.0)


class NeighborLists:
    """Neighbours of one structure that moves: the list reaches farther by a skin and is made again when need be.

    Cutoff and skin are in Angstrom. With a skin of 0 every call makes a list.

    Example:
        >>> from ase import Atoms
        >>> lists = NeighborLists(cutoff=1.0, skin=0.3)
        >>> pair = Atoms("H2", positions=[[0, 0, 0], [0, 0, 1.05]])
        >>> lists(pair)[0].shape, lists.made  # the list has the pair, which is too far now
        (torch.Size([2, 0]), 1)
        >>> pair.positions[1, 2] = 0.95
        >>> lists(pair)[0].tolist(), lists.made
        ([[1, 0], [0, 1]], 1)
    """

    def __init__(self, cutoff: float, skin: float = 0.0) -> None:
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        fix = "0.3 is usual; 0 makes a list at every step."
        self.skin = check_number("skin", skin, at_least=0, unit=" of Angstrom", fix=fix)
        self.made = 0
        self._at: tuple[Any, ...] | None = None
        self._found: tuple[Tensor, Tensor] | None = None

    def __call__(self, atoms: Atoms, name: str = "atoms") -> tuple[Tensor, Tensor]:
        """``edge_index [2, E]`` int64 and ``shifts [E, 3]`` int64 of the pairs within the cutoff."""
        pos, cell = atoms.positions, periodic_cell(atoms)
        if self._found is None or not self._holds(pos, cell, atoms.pbc):
            from ..atoms.periodic import neighbor_list  # which needs vesin, as networks alone do not

            pairs = neighbor_list(pos, cell, atoms.pbc, self.cutoff + self.skin, name)
            self._found = torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])
            self._at = (pos.copy(), cell, atoms.pbc.copy())
            self.made += 1
        edges, shifts = self._found
        src, dst = edges.numpy()
        lengths = np.linalg.norm(pos[dst] - pos[src] + shifts.numpy() @ cell, axis=1)
        if lengths.size and lengths.min() < _SAME_PLACE:
            first = int(lengths.argmin())
            raise DataError(
                f"{name} must be at distinct places, got {src[first]} and {dst[first]} at the same one. Remove "
                "one of them, or correct the cell."
            )
        near = torch.from_numpy(lengths <= self.cutoff)  # fewer edges cost less than asking which of them count
        return edges[:, near], shifts[near]

    def _holds(self, pos: Any, cell: Any, pbc: Any) -> bool:
        """Whether no pair can have come within the cutoff: each atom is within half the skin of its old place."""
        assert self._at is not None
        old_pos, old_cell, old_pbc = self._at
        if pos.shape != old_pos.shape or (cell != old_cell).any() or (pbc != old_pbc).any():
            return False
        return bool(np.square(pos - old_pos).sum(1).max() < (0.5 * self.skin) ** 2)


def collate(
    potential: Potential | Committee | MoleculeProperty,
    structures: Sequence[Atoms],
    neighbors: Sequence[tuple[Tensor, Tensor]],
) -> Structures:
    """Several Atoms as one batch, in the dtype and on the device of a potential.

    Cells are the cells of the atoms where these have a volume, see :func:`has_volume`; else vectors of open axes are 0.

    Example:
        >>> from ase.build import bulk, molecule
        >>> from eqlayers.testing import ToyNetwork
        >>> potential = Potential(ToyNetwork(3, cutoff=3.0), species=[1, 8, 29])
        >>> structures = [molecule("H2O"), bulk("Cu")]
        >>> batch = collate(potential, structures, [NeighborLists(3.0)(atoms) for atoms in structures])
        >>> batch.batch.tolist(), batch.cell.shape
        ([0, 0, 0, 1], torch.Size([2, 3, 3]))
    """
    if not structures:
        raise ConfigError(f"structures must be at least one, got {got(structures)}. Leave out empty batches.")
    from ..atoms.periodic import folded  # with vesin, which networks alone do not need

    sizes = [len(atoms) for atoms in structures]
    starts = np.cumsum([0, *sizes])
    folding = np.stack([periodic_cell(atoms) for atoms in structures])
    cell = np.stack([atoms.cell.array if has_volume(atoms) else _without_open_axes(atoms) for atoms in structures])
    pbc = np.stack([atoms.pbc for atoms in structures])
    places = np.concatenate([atoms.positions for atoms in structures])
    pos, moved = folded(places, folding, pbc, np.array(sizes), potential.cutoff)
    index = torch.cat([pairs + int(start) for (pairs, _), start in zip(neighbors, starts[:-1], strict=True)], dim=1)
    back = torch.from_numpy(moved)
    shifts = torch.cat([shift for _, shift in neighbors]) + back[index[1]] - back[index[0]]
    device, dtype = potential.device, potential.dtype
    return Structures(
        z=torch.from_numpy(np.concatenate([atoms.numbers for atoms in structures]).astype(np.int64)).to(device),
        pos=torch.from_numpy(pos).to(device, dtype),
        edge_index=index.to(device),
        batch=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(device),
        num_graphs=len(sizes),
        cell=torch.from_numpy(cell).to(device, dtype),
        shifts=shifts.to(device),
    )
