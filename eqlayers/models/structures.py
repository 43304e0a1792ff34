"""Batches of atoms with neighbour lists, the input of potentials, and how ASE's Atoms become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..atoms.elements import symbols_of
from ..core.checks import check_floating, check_integer, check_number, check_tensor, check_type, got
from ..core.errors import ConfigError, DataError, DTypeError, IndexRangeError, ShapeError
from ..core.graph import check_edge_index, check_mirrored, check_range

if TYPE_CHECKING:
    from ase import Atoms

    from .committee import Committee
    from .molecule import MoleculeProperty
    from .potential import Potential

_COINCIDENT = 1e-6  # Angstrom; the direction between two atoms nearer than this is rounding noise
_FLAT = 1e-6  # volume of a cell, relative to the product of the lengths of its vectors


class Structures(NamedTuple):
    """One structure, or several concatenated, with the edges of a neighbour list.

    Attributes:
        z: ``[A]`` int64 atomic numbers.
        pos: ``[A, 3]`` Angstrom.
        edge_index: ``[2, E]`` int64 (src, dst); dst receives. Each pair in both directions; no edge from an atom to
            itself without a shift.
        batch: ``[A]`` int64, structure of each atom, ascending; None for one structure.
        num_graphs: Number of structures.
        cell: ``[G, 3, 3]``, a lattice vector in each row; None without periodic axes. Vectors of open axes only enter
            the volume that stress is divided by; zero if there is none.
        shifts: ``[E, 3]``, displacement of the receiver in lattice vectors; None without a cell.
        mirrored: Whether the second half of the edges is the first half with its ends and shifts reversed, so that
            networks compute radial functions for one edge of each pair. `collate` and loaders give such edges.

    Example:
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> Structures(torch.tensor([1, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.74]]), pair).num_graphs
        1
    """

    z: Tensor
    pos: Tensor
    edge_index: Tensor
    batch: Tensor | None = None
    num_graphs: int = 1
    cell: Tensor | None = None
    shifts: Tensor | None = None
    mirrored: bool = False

    @classmethod
    def of(cls, batch: Any) -> Structures:
        """Structures from an object with these attributes, such as a batch of a data loader.

        Missing attributes other than z, pos and edge_index are taken as None. With `half`, numbers of edges
        ``[E / 2]``, one of each pair, the edges are mirrored; unless, on a CPU, they do not fit the edges.

        Example:
            >>> from types import SimpleNamespace
            >>> z, pos = torch.tensor([1]), torch.zeros(1, 3)
            >>> Structures.of(SimpleNamespace(z=z, pos=pos, edge_index=torch.empty(2, 0, dtype=torch.int64))).z
            tensor([1])
        """
        graphs = getattr(batch, "num_graphs", None)
        edges, shifts, half = batch.edge_index, getattr(batch, "shifts", None), getattr(batch, "half", None)
        structures = cls(
            batch.z,
            batch.pos,
            edges,
            getattr(batch, "batch", None),
            1 if graphs is None else graphs,
            getattr(batch, "cell", None),
            shifts,
        )
        if half is None or 2 * len(half) != edges.shape[1]:
            return structures
        one = structures._replace(edge_index=edges[:, half], shifts=None if shifts is None else shifts[half])
        mirrored = mirror(one)
        if edges.is_cpu:
            from ..atoms.periodic import have_same_edges

            if not have_same_edges((edges, shifts), (mirrored.edge_index, mirrored.shifts)):  # they were changed since
                return structures
        return mirrored

    def checked(self, dtype: torch.dtype) -> Structures:
        """Check shapes, dtypes and indices; return the structures with ``batch`` filled in.

        Raises:
            ShapeError, DTypeError, IndexRangeError: Tensors whose shapes do not agree, or of another dtype than
                ``dtype``.
        """
        z, pos = check_tensor("z", self.z, "[A]"), check_floating("pos", self.pos, "[A, 3]")
        if isinstance(self.num_graphs, bool) or not isinstance(self.num_graphs, (int, torch.SymInt)):
            check_integer("num_graphs", self.num_graphs, 0)
        batch = torch.zeros_like(z) if self.batch is None else check_tensor("batch", self.batch, "[A], or None")
        if pos.ndim != 2 or pos.shape[1] != 3 or z.shape != pos.shape[:1] or batch.shape != z.shape:
            raise ShapeError(
                f"z, pos and batch must be [A], [A, 3] and [A], got {list(z.shape)}, {list(pos.shape)} and "
                f"{list(batch.shape)}. Give one row per atom."
            )
        if z.dtype != torch.int64 or batch.dtype != torch.int64:
            raise DTypeError(f"z and batch must be int64, got {z.dtype} and {batch.dtype}. Convert with `.long()`.")
        check_range("batch", batch, self.num_graphs, "structures")
        check_edge_index(self.edge_index)
        if (self.cell is None) != (self.shifts is None):
            raise ShapeError(
                "cell and shifts must come together, got one of them. Take both from one neighbour list, or neither."
            )
        if self.cell is not None and self.cell.shape != (self.num_graphs, 3, 3):
            raise ShapeError(
                f"cell must be [{self.num_graphs}, 3, 3], one for each structure, got {list(self.cell.shape)}. "
                "Give structures without periodic axes a zero cell."
            )
        if self.shifts is not None and self.shifts.shape != (self.edge_index.shape[1], 3):
            raise ShapeError(
                f"shifts must be [{self.edge_index.shape[1]}, 3], one for each edge, got {list(self.shifts.shape)}. "
                "Take both from one neighbour list."
            )
        if self.mirrored:
            check_mirrored(self.edge_index, self.shifts)
        for name, t in (("pos", pos), ("cell", self.cell)):
            if t is not None and t.dtype != dtype:
                raise DTypeError(
                    f"{name} must have the dtype of the model, {dtype}, got {t.dtype}. Convert it with `.to({dtype})`, "
                    "or the model with `.double()`."
                )
        return self._replace(batch=batch)


def mirror(structures: Structures) -> Structures:
    """Structures with edges of one direction, and after these the same edges with their ends and shifts reversed."""
    edges, shifts = structures.edge_index, structures.shifts
    edges, shifts = torch.cat([edges, edges.flip(0)], 1), None if shifts is None else torch.cat([shifts, -shifts])
    return structures._replace(edge_index=edges, shifts=shifts, mirrored=True)


def one_way(structures: Structures) -> Structures:
    """Mirrored structures with the edges of one direction, from which `mirror` makes the others."""
    edges, shifts = structures.edge_index, structures.shifts
    pairs = edges.shape[1] // 2
    shifts = None if shifts is None else shifts[:pairs]
    return structures._replace(edge_index=edges[:, :pairs], shifts=shifts, mirrored=False)


def volumes(cells: Tensor) -> Tensor:
    """Volumes ``[G]`` of cells ``[G, 3, 3]`` by simple kernels, which a GPU can record."""
    return (torch.linalg.cross(cells[:, 0], cells[:, 1]) * cells[:, 2]).sum(-1).abs()


# ---- from ASE's Atoms ---------------------------------------------------------------------------------------------


def check_atoms(atoms: Any, species: Sequence[int], name: str = "atoms") -> Atoms:
    """Return ``atoms`` if a potential of these species can compute them, and raise otherwise."""
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
    """Lattice vectors ``[3, 3]`` in Angstrom; vectors of open axes are unit vectors orthogonal to the periodic axes."""
    from ase.geometry import complete_cell

    cell = _without_open_axes(atoms)
    axes = np.linalg.norm(cell, axis=1) > 0
    if (axes != atoms.pbc).any():  # a periodic axis has no vector: return the cell with zero volume
        return cell
    return np.asarray(complete_cell(cell), dtype=np.float64)


def has_volume(atoms: Atoms) -> bool:
    """Whether a structure has a stress: an axis is periodic and the three lattice vectors span a volume.

    The volume is ``atoms.cell.volume``, of all three vectors, so the volume of a slab includes its vacuum.

    Example:
        >>> from ase import Atoms
        >>> [has_volume(Atoms("H", cell=[3, 3, height], pbc=[True, True, False])) for height in (0, 15)]
        [False, True]
    """
    return bool(atoms.pbc.any() and atoms.cell.volume > 0)


def _without_open_axes(atoms: Atoms) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The cell ``[3, 3]`` with zero vectors for open axes, which makes its volume zero."""
    return np.where(atoms.pbc[:, None], atoms.cell.array, 0.0)


