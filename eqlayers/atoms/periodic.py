"""Neighbour lists with periodic axes in any directions: cell lists of vesin, or k-d trees of scipy for sparse boxes."""

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
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def neighbor_list(pos: Any, cell: Any, pbc: Any, cutoff: float, name: str = "atoms") -> tuple[IntArray, IntArray]:
    """All ordered pairs of atoms and images that are closer than a cutoff.

    The vector of an edge is ``pos[dst] - pos[src] + shift @ cell``. An atom may be its own neighbour in another
    cell, never in the same one. Distances are float64; the number of threads is torch's.

    Args:
        pos: Positions in Angstrom, `[A, 3]`; they may lie outside of the cell.
        cell: A lattice vector in each row, `[3, 3]`; None without one.
        pbc: Whether each lattice vector is a period, `[3]`, or one truth value for all.
        cutoff: Distance in Angstrom; a pair at exactly this distance is no edge.
        name: Name of the atoms in messages.

    Returns:
        ``edge_index`` `[2, E]`, rows (src, dst), where dst receives, sorted by dst, then by src, then by shift; and
        ``shifts`` `[E, 3]`, the displacement of the receiver in lattice vectors. Both int64.

    Raises:
        ShapeError, DTypeError: The arrays have other shapes, or are no real numbers.
        DataError: Numbers that are not finite, a periodic cell without volume, or atoms at the same position.
        ConfigError: The cutoff is not positive and finite.
        OutOfMemoryError: The edges do not fit into memory.

    Example:
        >>> edge_index, shifts = neighbor_list([[0.0, 0.0, 0.0]], 3.0 * np.eye(3), [True, False, False], cutoff=4.0)
        >>> edge_index.tolist(), shifts.tolist()
        ([[0, 0], [0, 0]], [[-1, 0, 0], [1, 0, 0]])
    """
    cutoff = check_cutoff(cutoff)
    positions, box, periods = _read(pos, cell, pbc)
    reduced, transform = _reduced(box, periods) if periods.any() else (box, np.eye(3, dtype=np.int64))
    src, dst, shifts = _pairs(positions, reduced, periods, cutoff * _WIDER, name)
    shifts = shifts @ transform
    # Distances are computed by the formula of models: the search wraps atoms into the cell first, with other rounding.
    square = np.square(positions[dst] - positions[src] + shifts @ box).sum(axis=1)
    if bool((square == 0).any()):
        pair = int(np.flatnonzero(square == 0)[0])
        raise DataError(
            f"{name} must be at distinct positions, got {src[pair]} and {dst[pair]} at the same one. Repair the "
            "structure."
        )
    low, wide = shifts.min(axis=0, initial=0), np.ptp(shifts, axis=0) + 1 if len(shifts) else np.ones(3, np.int64)
    if len(positions) ** 2 * math.prod(wide.tolist()) < 2**63:
        key = dst * len(positions) + src
        for axis in range(3):
            key = key * wide[axis] + (shifts[:, axis] - low[axis])
        order = np.argsort(key, kind="stable")
    else:  # atoms that are many cells away have shifts of many digits
        order = np.lexsort((*shifts.T[::-1], src, dst))
    order = order[square[order] < cutoff**2]
    return np.stack([src[order], dst[order]]), shifts[order]


def check_cutoff(cutoff: float) -> float:
    """Return ``cutoff`` as a float, or raise ConfigError unless it is positive and at most `LONGEST`."""
    fix = "Common values are 4 to 6."
    return check_number("cutoff", cutoff, above=0, at_most=LONGEST, unit=" of Angstrom", fix=fix)


