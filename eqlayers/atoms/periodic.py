"""Neighbour lists with periods in any directions: cells of vesin, or a tree of scipy where most would be empty."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.checks import check_number
from ..core.errors import DataError, DTypeError, OutOfMemoryError, ShapeError, needs_packages

with needs_packages("eqlayers.atoms.periodic", "train"):
    from ase.geometry import complete_cell, minkowski_reduce
    from scipy.spatial import KDTree
    from vesin import NeighborList

__all__ = ["neighbor_list"]


def neighbor_list(
    pos: Any, cell: Any, pbc: Any, cutoff: float, name: str = "atoms"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All ordered pairs of atoms and images that are closer than a cutoff.

    The vector of an edge is ``pos[dst] - pos[src] + shift @ cell``. An atom is its own neighbour in another cell,
    never in the same one. Distances are float64; threads are as many as torch has.

    Args:
        pos: Positions in Angstrom, `[A, 3]`; they may lie outside of the cell.
        cell: A lattice vector in each row, `[3, 3]`; None without one.
        pbc: Whether each lattice vector is a period, `[3]`, or one truth value for all.
        cutoff: Distance in Angstrom; a pair at exactly this distance is no edge.
        name: What messages call the atoms.

    Returns:
        ``edge_index`` `[2, E]`, rows (src, dst), where dst receives, sorted by dst, then by src, then by shift; and
        ``shifts`` `[E, 3]`, how many lattice vectors the receiver is moved by. Both int64.

    Raises:
        ShapeError, DTypeError: The arrays have other shapes, or are no real numbers.
        DataError: Numbers that are not finite, a periodic cell without volume, or atoms at one place.
        ConfigError: The cutoff is not positive and finite.
        OutOfMemoryError: There are more edges than memory.

    Example:
        >>> edge_index, shifts = neighbor_list([[0.0, 0.0, 0.0]], 3.0 * np.eye(3), [True, False, False], cutoff=4.0)
        >>> edge_index.tolist(), shifts.tolist()
        ([[0, 0], [0, 0]], [[-1, 0, 0], [1, 0, 0]])
    """
    fix = "Common values are 4 to 6."
    cutoff = check_number("cutoff", cutoff, above=0, at_most=LONGEST, unit=" of Angstrom", fix=fix)
    places, box, periods = _read(pos, cell, pbc)
    reduced, turn = _reduced(box, periods) if periods.any() else (box, np.eye(3, dtype=np.int64))
    src, dst, shifts = _pairs(places, reduced, periods, cutoff * _WIDER, name)
    shifts = shifts @ turn
    # The formula of a model decides at the cutoff, not the rounding of a search that wraps atoms into the cell first.
    square = np.square(places[dst] - places[src] + shifts @ box).sum(axis=1)
    if bool((square == 0).any()):
        pair = int(np.flatnonzero(square == 0)[0])
        raise DataError(
            f"{name} must be at distinct places, got {src[pair]} and {dst[pair]} at the same one. Repair the structure."
        )
    low, wide = shifts.min(axis=0, initial=0), np.ptp(shifts, axis=0) + 1 if len(shifts) else np.ones(3, np.int64)
    if len(places) ** 2 * math.prod(wide.tolist()) < 2**63:
        key = dst * len(places) + src
        for axis in range(3):
            key = key * wide[axis] + (shifts[:, axis] - low[axis])
        order = np.argsort(key, kind="stable")
    else:  # atoms that are many cells away have shifts of many digits
        order = np.lexsort((*shifts.T[::-1], src, dst))
    order = order[square[order] < cutoff**2]
    return np.stack([src[order], dst[order]]), shifts[order]