class NeighborLists:
    """Neighbour list of one moving structure, computed to cutoff + skin and reused until an atom moves by skin / 2.

    Cutoff and skin are in Angstrom. With a skin of 0 every call computes a new list. ``built`` counts computed lists.
    """

    def __init__(self, cutoff: float, skin: float = 0.0) -> None:
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        fix = "0.3 is usual; 0 makes a list at every step."
        self.skin = check_number("skin", skin, at_least=0, unit=" of Angstrom", fix=fix)
        self.built = 0
        self._listed_for: tuple[Any, ...] | None = None
        self._pairs: tuple[Tensor, Tensor] | None = None

    def __call__(self, atoms: Atoms, name: str = "atoms") -> tuple[Tensor, Tensor]:
        """Pairs within the cutoff: ``edge_index [2, E]`` and ``shifts [E, 3]`` (lattice vectors), both int64."""
        pos, cell = atoms.positions, periodic_cell(atoms)
        if self._pairs is None or not self._still_complete(pos, cell, atoms.pbc):
            from ..atoms.periodic import neighbor_list  # imports vesin, which networks do not need

            pairs = neighbor_list(pos, cell, atoms.pbc, self.cutoff + self.skin, name)
            self._pairs = torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])
            self._listed_for = (pos.copy(), cell, atoms.pbc.copy())
            self.built += 1
        edges, shifts = self._pairs
        src, dst = edges.numpy()
        lengths = np.linalg.norm(pos[dst] - pos[src] + shifts.numpy() @ cell, axis=1)
        if lengths.size and lengths.min() < _COINCIDENT:
            first = int(lengths.argmin())
            raise DataError(
                f"{name} must be at distinct positions, got {src[first]} and {dst[first]} at the same one. "
                "Remove one of them, or correct the cell."
            )
        near = torch.from_numpy(lengths <= self.cutoff)  # a network is faster on fewer edges
        return edges[:, near], shifts[near]

    def _still_complete(self, pos: Any, cell: Any, pbc: Any) -> bool:
        """Whether the list is still complete: no atom has moved by half the skin since it was computed."""
        assert self._listed_for is not None
        old_pos, old_cell, old_pbc = self._listed_for
        if pos.shape != old_pos.shape or (cell != old_cell).any() or (pbc != old_pbc).any():
            return False
        return bool(np.square(pos - old_pos).sum(1).max() < (0.5 * self.skin) ** 2)


