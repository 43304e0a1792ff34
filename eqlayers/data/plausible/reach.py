"""Atoms without neighbours."""

from __future__ import annotations

import numpy as np

from eqlayers.data.neighbors import StructureEdges, check_edges
from eqlayers.data.structures import StructureArrays, check_structures


def check_reach(structures: StructureArrays, edges: StructureEdges) -> list[str]:
    """Say which atoms have no neighbour, in structures of more than one."""
    check_edges(edges, check_structures(structures))
    first = np.repeat(structures.starts, edges.n_edges)
    received = np.bincount(first + edges.local[1], minlength=len(structures.z))
    lonely = (received == 0) & (np.repeat(structures.n_atoms, structures.n_atoms) > 1)
    if not lonely.any():
        return []
    rows = np.unique(structures.row_of_atom[lonely])
    return [
        f"{int(lonely.sum())} atoms in {len(rows)} structures, the first in row {structures.idx[rows[0]]}, have no "
        f"neighbour within {edges.cutoff:g} Angstrom, so that their forces are 0: raise the cutoff, or look at the "
        "unit of positions"
    ]