def molecule_neighbors(
    pos: NDArray[np.float64], n_atoms: NDArray[np.int64], cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Neighbour lists of molecules one after the other, in a tenth of the time of `neighbor_list` for small ones.

    Returns:
        ``edge_index`` `[2, E]` as of `neighbor_list`, with atoms counted over all molecules; and atoms that are at the
        place of another atom of their molecule `[M]`.

    Example:
        >>> molecule_neighbors(np.array([[0.0, 0, 0], [1.0, 0, 0]] * 2), np.array([2, 2]), cutoff=2.0)[0].tolist()
        [[1, 0, 3, 2], [0, 1, 2, 3]]
    """
    places, sizes, reach = np.ascontiguousarray(pos, dtype=np.float64), n_atoms[n_atoms > 0], cutoff * _WIDER
    if not len(sizes):
        return np.empty((2, 0), dtype=np.int64), np.empty(0, dtype=np.int64)
    starts, row = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(sizes)), sizes)
    low = np.minimum.reduceat(places, starts)
    extent = np.maximum.reduceat(places, starts) - low
    cells = np.maximum(extent / cutoff, 1.0)  # see _pairs; the box of all in one search may not be thin either
    empty = (np.prod(cells, axis=1) > 10 * sizes + 1000) | (cells.max(axis=1) > _SHORT)
    box, open_ = np.zeros((3, 3)), np.zeros(3, dtype=bool)
    parts = [np.empty((2, 0), dtype=np.int64)]
    for one in np.flatnonzero(empty).tolist():
        of_molecule = slice(starts[one], starts[one] + sizes[one])
        parts.append(np.stack(_pairs(places[of_molecule], box, open_, reach, "atoms")[:2]) + starts[one])
    search = NeighborList(cutoff=reach, full_list=True, n_threads=torch.get_num_threads())
    dense = np.flatnonzero(~empty)
    for rows in np.array_split(dense, -(-len(dense) // _TOGETHER)) if len(dense) else ():
        side = math.ceil(len(rows) ** (1 / 3))  # molecules of one search are apart from each other on a grid
        grid = np.stack(np.unravel_index(np.arange(len(rows)), (side, side, side)), axis=1)
        offset = grid * (extent[rows].max(axis=0) + 2 * reach) - low[rows]
        atoms = np.flatnonzero(np.isin(row, rows))
        apart = places[atoms] + offset[np.searchsorted(rows, row[atoms])]
        parts.append(atoms[np.stack(search.compute(apart, box, open_, quantities="ij")).astype(np.int64)])
    src, dst = np.concatenate(parts, axis=1)
    square = np.square(places[dst] - places[src]).sum(axis=1)
    order = np.argsort(dst * len(places) + src, kind="stable")
    order = order[square[order] < cutoff**2]
    return np.stack([src[order], dst[order]]), dst[square == 0]


def structure_neighbors(
    pos: NDArray[np.float64],
    n_atoms: NDArray[np.int64],
    cell: NDArray[np.float64],
    pbc: NDArray[np.bool_],
    cutoffs: NDArray[np.float64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]]:
    """Neighbour lists of structures one after the other; small ones without periods are searched together.

    Yields:
        Rows of some structures; their ``edge_index`` `[2, E]` as of `neighbor_list`, with atoms counted over all
        structures; ``shifts`` `[E, 3]`; and the rows with atoms at one place, which have no edges.

    Example:
        >>> pos, cell, pbc = np.array([[0.0, 0, 0], [1.0, 0, 0]] * 2), np.zeros((2, 3, 3)), np.zeros((2, 3), bool)
        >>> found = structure_neighbors(pos, np.array([2, 2]), cell, pbc, cutoffs=np.array([2.0, 0.5]))
        >>> [edges.tolist() for _, edges, _, _ in found]
        [[[1, 0], [0, 1]]]
    """
    starts, alone = np.cumsum(n_atoms) - n_atoms, np.any(pbc, axis=1) | (n_atoms > _SMALL)
    begins = alone | np.roll(alone, 1) | (np.diff(starts // _ATOMS, prepend=-1) > 0)
    for rows in np.split(np.arange(len(n_atoms)), np.flatnonzero(begins)[1:]) if len(n_atoms) else ():
        first, sizes = starts[rows[0]], n_atoms[rows]
        places = pos[first : first + sizes.sum()]
        edges, shifts, coincide = np.empty((2, 0), np.int64), np.empty((0, 3), np.int64), []
        if alone[rows[0]]:
            try:
                edges, shifts = neighbor_list(places, cell[rows[0]], pbc[rows[0]], float(cutoffs[rows[0]]))
            except DataError:
                coincide = rows.tolist()
        else:
            edges, same = molecule_neighbors(places, sizes, float(cutoffs[rows].max()))
            row = np.repeat(rows, sizes)
            coincide = np.unique(row[same]).tolist()
            square = np.square(places[edges[1]] - places[edges[0]]).sum(axis=1)
            of = row[edges[1]]
            edges = edges[:, (square < cutoffs[of] ** 2) & ~np.isin(of, coincide)]
            shifts = np.zeros((edges.shape[1], 3), np.int64)
        yield rows, edges + first, shifts, coincide


def folded(
    pos: NDArray[np.float64],
    cell: NDArray[np.float64],
    pbc: NDArray[np.bool_],
    n_atoms: NDArray[np.int64],
    cutoff: float,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Positions around the centre of each structure, each atom by its image there, and far parts closer together.

    In float32 an atom at 1000 Angstrom has a place to 6e-5 only: far from the origin, unwrapped in a long run, or gone.
    Along open axes a gap without atoms, longer than the cutoff, is closed to twice the cutoff: no edge crosses it.

    Structures are one after the other, with `n_atoms` `[N]` each; cells `[N, 3, 3]` have a volume.

    Returns:
        The positions `[A, 3]`, and how many lattice vectors each was moved back by `[A, 3]` int64: the shift of an edge
        grows by the vectors of the receiver and falls by the vectors of the sender.

    Example:
        >>> pos = np.array([[-1.0, 0.0, 0.0], [301.0, 0.0, 0.0]])
        >>> cell, pbc = 10.0 * np.eye(3)[None], np.array([[True] * 3])
        >>> [found.tolist() for found in folded(pos, cell, pbc, np.array([2]), cutoff=5.0)]
        [[[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[-15, 0, 0], [15, 0, 0]]]
    """
    row = np.repeat(np.arange(len(n_atoms)), n_atoms)
    sums = np.stack([np.bincount(row, weights=axis, minlength=len(n_atoms)) for axis in pos.T], axis=1)
    placed = pos - (sums / np.maximum(n_atoms, 1)[:, None])[row]
    periodic: NDArray[np.bool_] = np.any(pbc, axis=1)
    inverse = np.linalg.inv(np.where(periodic[:, None, None], cell, np.eye(3)))
    fraction = sum(placed[:, axis, None] * inverse[row, axis] for axis in range(3))
    moved = np.where(pbc[row], np.rint(fraction), 0.0)
    placed -= sum(moved[:, axis, None] * cell[row, axis] for axis in range(3))
    if len(placed):
        far = np.abs(placed).max(axis=1) > _FAR
        for one in np.unique(row[far & ~pbc[row].all(axis=1)]).tolist():
            atoms = row == one
            placed[atoms] = _gaps_closed(placed[atoms], cell[one], pbc[one], 2 * cutoff)
    return placed, moved.astype(np.int64)


def _gaps_closed(
    placed: NDArray[np.float64], cell: NDArray[np.float64], pbc: NDArray[np.bool_], most: float
) -> NDArray[np.float64]:
    """Positions without gaps of more than so much along open axes, around their centre."""
    across = np.linalg.qr(cell[pbc].T, mode="complete")[0][:, int(pbc.sum()) :]  # perpendicular to all periods
    for axis in across.T:
        at = placed @ axis
        order = np.argsort(at, kind="stable")
        extra = np.maximum(np.diff(at[order], prepend=at[order[0]]) - most, 0.0)
        shift = np.empty_like(at)
        shift[order] = np.cumsum(extra)
        placed = placed - (shift - shift.mean())[:, None] * axis
    return placed - (placed @ across).mean(axis=0) @ across.T


_WIDER = 1 + 1e-9
_TOGETHER = 1000  # molecules whose neighbours are found by one search
_SHORT = 30  # cells of a molecule along an axis: longer ones on one grid make a flat box, see _pairs
_SMALL, _ATOMS = 300, 10_000  # atoms of a structure that is searched with others; a search has 3 million pairs at most
_FAR = 100.0  # Angstrom, which float32 holds to 8e-6
LONGEST = 1e15  # Angstrom, whose cube is far from the end of float64
_BYTES = 120  # of an edge, while it is found and sorted
_FARTHEST = 2**31  # cells: shifts are integers of 32 bits in the cell list
#: Pairs of atoms and the shift of the second: src [E], dst [E], shifts [E, 3], in any order.
Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _reduced(box: NDArray[np.float64], periods: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Short vectors of the same lattice, and these as sums of its own, where one's length is twice its height or more.

    The time of a search grows with the number of images within reach, which is not bounded for a skewed cell.
    """
    vectors = box[periods]
    length, height = np.linalg.norm(vectors, axis=1), 1 / np.linalg.norm(np.linalg.pinv(vectors), axis=0)
    if not (length > 2 * height).any():
        return box, np.eye(3, dtype=np.int64)
    reduced, turn = minkowski_reduce(complete_cell(box), periods)
    return np.where(periods[:, None], reduced, 0.0), turn.astype(np.int64)


def _pairs(
    places: NDArray[np.float64], box: NDArray[np.float64], periods: NDArray[np.bool_], reach: float, name: str
) -> Pairs:
    """Pairs within reach: a cell list costs time and memory by the volume of the box, a tree by atoms and pairs."""
    if not len(places):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 3), np.int64)
    full = np.asarray(complete_cell(box), dtype=np.float64)
    inverse = np.linalg.inv(full)
    fraction = places @ inverse
    turns = np.where(periods, np.floor(fraction), 0.0)
    if np.abs(turns).max() >= _FARTHEST / 2:
        atom = int(np.abs(turns).max(axis=1).argmax())
        raise DataError(
            f"{name} must be within {_FARTHEST // 2:,} cells of the origin, got atom {atom} at {places[atom].tolist()} "
            "Angstrom. Fold the positions into the cell, or repair the structure."
        )
    height = 1 / np.linalg.norm(inverse, axis=0)  # between opposite faces
    extent = np.where(periods, height, np.ptp(fraction, axis=0))  # along open axes the completed vectors have length 1
    _check_memory(len(places), 2 * reach / np.maximum(extent, 1e-9), periods, reach / _WIDER)
    cells = np.maximum(extent / reach, 1.0)
    number = math.prod(cells.tolist())
    # more than 100,000 cells are made larger, until a flat box has less than one along its shortest axis
    thin = number > 5e4 and cells.min() * (1e5 / number) ** (1 / 3) < 2
    if thin or number > 10 * len(places) + 1000:
        return _by_tree(places, full, periods, reach, (fraction, turns, height))
    if periods.any() and not periods.all():  # open axes with a gap: the library's own box may be skewed without bound
        full = full * np.where(periods, 1.0, extent + 2 * reach)[:, None]
        periods = np.ones(3, dtype=bool)
    search = NeighborList(cutoff=reach, full_list=True, n_threads=torch.get_num_threads())
    src, dst, shifts = search.compute(places, full, periods, quantities="ijS")
    return src.astype(np.int64), dst.astype(np.int64), shifts.reshape(-1, 3).astype(np.int64)


def _check_memory(atoms: int, widths: NDArray[np.float64], periods: NDArray[np.bool_], cutoff: float) -> None:
    """Raise if so many edges as atoms that fill the box evenly would have do not fit into memory."""
    images = np.where(periods, widths, np.minimum(widths, 1.0))  # open axes have no others
    edges = 0.5 * atoms**2 * math.prod(images.tolist())
    if edges * _BYTES > memory_of_machine():
        raise OutOfMemoryError(
            f"a neighbour list must fit into memory, got about {edges:.0e} edges of {atoms:,} atoms within "
            f"{cutoff:g} Angstrom. Lower the cutoff; 4 to 6 is usual."
        )


def memory_of_machine() -> float:
    """Bytes; infinity where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _by_tree(
    places: NDArray[np.float64],
    full: NDArray[np.float64],
    periods: NDArray[np.bool_],
    reach: float,
    wrapped: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
) -> Pairs:
    """Pairs of the atoms in the cell and their images within reach of it, made axis by axis."""
    fraction, turns, height = wrapped
    home, fraction = places - turns @ full, fraction - turns
    atom, image = np.arange(len(places)), np.zeros((len(places), 3), np.int64)
    for axis in np.flatnonzero(periods):
        most = reach / height[axis]
        steps = np.arange(-math.ceil(most), math.ceil(most) + 1)
        at = fraction[atom, axis] + steps[:, None]
        near = (at >= fraction[:, axis].min() - most) & (at <= fraction[:, axis].max() + most)
        step, one = np.nonzero(near)
        atom, image = atom[one], image[one]
        image[:, axis] = steps[step]
    trees = [KDTree(points, balanced_tree=False, compact_nodes=False) for points in (home, home[atom] + image @ full)]
    within = trees[0].sparse_distance_matrix(trees[1], reach, output_type="ndarray")
    src, dst, shifts = within["i"].astype(np.int64), atom[within["j"]], image[within["j"]]
    other = (src != dst) | shifts.any(axis=1)  # an atom is not its own neighbour in the same cell
    src, dst, shifts = src[other], dst[other], shifts[other]
    return src, dst, shifts + (turns[src] - turns[dst]).astype(np.int64)


def _read(pos: Any, cell: Any, pbc: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Positions, cell and periods as arrays of known shapes."""
    try:
        said = np.asarray(pbc)
        periods = np.broadcast_to(said.astype(bool), (3,)) if said.shape in ((), (3,)) else None
        if said.dtype.kind not in "biuf" or np.iscomplexobj(pos) or np.iscomplexobj(cell):
            raise TypeError("text, complex numbers or objects")
        places = np.asarray(pos, dtype=np.float64).reshape(-1, 3) if len(pos) == 0 else np.asarray(pos, np.float64)
        box = np.zeros((3, 3)) if cell is None else np.asarray(cell, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, complex, of torch with gradients or in bfloat16
        raise DTypeError(
            "pos, cell and pbc must be real numbers [A, 3] and [3, 3] and booleans [3], got "
            f"{', '.join(type(value).__name__ for value in (pos, cell, pbc))} that NumPy does not read: {error}. Pass "
            "arrays, such as `pos.detach().double().numpy()`."
        ) from error
    if periods is None or places.ndim != 2 or places.shape[1] != 3 or box.shape != (3, 3):
        raise ShapeError(
            f"pos, cell and pbc must be [A, 3], [3, 3] and [3], got {list(np.shape(pos))}, {list(np.shape(cell))} and "
            f"{list(np.shape(pbc))}. Pass the arrays of one structure."
        )
    largest = np.abs(np.concatenate([places, box])).max()
    if not largest <= LONGEST:  # NaN is not either
        raise DataError(
            f"pos and cell must be finite and at most {LONGEST:g} Angstrom, got {largest:g}. Repair the structure."
        )
    used = box[periods]
    if np.linalg.det(used @ used.T) < 1e-12:  # squared length, area or volume; 1 without periods
        raise DataError(
            f"the lattice vectors of periodic directions must span a volume, got {used.tolist()}. Give a cell, or "
            "pbc=False."
        )
    return np.ascontiguousarray(places), np.ascontiguousarray(np.where(periods[:, None], box, 0.0)), periods