def collate(
    potential: Potential | Committee | MoleculeProperty,
    structures: Sequence[Atoms],
    neighbors: Sequence[tuple[Tensor, Tensor]],
) -> Structures:
    """Concatenate several Atoms into one batch, in the dtype and on the device of a potential.

    A structure that has a volume, see :func:`has_volume`, keeps its cell; for others, vectors of open axes are zero.
    """
    if not structures:
        raise ConfigError(f"structures must be at least one, got {got(structures)}. Leave out empty batches.")
    from ..atoms.periodic import folded, half_of  # imports vesin, which networks do not need

    sizes = [len(atoms) for atoms in structures]
    starts = np.cumsum([0, *sizes])
    folding = np.stack([periodic_cell(atoms) for atoms in structures])
    cell = np.stack([atoms.cell.array if has_volume(atoms) else _without_open_axes(atoms) for atoms in structures])
    pbc = np.stack([atoms.pbc for atoms in structures])
    positions = np.concatenate([atoms.positions for atoms in structures])
    pos, moved = folded(positions, folding, pbc, np.array(sizes), potential.cutoff)
    index = torch.cat([pairs + int(start) for (pairs, _), start in zip(neighbors, starts[:-1], strict=True)], dim=1)
    back = torch.from_numpy(moved)
    shifts = torch.cat([shift for _, shift in neighbors]) + back[index[1]] - back[index[0]]
    half = half_of(index.numpy(), shifts.numpy())
    if half is not None:
        index, shifts = index[:, half], shifts[half]
    device, dtype = potential.device, potential.dtype
    batch = Structures(
        z=torch.from_numpy(np.concatenate([atoms.numbers for atoms in structures]).astype(np.int64)).to(device),
        pos=torch.from_numpy(pos).to(device, dtype),
        edge_index=index.to(device),
        batch=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(device),
        num_graphs=len(sizes),
        cell=torch.from_numpy(cell).to(device, dtype),
        shifts=shifts.to(device),
    )
    return batch if half is None else mirror(batch)
