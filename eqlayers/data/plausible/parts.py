"""Mistakes in the parts of a split, copies, unknown species, labels that are missing; and atoms without neighbours."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.neighbors import StructureEdges, check_edges
from eqlayers.data.structures import StructureArrays, check_structures
from eqlayers.elements import symbols_of

from ...core.errors import DataError

IntArray = NDArray[np.int64]


def check_parts(structures: StructureArrays, rows: Mapping[str, IntArray]) -> list[str]:
    """Search the parts of a split for copies, unknown species and labels that are not there."""
    train = check_structures(structures).take(rows["train"])
    if not {"energy", "forces", "dipole", "polarizability", "y"} & set(train.labels):
        raise DataError(
            f"the training part of {structures.source} must have energies, forces, dipoles or polarizabilities, got "
            f"labels {list(train.labels)}. Name them with keys={{'energy': 'my_energy'}}."
        )
    said, seen = [], train.identities.tolist()
    copies = len(seen) - len(set(seen))
    if copies:
        said.append(
            f"{copies} of {len(seen)} training structures are copies of others among them, to 0.0001 Angstrom: remove "
            "them, or their weight is doubled"
        )
    for name in ("val", "test"):
        if len(rows[name]) == 0:
            continue
        part = structures.take(rows[name])
        shared = sum(content in set(seen) for content in part.identities.tolist()) if seen else 0
        if shared:
            said.append(
                f"{shared} of {len(part)} {name} structures are in the training part as well, to 0.0001 Angstrom: "
                "errors on them say nothing of new structures"
            )
        unknown = [number for number in part.species if number not in train.species]
        if unknown:
            said.append(
                f"species {symbols_of(unknown)} are in the {name} part but in none of the {len(train)} training "
                "structures: predictions for them mean nothing"
            )
    return said


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