def molecule_neighbors(pos: FloatArray, n_atoms: IntArray, cutoff: float) -> tuple[IntArray, IntArray]:
    """Neighbour lists of concatenated molecules by joint searches, ten times as fast as `neighbor_list` for small ones.

    Returns:
        ``edge_index`` `[2, E]` as of `neighbor_list`, with atoms counted over all molecules; and the atoms `[M]` that
        coincide with another atom of their molecule.
    """
    positions, sizes, reach = np.ascontiguousarray(pos, dtype=np.float64), n_atoms[n_atoms > 0], cutoff * _WIDER
    if not len(sizes):
        return np.empty((2, 0), dtype=np.int64), np.empty(0, dtype=np.int64)
    starts, row = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(sizes)), sizes)
    low = np.minimum.reduceat(positions, starts)
    extent = np.maximum.reduceat(positions, starts) - low
    cells = np.maximum(extent / cutoff, 1.0)  # see _pairs; the box of a joint search must not be thin either
    empty = (np.prod(cells, axis=1) > 10 * sizes + 1000) | (cells.max(axis=1) > _SHORT)
    box, open_ = np.zeros((3, 3)), np.zeros(3, dtype=bool)
    parts = [np.empty((2, 0), dtype=np.int64)]
    for molecule in np.flatnonzero(empty).tolist():
        of_molecule = slice(starts[molecule], starts[molecule] + sizes[molecule])
        parts.append(np.stack(_pairs(positions[of_molecule], box, open_, reach, "atoms")[:2]) + starts[molecule])
    search = NeighborList(cutoff=reach, full_list=True, n_threads=torch.get_num_threads())
    dense = np.flatnonzero(~empty)
    for rows in np.array_split(dense, -(-len(dense) // _TOGETHER)) if len(dense) else ():
        side = math.ceil(len(rows) ** (1 / 3))  # molecules of one search are put on a grid, beyond reach of each other
        grid = np.stack(np.unravel_index(np.arange(len(rows)), (side, side, side)), axis=1)
        offset = grid * (extent[rows].max(axis=0) + 2 * reach) - low[rows]
        atoms = np.flatnonzero(np.isin(row, rows))
        spread = positions[atoms] + offset[np.searchsorted(rows, row[atoms])]
        parts.append(atoms[np.stack(search.compute(spread, box, open_, quantities="ij")).astype(np.int64)])
    src, dst = np.concatenate(parts, axis=1)
    square = np.square(positions[dst] - positions[src]).sum(axis=1)
    order = np.argsort(dst * len(positions) + src, kind="stable")
    order = order[square[order] < cutoff**2]
    return np.stack([src[order], dst[order]]), dst[square == 0]


def structure_neighbors(
    pos: FloatArray, n_atoms: IntArray, cell: FloatArray, pbc: BoolArray, cutoffs: FloatArray
) -> Iterator[tuple[IntArray, IntArray, IntArray, list[int]]]:
    """Neighbour lists of concatenated structures; small structures without periodic axes are searched together.

    Yields:
        Indices of some structures; their ``edge_index`` `[2, E]` as of `neighbor_list`, with atoms counted over all
        structures; ``shifts`` `[E, 3]`; and indices of structures with coinciding atoms, which have no edges.
    """
    starts, alone = np.cumsum(n_atoms) - n_atoms, np.any(pbc, axis=1) | (n_atoms > _SMALL)
    begins = alone | np.roll(alone, 1) | (np.diff(starts // _ATOMS, prepend=-1) > 0)
    for rows in np.split(np.arange(len(n_atoms)), np.flatnonzero(begins)[1:]) if len(n_atoms) else ():
        first, sizes = starts[rows[0]], n_atoms[rows]
        positions = pos[first : first + sizes.sum()]
        edges, shifts, coincide = np.empty((2, 0), np.int64), np.empty((0, 3), np.int64), []
        if alone[rows[0]]:
            try:
                edges, shifts = neighbor_list(positions, cell[rows[0]], pbc[rows[0]], float(cutoffs[rows[0]]))
            except DataError:
                coincide = rows.tolist()
        else:
            edges, same = molecule_neighbors(positions, sizes, float(cutoffs[rows].max()))
            row = np.repeat(rows, sizes)
            coincide = np.unique(row[same]).tolist()
            square = np.square(positions[edges[1]] - positions[edges[0]]).sum(axis=1)
            of = row[edges[1]]
            edges = edges[:, (square < cutoffs[of] ** 2) & ~np.isin(of, coincide)]
            shifts = np.zeros((edges.shape[1], 3), np.int64)
        yield rows, edges + first, shifts, coincide


def half_of(edge_index: NDArray[Any], shifts: NDArray[Any] | None = None, fewest: int = 128) -> IntArray | None:
    """Numbers of edges `[E / 2]`, one edge of each pair of opposite ones; None if an edge has no opposite one.

    Sums of hashes in both directions are compared, which are 64-bit numbers. The result is None for less than
    ``fewest`` edges: for these, copies cost more time than radial networks.
    """
    src, dst = (end.astype(np.int64, copy=False) for end in edge_index)
    columns, first = np.stack([src, dst]), src < dst
    if shifts is not None:
        moved = shifts.T.astype(np.int64, copy=False)
        columns = np.concatenate([columns, moved])
        first |= (src == dst) & (np.sign(moved).T @ np.array([4, 2, 1]) > 0)  # by the first that is not 0
    half = np.flatnonzero(first)
    if len(src) < fewest or 2 * len(half) != len(src):
        return None
    there, back = columns[:, half], columns[:, ~first]
    back[:2] = back[1::-1]
    back[2:] *= -1
    return half if _hashed(there) == _hashed(back) else None


def as_integers(shifts: torch.Tensor) -> IntArray:
    """Shifts ``[E, 3]`` of any dtype, as an array."""
    return shifts.detach().to(torch.int64).numpy()


def have_same_edges(first: tuple[torch.Tensor, Any], second: tuple[torch.Tensor, Any]) -> bool:
    """Whether two lists of edges and shifts on the CPU have the same edges in any order, by their hashes."""
    sums = []
    for edges, shifts in (first, second):
        columns = edges.numpy().astype(np.int64, copy=False)
        columns = columns if shifts is None else np.concatenate([columns, as_integers(shifts).T])
        sums.append((columns.shape, _hashed(columns)))
    return sums[0] == sums[1]


def _hashed(columns: IntArray) -> int:
    """The sum of a hash of each column, in 64 bits."""
    mixed = np.zeros(columns.shape[1], np.uint64)
    for row in np.ascontiguousarray(columns).view(np.uint64):
        mixed = (mixed ^ row) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum())


def folded(
    pos: FloatArray, cell: FloatArray, pbc: BoolArray, n_atoms: IntArray, cutoff: float
) -> tuple[FloatArray, IntArray]:
    """Move atoms near the centre of their structure, without a change of edges, for accurate positions in float32.

    Periodic axes: each atom is replaced by its image nearest the centre. Open axes: a gap without atoms that is longer
    than twice the cutoff is shortened to twice the cutoff. In float32, a coordinate of 1000 Angstrom is rounded to
    6e-5 Angstrom. Structures are concatenated, with `n_atoms` `[N]`; cells `[N, 3, 3]` must have a volume.

    Returns:
        The positions `[A, 3]`, and the lattice vectors `[A, 3]` int64 subtracted from each atom. The shift of an edge
        changes by the vectors of its receiver minus the vectors of its sender.

    Example:
        >>> pos = np.array([[-1.0, 0.0, 0.0], [301.0, 0.0, 0.0]])
        >>> cell, pbc = 10.0 * np.eye(3)[None], np.array([[True] * 3])
        >>> [array.tolist() for array in folded(pos, cell, pbc, np.array([2]), cutoff=5.0)]
        [[[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[-15, 0, 0], [15, 0, 0]]]
    """
    row = np.repeat(np.arange(len(n_atoms)), n_atoms)
    sums = np.stack([np.bincount(row, weights=axis, minlength=len(n_atoms)) for axis in pos.T], axis=1)
    placed = pos - (sums / np.maximum(n_atoms, 1)[:, None])[row]
    periodic: BoolArray = np.any(pbc, axis=1)
    inverse = np.linalg.inv(np.where(periodic[:, None, None], cell, np.eye(3)))
    fraction = sum(placed[:, axis, None] * inverse[row, axis] for axis in range(3))
    moved = np.where(pbc[row], np.rint(fraction), 0.0)
    placed -= sum(moved[:, axis, None] * cell[row, axis] for axis in range(3))
    if len(placed):
        far = np.abs(placed).max(axis=1) > _FAR
        for index in np.unique(row[far & ~pbc[row].all(axis=1)]).tolist():
            atoms = row == index
            placed[atoms] = _gaps_closed(placed[atoms], cell[index], pbc[index], 2 * cutoff)
    return placed, moved.astype(np.int64)


def _gaps_closed(placed: FloatArray, cell: FloatArray, pbc: BoolArray, most: float) -> FloatArray:
    """Centred positions with gaps along open axes shortened to at most ``most`` Angstrom."""
    across = np.linalg.qr(cell[pbc].T, mode="complete")[0][:, int(pbc.sum()) :]  # basis of the open directions
    for axis in across.T:
        at = placed @ axis
        order = np.argsort(at, kind="stable")
        extra = np.maximum(np.diff(at[order], prepend=at[order[0]]) - most, 0.0)
        shift = np.empty_like(at)
        shift[order] = np.cumsum(extra)
        placed = placed - (shift - shift.mean())[:, None] * axis
    return placed - (placed @ across).mean(axis=0) @ across.T


_WIDER = 1 + 1e-9
_TOGETHER = 1000  # molecules of one search
_SHORT = 30  # cells of a molecule along an axis in a joint search: longer molecules would make its box flat, see _pairs
_SMALL, _ATOMS = 300, 10_000  # most atoms of a structure in a joint search, and of the search
_FAR = 100.0  # Angstrom: farther coordinates have rounding errors above 8e-6 in float32
LONGEST = 1e15  # Angstrom: its cube does not overflow float64
_BYTES = 120  # memory of an edge during search and sort
_FARTHEST = 2**31  # cells: vesin stores shifts as 32-bit integers
#: Pairs of atoms and the shift of the second: src [E], dst [E], shifts [E, 3], in any order.
Pairs = tuple[IntArray, IntArray, IntArray]


def _reduced(box: FloatArray, periods: BoolArray) -> tuple[FloatArray, IntArray]:
    """Minkowski-reduce a skewed cell: short vectors of its lattice, and their integer coefficients in its vectors."""
    vectors = box[periods]
    length, height = np.linalg.norm(vectors, axis=1), 1 / np.linalg.norm(np.linalg.pinv(vectors), axis=0)
    if not (length > 2 * height).any():
        return box, np.eye(3, dtype=np.int64)
    reduced, transform = minkowski_reduce(complete_cell(box), periods)
    return np.where(periods[:, None], reduced, 0.0), transform.astype(np.int64)


def _pairs(positions: FloatArray, box: FloatArray, periods: BoolArray, reach: float, name: str) -> Pairs:
    """Pairs within reach, by a cell list, or by a k-d tree if most cells of the list would be empty."""
    if not len(positions):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 3), np.int64)
    full = np.asarray(complete_cell(box), dtype=np.float64)
    inverse = np.linalg.inv(full)
    fraction = positions @ inverse
    wraps = np.where(periods, np.floor(fraction), 0.0)
    if np.abs(wraps).max() >= _FARTHEST / 2:
        atom = int(np.abs(wraps).max(axis=1).argmax())
        raise DataError(
            f"{name} must be within {_FARTHEST // 2:,} cells of the origin, got atom {atom} at "
            f"{positions[atom].tolist()} Angstrom. Fold the positions into the cell, or repair the structure."
        )
    height = 1 / np.linalg.norm(inverse, axis=0)  # between opposite faces
    extent = np.where(periods, height, np.ptp(fraction, axis=0))  # along open axes the completed vectors have length 1
    _check_memory(len(positions), 2 * reach / np.maximum(extent, 1e-9), periods, reach / _WIDER)
    cells = np.maximum(extent / reach, 1.0)
    number = math.prod(cells.tolist())
    # vesin enlarges cells when there are more than 100,000: a flat box would have none along its shortest axis
    thin = number > 5e4 and cells.min() * (1e5 / number) ** (1 / 3) < 2
    if thin or number > 10 * len(positions) + 1000:
        return _by_tree(positions, full, periods, reach, (fraction, wraps, height))
    if periods.any() and not periods.all():  # a box with a gap along open axes: vesin's own may be arbitrarily skewed
        full = full * np.where(periods, 1.0, extent + 2 * reach)[:, None]
        periods = np.ones(3, dtype=bool)
    search = NeighborList(cutoff=reach, full_list=True, n_threads=torch.get_num_threads())
    src, dst, shifts = search.compute(positions, full, periods, quantities="ijS")
    return src.astype(np.int64), dst.astype(np.int64), shifts.reshape(-1, 3).astype(np.int64)


def _check_memory(atoms: int, widths: FloatArray, periods: BoolArray, cutoff: float) -> None:
    """Raise if the estimated number of edges, for atoms distributed evenly over the box, does not fit into memory."""
    images = np.where(periods, widths, np.minimum(widths, 1.0))  # open axes have one image
    edges = 0.5 * atoms**2 * math.prod(images.tolist())
    if edges * _BYTES > memory_of_machine():
        raise OutOfMemoryError(
            f"a neighbour list must fit into memory, got about {edges:.0e} edges of {atoms:,} atoms within "
            f"{cutoff:g} Angstrom. Lower the cutoff; 4 to 6 is usual."
        )


def memory_of_machine() -> float:
    """Memory of this machine in bytes; infinity if the system does not report it."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _by_tree(
    positions: FloatArray, full: FloatArray, periods: BoolArray, reach: float, wrapped: tuple[FloatArray, ...]
) -> Pairs:
    """Pairs by k-d trees of the wrapped atoms and of their periodic images near the cell."""
    fraction, wraps, height = wrapped
    home, fraction = positions - wraps @ full, fraction - wraps
    atom, image = np.arange(len(positions)), np.zeros((len(positions), 3), np.int64)
    for axis in np.flatnonzero(periods):
        most = reach / height[axis]
        steps = np.arange(-math.ceil(most), math.ceil(most) + 1)
        at = fraction[atom, axis] + steps[:, None]
        near = (at >= fraction[:, axis].min() - most) & (at <= fraction[:, axis].max() + most)
        step, chosen = np.nonzero(near)
        atom, image = atom[chosen], image[chosen]
        image[:, axis] = steps[step]
    trees = [KDTree(points, balanced_tree=False, compact_nodes=False) for points in (home, home[atom] + image @ full)]
    within = trees[0].sparse_distance_matrix(trees[1], reach, output_type="ndarray")
    src, dst, shifts = within["i"].astype(np.int64), atom[within["j"]], image[within["j"]]
    other = (src != dst) | shifts.any(axis=1)  # an atom is not its own neighbour in the same cell
    src, dst, shifts = src[other], dst[other], shifts[other]
    return src, dst, shifts + (wraps[src] - wraps[dst]).astype(np.int64)


def _read(pos: Any, cell: Any, pbc: Any) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Check positions, cell and periodic flags, and convert them to arrays."""
    try:
        flags = np.asarray(pbc)
        periods = np.broadcast_to(flags.astype(bool), (3,)) if flags.shape in ((), (3,)) else None
        if flags.dtype.kind not in "biuf" or np.iscomplexobj(pos) or np.iscomplexobj(cell):
            raise TypeError("text, complex numbers or objects")
        positions = np.asarray(pos, dtype=np.float64).reshape(-1, 3) if len(pos) == 0 else np.asarray(pos, np.float64)
        box = np.zeros((3, 3)) if cell is None else np.asarray(cell, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, complex, or tensors with gradients
        raise DTypeError(
            "pos, cell and pbc must be real numbers [A, 3] and [3, 3] and booleans [3], got "
            f"{', '.join(type(value).__name__ for value in (pos, cell, pbc))} that NumPy does not read: {error}. Pass "
            "arrays, such as `pos.detach().double().numpy()`."
        ) from error
    if periods is None or positions.ndim != 2 or positions.shape[1] != 3 or box.shape != (3, 3):
        raise ShapeError(
            f"pos, cell and pbc must be [A, 3], [3, 3] and [3], got {list(np.shape(pos))}, {list(np.shape(cell))} and "
            f"{list(np.shape(pbc))}. Pass the arrays of one structure."
        )
    largest = np.abs(np.concatenate([positions, box])).max()
    if not largest <= LONGEST:  # true for NaN, too
        raise DataError(
            f"pos and cell must be finite and at most {LONGEST:g} Angstrom, got {largest:g}. Repair the structure."
        )
    used = box[periods]
    if np.linalg.det(used @ used.T) < 1e-12:  # squared length, area or volume; 1 without periods
        raise DataError(
            f"the lattice vectors of periodic directions must span a volume, got {used.tolist()}. Give a cell, or "
            "pbc=False."
        )
    return np.ascontiguousarray(positions), np.ascontiguousarray(np.where(periods[:, None], box, 0.0)), periods
