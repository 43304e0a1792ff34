"""Neighbour lists with periods in any of three directions, by vesin's cell lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vesin import NeighborList

from .checks import check_number
from .errors import DataError, ShapeError

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
        ShapeError: The arrays have other shapes.
        DataError: Numbers that are not finite, a periodic cell without volume, or atoms at one place.
        ConfigError: The cutoff is not positive and finite.

    Example:
        >>> edge_index, shifts = neighbor_list([[0.0, 0.0, 0.0]], 3.0 * np.eye(3), [True, False, False], cutoff=4.0)
        >>> edge_index.tolist(), shifts.tolist()
        ([[0, 0], [0, 0]], [[-1, 0, 0], [1, 0, 0]])
    """
    cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom", fix="Common values are 4 to 6.")
    places, box, periods = _read(pos, cell, pbc)
    search = NeighborList(cutoff=cutoff * _WIDER, full_list=True, n_threads=torch.get_num_threads())
    src, dst, shifts = search.compute(places, box, periods, quantities="ijS") if len(places) else _NOTHING
    src, dst, shifts = src.astype(np.int64), dst.astype(np.int64), shifts.reshape(-1, 3).astype(np.int64)
    # The formula of a model decides at the cutoff, not the rounding of a search that wraps atoms into the cell first.
    square = np.square(places[dst] - places[src] + shifts @ box).sum(axis=1)
    if bool((square == 0).any()):
        pair = int(np.flatnonzero(square == 0)[0])
        raise DataError(
            f"{name} must be at distinct places, got {src[pair]} and {dst[pair]} at the same one. Repair the structure."
        )
    low, wide = shifts.min(axis=0, initial=0), np.ptp(shifts, axis=0) + 1 if len(shifts) else np.ones(3, np.int64)
    key = dst * len(places) + src
    for axis in range(3):
        key = key * wide[axis] + (shifts[:, axis] - low[axis])
    order = np.argsort(key, kind="stable")
    order = order[square[order] < cutoff**2]
    return np.stack([src[order], dst[order]]), shifts[order]


def folded(
    pos: NDArray[np.float64], cell: NDArray[np.float64], pbc: NDArray[np.bool_], n_atoms: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Positions around the centre of each structure, each atom by its image there.

    In float32 an atom at 1000 Angstrom has a place to 6e-5 only: far from the origin, or unwrapped in a long run.

    Args:
        pos: Positions in Angstrom of structures one after the other, `[A, 3]`.
        cell: Cells with a volume, `[N, 3, 3]`.
        pbc: Whether each lattice vector is a period, `[N, 3]`.
        n_atoms: Number of atoms of each structure, `[N]`.

    Returns:
        The positions `[A, 3]`, and how many lattice vectors each was moved back by `[A, 3]` int64: the shift of an edge
        grows by those of the receiver and falls by those of the sender.

    Example:
        >>> pos = np.array([[-1.0, 0.0, 0.0], [301.0, 0.0, 0.0]])
        >>> [found.tolist() for found in folded(pos, 10.0 * np.eye(3)[None], np.array([[True] * 3]), np.array([2]))]
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
    return placed, moved.astype(np.int64)


_WIDER = 1 + 1e-9
_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 3), np.int64))


def _read(pos: Any, cell: Any, pbc: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Positions, cell and periods as arrays of known shapes."""
    periods = np.broadcast_to(np.asarray(pbc, dtype=bool), (3,)) if np.shape(pbc) in ((), (3,)) else None
    try:
        places = np.asarray(pos, dtype=np.float64).reshape(-1, 3) if len(pos) == 0 else np.asarray(pos, np.float64)
        box = np.zeros((3, 3)) if cell is None else np.asarray(cell, dtype=np.float64)
    except (TypeError, ValueError):
        places = box = np.empty(0)
    if periods is None or places.ndim != 2 or places.shape[1] != 3 or box.shape != (3, 3):
        raise ShapeError(
            f"pos, cell and pbc must be [A, 3], [3, 3] and [3], got {list(np.shape(pos))}, {list(np.shape(cell))} and "
            f"{list(np.shape(pbc))}. Pass those of one structure."
        )
    if not (np.isfinite(places).all() and np.isfinite(box).all()):
        raise DataError("pos and cell must be finite, got NaN or infinity. Repair the structure.")
    used = box[periods]
    if np.linalg.det(used @ used.T) < 1e-12:  # squared length, area or volume; 1 without periods
        raise DataError(
            f"the lattice vectors of periodic directions must span a volume, got {used.tolist()}. Give a cell, or "
            "pbc=False."
        )
    return np.ascontiguousarray(places), np.ascontiguousarray(np.where(periods[:, None], box, 0.0)), periods
