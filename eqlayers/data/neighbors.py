"""Neighbour lists of data sets, from a cache, each structure by :mod:`eqlayers.atoms.periodic`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eqlayers.atoms.periodic import check_cutoff, molecule_neighbors, structure_neighbors
from eqlayers.data.cache import cached_arrays, content_key
from eqlayers.data.structures import StructureArrays, check_structures
from eqlayers.hints.names import named_arguments

from ..core.checks import check_floating, check_path, check_tensor, check_type, got
from ..core.errors import DataError, DTypeError, ShapeError

_FORMAT = "edges-1"  # part of every key: changing what a cache holds makes old ones stale


@dataclass(frozen=True)
class Edges:
    """Neighbour lists of all structures, with atoms counted from 0 in each.

    Attributes:
        local: Rows (src, dst), `[2, E]`, in the smallest integer type that holds them.
        n_edges: Edges of every structure, `[N]` int64.
        cutoff: Distance in Angstrom.
        shifts: Lattice vectors that the receiver is moved by, `[E, 3]` int16; None where no structure is periodic.
    """

    local: NDArray[Any]
    n_edges: NDArray[np.int64]
    cutoff: float
    shifts: NDArray[np.int16] | None = None


def structure_edges(structures: StructureArrays, cutoff: float, cache: str | Path | None = None) -> Edges:
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
    periodic, dtype = bool(data.pbc.any()), np.uint8 if data.n_atoms.max() <= 256 else np.int32

    def build() -> dict[str, NDArray[Any]]:
        pairs, shifts = list[NDArray[Any]](), list[NDArray[np.int16]]()
        coincide, far = list[int](), list[int]()
        n_edges, row_of_atom = np.zeros(len(data), np.int64), data.row_of_atom
        pos, cutoffs = data.pos.astype(np.float64, copy=False), np.full(len(data), cutoff)
        for rows, edges, moved, same in structure_neighbors(pos, data.n_atoms, data.cell, data.pbc, cutoffs):
            of_edges = row_of_atom[edges[1]]
            n_edges[rows] = np.bincount(of_edges - rows[0], minlength=len(rows))
            pairs.append((edges - data.starts[of_edges]).astype(dtype))
            coincide += same
            if periodic:
                shifts.append(moved.astype(np.int16))
                far += rows.tolist() if (shifts[-1] != moved).any() else []
        data.refuse("atoms at distinct places", coincide)
        data.refuse("atoms within 32,767 lattice vectors", far)
        arrays = {"local": np.concatenate(pairs, axis=1), "n_edges": n_edges}
        return arrays | ({"shifts": np.concatenate(shifts)} if periodic else {})

    def problem(arrays: Mapping[str, NDArray[Any]]) -> str | None:
        local, n_edges, most = arrays["local"], arrays["n_edges"], data.n_atoms
        shapes = [local.shape, n_edges.shape, *([arrays["shifts"].shape] if periodic else [])]
        edges = int(n_edges.sum())
        if shapes != [(2, edges), data.n_atoms.shape, (edges, 3)][: len(shapes)] or local.dtype != dtype:
            return "its arrays do not fit the data"
        outside = (local >= np.repeat(most, n_edges)) | (local < 0)
        return "an edge points outside its structure" if outside.any() else None

    if folder is None:
        return Edges(**build(), cutoff=cutoff)
    cells = (data.cell, data.pbc) if periodic else ()
    key = content_key(_FORMAT, cutoff, data.n_atoms, data.pos, *cells)
    # files of users have no folder of their own in the cache: the key in the name tells them apart
    return Edges(**cached_arrays(folder / f"edges-{cutoff:g}A-{key[:12]}.npz", key, build, problem), cutoff=cutoff)


def check_edges(edges: Any, structures: StructureArrays) -> Edges:
    """Return ``edges`` if they are the neighbour lists of ``structures``."""
    check_type("edges", edges, Edges, "neighbour lists (Edges)", "Take them from structure_edges.")
    shapes = [np.shape(edges.n_edges), np.shape(edges.local)]
    total = int(np.sum(edges.n_edges)) if shapes[0] == (len(structures),) else -1
    shapes += [np.shape(edges.shifts)] if structures.pbc.any() else []
    if shapes[1:] != [(2, total), (total, 3)][: len(shapes) - 1]:
        raise ShapeError(
            f"edges must belong to the {len(structures)} structures, got arrays of the shapes "
            f"{list(map(list, shapes))}. Make them anew with structure_edges."
        )
    return edges


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
