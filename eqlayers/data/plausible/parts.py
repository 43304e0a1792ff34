"""Checks of data splits: copies, species missing in training, missing labels; and of atoms without neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from eqlayers.atoms.elements import symbols_of
from eqlayers.data.neighbors import Edges, check_edges
from eqlayers.data.plausible.pair_model import IntArray
from eqlayers.data.plausible.rows import BOUND, forces_of, named
from eqlayers.data.structures import StructureArrays, check_structures

from ...core.errors import DataError


def check_parts(structures: StructureArrays, rows: Mapping[str, IntArray]) -> list[str]:
    """Messages about copies, species that training lacks, and missing labels in the parts of a split."""
    train = check_structures(structures).take(rows["train"])
    if not {"energy", "forces", "dipole", "polarizability", "y"} & set(train.labels):
        raise DataError(
            f"the training part of {structures.source} must have energies, forces, dipoles or polarizabilities, got "
            f"labels {list(train.labels)}. Name them with keys={{'energy': 'my_energy'}}."
        )
    messages = list(_missing(structures))
    first: dict[int, int] = {}
    copies = []
    for row, content in zip(rows["train"].tolist(), train.identities.tolist(), strict=True):
        if first.setdefault(content, row) != row:
            copies.append(row)
    if copies:
        messages.append(
            f"{len(copies)} of {len(train)} training structures are copies of others among them, to 0.0001 Angstrom: "
            f"{named(structures, np.array(copies))}. Remove them, or their weight is doubled"
        )
    for name in ("val", "test"):
        if len(rows[name]) == 0:
            continue
        part = structures.take(rows[name])
        keys = part.identities.tolist()
        pairs = [(row, first[key]) for row, key in zip(rows[name], keys, strict=True) if key in first]
        if pairs:
            theirs, ours = (np.array(column) for column in zip(*pairs, strict=True))
            messages.append(
                f"{len(pairs)} of {len(part)} {name} structures are in the training part as well, to 0.0001 Angstrom: "
                f"{named(structures, theirs)} as {named(structures, ours)}. Errors on them say nothing of new ones"
            )
        unknown = [number for number in part.species if number not in train.species]
        if unknown:
            messages.append(
                f"species {symbols_of(unknown)} are in the {name} part but in none of the {len(train)} training "
                "structures: predictions for them mean nothing"
            )
    return messages


def _missing(structures: StructureArrays) -> Iterator[str]:
    """Yield messages about labels that less than half of the structures lack, in files that have the label."""
    of_atoms = structures.count(~np.isnan(structures.forces[:, 0])) == 0  # forces of held atoms may be missing
    for label, absent in (("energy", np.isnan(structures.energy)), ("forces", of_atoms)):
        rows = np.flatnonzero(absent & (structures.n_atoms > 1) & np.isin(structures.file, structures.file[~absent]))
        if 0 < 2 * len(rows) < len(structures):
            yield f"{label} of {len(rows)} structures are NaN or missing: {named(structures, rows)}"


def check_shifts(structures: StructureArrays, shifts: Mapping[int, float]) -> list[str]:
    """Message if energies of free atoms (e0s) are inconsistent with the energies of structures."""
    atoms = np.bincount(structures.row_of_atom, [shifts.get(number, 0.0) for number in structures.z.tolist()])
    left = ((structures.energy - atoms) / structures.n_atoms)[structures.n_atoms > 1]
    known, forces = ~np.isnan(left), np.nan_to_num(forces_of(structures))
    if not known.any() or abs(middle := float(np.median(left[known]))) < BOUND + 3.0 * float(np.median(forces)):
        return []
    return [
        f"energies less the energies of free atoms (e0s) are {middle:+.4g} eV per atom in the median, where bonds "
        "give -9 to 0: e0s are of another method, or in another unit, than the energies. Set e0s: fit, or "
        "compute both alike"
    ]


def check_reach(structures: StructureArrays, edges: Edges) -> list[str]:
    """Message about atoms without neighbours in structures of several atoms."""
    check_edges(edges, check_structures(structures))
    first = np.repeat(structures.starts, edges.n_edges)
    received = np.bincount(first + edges.local[1], minlength=len(structures.z))
    lonely = (received == 0) & (np.repeat(structures.n_atoms, structures.n_atoms) > 1)
    if not lonely.any():
        return []
    rows = np.unique(structures.row_of_atom[lonely])
    return [
        f"{int(lonely.sum())} atoms in {len(rows)} structures, {named(structures, rows)}, have no "
        f"neighbour within {edges.cutoff:g} Angstrom, so that their forces are 0: raise the cutoff, or look at the "
        "unit of positions"
    ]
