"""Neighbour lists of molecules and of data sets, from a cache, each structure by :mod:`eqlayers.atoms.periodic`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eqlayers.atoms.periodic import LONGEST, molecule_neighbors, structure_neighbors
from eqlayers.data.cache import cached_arrays, content_key
from eqlayers.data.structures import (
    FlatArrays,
    MoleculeArrays,
    StructureArrays,
    check_molecules,
    check_structures,
)
from eqlayers.hints.keywords import named_arguments

from ..core.checks import check_floating, check_number, check_path, check_tensor, check_type, got
from ..core.errors import DataError, DTypeError, ShapeError

# parts of every key: changing what a cache holds makes old ones stale
_FORMATS = {False: "neighbors-1", True: "structure-neighbors-1"}


@dataclass(frozen=True)
class Edges:
    """Neighbour lists of all molecules, with atoms counted from 0 in each.

    Attributes:
        local: Rows (src, dst), `[2, E]`, in the smallest integer type that holds them.
        n_edges: Edges of every molecule, `[N]` int64.
    """

    local: NDArray[Any]
    n_edges: NDArray[np.int64]


@dataclass(frozen=True)
class StructureEdges(Edges):
    """Neighbour lists of all structures, with atoms counted from 0 in each.

    Attributes:
        local: Rows (src, dst), `[2, E]`, int32.
        n_edges: Edges of every structure, `[N]` int64.
        cutoff: Distance in Angstrom.
        shifts: Lattice vectors that the receiver is moved by, `[E, 3]` int16.
    """

    cutoff: float
    shifts: NDArray[np.int16]


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
    arrays = edges_of(check_structures(structures), cutoff, cache)
    return StructureEdges(**arrays, cutoff=float(cutoff))


def edges_of(data: FlatArrays, cutoff: float, cache: str | Path | None) -> dict[str, NDArray[Any]]:
    """Arrays of :class:`Edges`, or of :class:`StructureEdges` where the data have cells."""
    cutoff = check_cutoff(cutoff)
    folder = None if cache is None else Path(check_path("cache", cache, "a folder, or None"))
    cells = (data.cell, data.pbc) if isinstance(data, StructureArrays) else ()
    kind = np.int32 if cells or data.n_atoms.max() > 256 else np.uint8

    def build() -> dict[str, NDArray[Any]]:
        if cells:
            return _periodic_edges(data, *cells, cutoff)
        pairs, coincide = molecule_neighbors(data.pos, data.n_atoms, cutoff)
        rows = data.row_of_atom
        data.refuse("atoms at distinct places", np.unique(rows[coincide]))
        of_pairs = rows[pairs[1]]
        local = (pairs - data.starts[of_pairs]).astype(kind)
        return {"local": local, "n_edges": np.bincount(of_pairs, minlength=len(data)).astype(np.int64)}

    def problem(arrays: Mapping[str, NDArray[Any]]) -> str | None:
        shapes = {name: arrays[name].shape for name in ("local", "n_edges", *(["shifts"] if cells else []))}
        edges = int(arrays["n_edges"].sum())
        wanted = {"local": (2, edges), "n_edges": data.n_atoms.shape, "shifts": (edges, 3)}
        if any(shape != wanted[name] for name, shape in shapes.items()) or arrays["local"].dtype != kind:
            return "its arrays do not fit the data"
        local, most = arrays["local"], np.repeat(data.n_atoms, arrays["n_edges"])
        return f"an edge points outside its {data.one}" if ((local >= most) | (local < 0)).any() else None

    if folder is None:
        return build()
    key = content_key(_FORMATS[bool(cells)], cutoff, data.n_atoms, data.pos, *cells)
    # Files of users have no folder of their own in the cache: the name tells them apart.
    name = f"structures-{cutoff:g}A-{key[:12]}" if cells else f"neighbors-{cutoff:g}A"
    return cached_arrays(folder / f"{name}.npz", key, build, problem)


def _periodic_edges(
    data: FlatArrays, cell: NDArray[np.float64], pbc: NDArray[np.bool_], cutoff: float
) -> dict[str, NDArray[Any]]:
    pairs, shifts, coincide, far = [], [], [], []
    n_edges, row_of_atom = np.zeros(len(data), np.int64), data.row_of_atom
    for rows, edges, moved, same in structure_neighbors(data.pos, data.n_atoms, cell, pbc, np.full(len(data), cutoff)):
        of_edges = row_of_atom[edges[1]]
        n_edges[rows] = np.bincount(of_edges - rows[0], minlength=len(rows))
        pairs.append((edges - data.starts[of_edges]).astype(np.int32))
        shifts.append(moved.astype(np.int16))
        coincide += same
        if (shifts[-1] != moved).any():
            far += rows.tolist()
    data.refuse("atoms at distinct places", coincide)
    data.refuse("atoms within 32,767 lattice vectors", far)
    return {"local": np.concatenate(pairs, axis=1), "shifts": np.concatenate(shifts), "n_edges": n_edges}


def check_edges(edges: Any, data: FlatArrays) -> Any:
    """Return ``edges`` if they are the neighbour lists of ``data``."""
    of_cells = isinstance(data, StructureArrays)
    kind, maker = (StructureEdges, "structure_edges") if of_cells else (Edges, "neighbor_edges")
    check_type("edges", edges, kind, f"neighbour lists ({kind.__name__})", f"Take them from {maker}.")
    shapes = [np.shape(getattr(edges, name)) for name in ("n_edges", "local", *(["shifts"] if of_cells else []))]
    total = int(np.sum(edges.n_edges)) if shapes[0] == (len(data),) else -1
    if shapes[1:] != [(2, total), (total, 3)][: len(shapes) - 1]:
        raise ShapeError(
            f"edges must belong to the {len(data)} {data.one}s, got arrays of the shapes {list(map(list, shapes))}. "
            f"Make them anew with {maker}."
        )
    return edges


def check_cutoff(cutoff: float) -> float:
    """Return `cutoff` as a float, or raise ConfigError unless it is positive and at most `LONGEST`."""
    fix = "Common values are 4 to 6."
    return check_number("cutoff", cutoff, above=0, at_most=LONGEST, unit=" of Angstrom", fix=fix)


@named_arguments
def radius_graph(pos: Tensor, cutoff: float, n_atoms: Tensor | None = None) -> Tensor:
    """All ordered pairs of atoms of the same molecule that are closer than a cutoff.

    Distances are evaluated in float64, on the CPU, whatever the dtype and the device of `pos`, so the list does not
    depend on the device or on the order of the atoms.

    Args:
        pos: Positions in Angstrom, `[A, 3]`, molecule after molecule.
        cutoff: Distance in Angstrom; a pair at exactly this distance is not an edge.
        n_atoms: Number of atoms of every molecule, `[G]`, summing to A; one molecule if None.

    Returns:
        `edge_index` `[2, E]` int64, rows (src, dst): dst receives from src. Both directions, no self loops, sorted by
        dst and then by src.

    Raises:
        ShapeError: If `pos` is not `[A, 3]` or `n_atoms` does not sum to A.
        ConfigError: If the cutoff is not positive and finite.
        DataError: If a position is not finite, or two atoms coincide.

    Example:
        >>> water = torch.tensor([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
        >>> radius_graph(water, cutoff=1.2).tolist()
        [[1, 2, 0, 0], [0, 0, 1, 2]]
    """
    cutoff = check_cutoff(cutoff)
    check_floating("pos", pos, "[A, 3]")
    if pos.dim() != 2 or pos.shape[1] != 3:
        raise ShapeError(f"pos must be [A, 3], got {list(pos.shape)}. Pass one row of x, y, z per atom.")
    if n_atoms is None:
        n_atoms = torch.tensor([len(pos)], device=pos.device)
    if check_tensor("n_atoms", n_atoms, "[G]").is_floating_point() or n_atoms.dtype == torch.bool:
        raise DTypeError(f"n_atoms must be integers [G], got {got(n_atoms)}. Convert it with `.long()`.")
    if n_atoms.dim() != 1 or bool((n_atoms < 0).any()) or int(n_atoms.sum()) != len(pos):
        raise ShapeError(
            f"n_atoms must be [G], none negative, summing to the {len(pos)} rows of pos, got {list(n_atoms.shape)} "
            f"summing to {int(n_atoms.sum())}. Pass the number of atoms of every molecule."
        )
    bad = ~torch.isfinite(pos).all(dim=1)
    if bool(bad.any()):
        raise DataError(
            f"pos: expected finite positions; {int(bad.sum())} atoms have NaN or inf, the first in row "
            f"{int(bad.nonzero()[0])}; remove or repair these molecules"
        )
    sizes = n_atoms.cpu().numpy().astype(np.int64)
    pairs, coincide = molecule_neighbors(pos.detach().cpu().double().numpy(), sizes, cutoff)
    if len(coincide):
        starts = np.cumsum(sizes) - sizes
        raise DataError(
            f"pos: expected atoms at distinct places; two atoms coincide in the molecule that starts at row "
            f"{starts[starts <= coincide.min()].max()}; repair its geometry"
        )
    return torch.from_numpy(pairs).to(pos.device)
