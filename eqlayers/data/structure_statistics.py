"""Statistics of training structures that a potential needs: energies of atoms, scale of forces, neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase.geometry import minkowski_reduce
from numpy.typing import NDArray

from eqlayers.data.neighbors import StructureEdges, check_edges
from eqlayers.data.splits import check_rows
from eqlayers.data.statistics import regression
from eqlayers.data.structures import StructureArrays, check_structures
from eqlayers.elements import by_element, symbols_of

from ..core.checks import check_choice, check_number
from ..core.errors import ConfigError, DataError

_FREE = 8.0  # Angstrom
_ONE_ATOM = 1e-3  # eV, by which two calculations of one atom may differ
E0S = ("fit", "isolated", "none")


@dataclass(frozen=True)
class StructureStatistics:
    """Statistics of the training part, in float64.

    Attributes:
        species: Atomic numbers in the whole data set, ascending.
        shifts: Energy in eV of an atom of each species.
        scale: Root mean square of the force components in eV/Angstrom; without forces, the standard deviation of the
            energies less the shifts in eV; 1 where that is 0.
        mean_neighbors: Mean number of edges that an atom receives.
        num_train: Number of training structures.
        energy_std: Standard deviation of the energies less the shifts, in eV; NaN without energies.
        labels: Names of the labels that the training part has.
        unique: Whether the energies determine the shifts; a fit to fewer compositions than species does not.
        tensor_scales: Root mean square of the components of dipoles (e Angstrom) and polarizabilities (Angstrom^3) over
            the root of the number of atoms; of those that occur and are not 0.
    """

    species: tuple[int, ...]
    shifts: dict[int, float]
    scale: float
    mean_neighbors: float
    num_train: int
    energy_std: float
    labels: tuple[str, ...]
    unique: bool = True
    tensor_scales: dict[str, float] = field(default_factory=dict)


def read_e0s(e0s: Any) -> str | dict[int, float]:
    """Where the energies of free atoms come from: a name, or energies by atomic number.

    Example:
        >>> read_e0s({"H": -13.6, 8: -2041.0})
        {1: -13.6, 8: -2041.0}
    """
    if not isinstance(e0s, Mapping):
        return check_choice("e0s", e0s, E0S) if isinstance(e0s, str) else _refuse_e0s(e0s)
    return {
        z: check_number(f"e0s of {symbols_of([z])}", value, unit=" of eV", fix="Use the energy of the free atom.")
        for z, value in by_element("e0s", e0s, "energy in eV").items()
    }


def _refuse_e0s(e0s: Any) -> str:
    raise ConfigError(f"e0s must be one of {', '.join(E0S)} or energies by element, got {e0s!r}. Pick one of these.")


def lone_atoms(structures: StructureArrays) -> NDArray[np.bool_]:
    """Which structures are one atom without images within 8 Angstrom, so that it has the energy of a free atom, `[N]`.

    Codes of plane waves compute free atoms in a large periodic box; no crystal has neighbours so far.
    """
    alone = structures.n_atoms == 1
    for row in np.flatnonzero(alone & structures.pbc.any(axis=1)).tolist():
        shortest = np.asarray(minkowski_reduce(structures.cell[row], structures.pbc[row])[0])
        alone[row] = np.linalg.norm(shortest[structures.pbc[row]], axis=1).min() > _FREE
    return alone


def compute_structure_statistics(
    structures: StructureArrays, edges: StructureEdges, train: NDArray[np.int64], e0s: str | Mapping[Any, float] = "fit"
) -> StructureStatistics:
    """Statistics of the training part.

    Args:
        structures: The whole data set.
        edges: Its neighbour lists.
        train: Rows of the training part.
        e0s: Energies of free atoms, which are the shifts: "fit", the least-squares fit of the energies by the numbers
            of atoms of each species, the shortest one where it is not unique; "isolated", the energies of the
            structures with one atom, wherever they are in the data set; "none", zeros; or a mapping from element to eV.

    Returns:
        The statistics.

    Raises:
        DataError: A species has no energy in ``e0s``, or none of its lone atoms has one; no atom has a neighbour.
    """
    check_edges(edges, check_structures(structures))
    train, energies = check_rows("train", train, len(structures)), read_e0s(e0s)
    if not edges.n_edges[train].any():
        raise DataError(
            f"the training part of {structures.source} must have atoms within the cutoff of {edges.cutoff:g} Angstrom "
            "of each other, got none. Raise data.cutoff, or set the unit of positions."
        )
    part, species = structures.take(train), structures.species
    counts, known = part.counts(species), ~np.isnan(part.energy)
    shifts, unique = np.zeros(len(species)), True
    if energies == "isolated":
        energies = _isolated(structures)
    if isinstance(energies, dict):
        missing = [number for number in species if number not in energies]
        if missing:
            raise DataError(
                f"e0s must give an energy to every species of {structures.source}, got none for "
                f'{symbols_of(missing)}. Add them, or use e0s="fit".'
            )
        shifts = np.array([energies[number] for number in species])
    elif energies == "fit" and known.any():
        shifts = regression(counts[known], part.energy[known], intercept=False)
        unique = bool(np.linalg.matrix_rank(counts[known]) == len(species))
    residual = (part.energy - counts @ shifts)[known]
    energy_std = float(residual.std()) if known.any() else float("nan")
    forces = part.forces[~np.isnan(part.forces[:, 0])]
    scale = float(np.sqrt(np.square(forces).mean())) if len(forces) else energy_std
    smallest = 1e-12 * max(1.0, float(np.abs(part.energy[known]).max(initial=0.0)))  # less is rounding
    return StructureStatistics(
        species=species,
        shifts={number: float(value) for number, value in zip(species, shifts, strict=True)},
        scale=scale if scale > smallest else 1.0,
        mean_neighbors=float(edges.n_edges[train].sum() / part.n_atoms.sum()),
        num_train=len(train),
        energy_std=energy_std,
        labels=part.labels,
        unique=unique,
        tensor_scales=_tensor_scales(part),
    )


def _tensor_scales(part: StructureArrays) -> dict[str, float]:
    """Root mean square of a component over the root of the number of atoms."""
    scales = {}
    for name in ("dipole", "polarizability"):
        values = getattr(part, name).reshape(len(part), -1)
        squares = np.square(values).mean(axis=1) / part.n_atoms
        scales[name] = float(np.sqrt(squares[~np.isnan(squares)].mean())) if name in part.labels else 0.0
    return {name: scale for name, scale in scales.items() if scale > 1e-12}


def _isolated(structures: StructureArrays) -> dict[int, float]:
    """Energy of the lone atom of every species that has one; the mean of several."""
    lone = np.flatnonzero(lone_atoms(structures) & ~np.isnan(structures.energy))
    numbers = structures.z[structures.starts[lone]]
    for number in np.unique(numbers).tolist():
        values = structures.energy[lone[numbers == number]]
        if np.ptp(values) > _ONE_ATOM:
            raise DataError(
                f"lone atoms of a species must have one energy, got {values.min():.6f} to {values.max():.6f} eV for "
                f"{len(values)} of {symbols_of([number])} in {structures.source}: other spins, charges or "
                f"settings. Keep one of them, or set e0s={{'{symbols_of([number])}': ...}}."
            )
    return {int(number): float(structures.energy[lone[numbers == number]].mean()) for number in np.unique(numbers)}
