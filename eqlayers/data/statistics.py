"""Statistics of the training part: shifts by species, scale, mean number of neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase.geometry import minkowski_reduce

from eqlayers.atoms.elements import by_element, symbols_of
from eqlayers.atoms.periodic import BoolArray, FloatArray, IntArray
from eqlayers.data.neighbors import Edges, check_edges
from eqlayers.data.qm9 import Target, check_target
from eqlayers.data.splits import check_rows
from eqlayers.data.structures import StructureArrays, check_names, check_structures

from ..core.checks import check_choice, check_number
from ..core.errors import ConfigError, DataError

_FREE = 8.0  # Angstrom
_ONE_ATOM = 1e-3  # eV, by which two calculations of one atom may differ
E0S = ("fit", "isolated", "none")


@dataclass(frozen=True)
class Statistics:
    """Statistics of the training part that a model needs, in float64.

    They are of the energies, or of a property ``y`` in its own unit.

    Attributes:
        species: Atomic numbers in the whole data set, ascending.
        shifts: Energy in eV (or other extensive value) of an atom of each species; zeros for an intensive property.
        scale: Root mean square of the force components in eV/Angstrom; without forces, and of a property, the standard
            deviation of the labels less the shifts; 1 where that is 0.
        mean_neighbors: Mean number of edges that an atom receives.
        num_train: Number of training structures.
        residual_std: Standard deviation of the labels less the shifts; NaN without labels.
        mean: Mean label; NaN without labels.
        std: Standard deviation of the labels; NaN without labels.
        labels: Names of the labels that the training part has.
        unique: Whether the labels determine the fitted shifts; fewer compositions than species do not.
        fitted: Species whose shifts are fitted, as no energy of a free atom is known.
        tensor_scales: Root mean square of the components of dipoles (e Angstrom) and polarizabilities (Angstrom^3) over
            the root of the number of atoms; of those that occur and are not 0.
        auxiliary: Shifts by species and scale of each further label.
    """

    species: tuple[int, ...]
    shifts: dict[int, float]
    scale: float
    mean_neighbors: float
    num_train: int
    residual_std: float
    mean: float
    std: float
    labels: tuple[str, ...]
    unique: bool = True
    fitted: tuple[int, ...] = ()
    tensor_scales: dict[str, float] = field(default_factory=dict)
    auxiliary: dict[str, tuple[dict[int, float], float]] = field(default_factory=dict)


def regression(counts: IntArray, y: FloatArray, intercept: bool) -> FloatArray:
    """Least-squares coefficients of the numbers of atoms (and of 1); the shortest solution if they are not unique."""
    columns = np.concatenate([counts, np.ones((len(counts), int(intercept)))], axis=1)
    return np.asarray(np.linalg.lstsq(columns, y, rcond=None)[0])


def read_e0s(e0s: Any) -> str | dict[int, float]:
    """The source of the energies of free atoms: a name, or energies by atomic number."""
    if isinstance(e0s, str):
        return check_choice("e0s", e0s, E0S)
    if not isinstance(e0s, Mapping):
        raise ConfigError(
            f"e0s must be one of {', '.join(E0S)} or energies by element, got {e0s!r}. Pick one of these."
        )
    energies, fix = by_element("e0s", e0s, "energy in eV"), "Use the energy of the free atom."
    return {z: check_number(f"e0s of {symbols_of([z])}", e, unit=" of eV", fix=fix) for z, e in energies.items()}


def lone_atoms(structures: StructureArrays) -> BoolArray:
    """Whether a structure is one atom without images within 8 Angstrom, with the energy of a free atom, `[N]`.

    Codes of plane waves compute free atoms in a large periodic box; no crystal has neighbours so far.
    """
    alone = structures.n_atoms == 1
    for row in np.flatnonzero(alone & structures.pbc.any(axis=1)).tolist():
        shortest = np.asarray(minkowski_reduce(structures.cell[row], structures.pbc[row])[0])
        alone[row] = np.linalg.norm(shortest[structures.pbc[row]], axis=1).min() > _FREE
    return alone


def without_training(structures: StructureArrays) -> BoolArray:
    """Whether a structure is a lone atom whose labels no training changes, `[N]`: its energy is the shift.

    A polarizability of a free atom can be learned; a structure that has it and no energy is another one.
    """
    learned = np.isnan(structures.energy) & ~np.isnan(structures.polarizability[:, 0, 0])
    return lone_atoms(structures) & ~learned


def compute_statistics(
    structures: StructureArrays,
    edges: Edges,
    train: IntArray,
    e0s: str | Mapping[Any, float] = "fit",
    target: Target | None = None,
    sum_of: Sequence[str] = (),
) -> Statistics:
    """Statistics of the training part.

    Args:
        structures: The whole data set.
        edges: Its neighbour lists.
        train: Rows of the training part.
        e0s: Energies of free atoms, which are the shifts: "fit", the least-squares fit of the energies by the numbers
            of atoms of each species, the shortest one where it is not unique; "isolated", the energies of the
            structures with one atom, wherever they are in the data set; "none", zeros; or a mapping from element to eV.
            Species that have no such structure, or are not in the mapping, are fitted to what is left of the energies.
        target: The property ``y`` in place of energies; an intensive one has no shifts, whatever ``e0s`` says.
        sum_of: Further labels whose sum the target is, and which have its scale.

    Returns:
        The statistics.

    Raises:
        DataError: No species has an energy in ``e0s`` or a lone atom with one, or some have none and the training part
            has no energies to fit them to; no atom has a neighbour.
    """
    check_edges(edges, check_structures(structures))
    train, energies = check_rows("train", train, len(structures)), read_e0s(e0s)
    if target is not None and not check_target(target).extensive:
        energies = "none"
    if not edges.n_edges[train].any():
        raise DataError(
            f"the training part of {structures.source} must have atoms within the cutoff of {edges.cutoff:g} Angstrom "
            "of each other, got none. Raise data.cutoff, or set the unit of positions."
        )
    part, species = structures.take(train), structures.species
    values = part.energy if target is None else part.y
    known = ~np.isnan(values)
    counts, values = part.counts(species)[known], values[known]
    free = {"fit": {}, "none": dict.fromkeys(species, 0.0)}.get(energies) if isinstance(energies, str) else energies
    free = _isolated(structures) if free is None else free
    lacking = np.array([number not in free for number in species])
    fitted = tuple(number for number in species if number not in free)
    if energies != "fit" and fitted and not (set(free) & set(species) and len(values)):
        raise DataError(
            f"e0s must give an energy to every species of {structures.source}, or to some of them where the training "
            f'part has energies to fit the others to, got none for {symbols_of(fitted)}. Add them, or use e0s="fit".'
        )
    shifts = np.array([free.get(number, 0.0) for number in species])
    if fitted and len(values):
        shifts[lacking] = regression(counts[:, lacking], values - counts @ shifts, intercept=False)
    rest = values - counts @ shifts
    residual_std, mean, std = (rest.std(), values.mean(), values.std()) if len(values) else (np.nan,) * 3
    forces = part.forces[~np.isnan(part.forces[:, 0])]
    scale = float(np.sqrt(np.square(forces).mean())) if len(forces) and target is None else float(residual_std)
    rounding = 1e-12 * max(1.0, float(np.abs(values).max(initial=0.0)))
    scale = scale if scale > rounding else 1.0
    further = {name: _of_auxiliary(part, name, species) for name in part.auxiliary}
    return Statistics(
        species=species,
        shifts={number: float(value) for number, value in zip(species, shifts, strict=True)},
        scale=scale,
        mean_neighbors=float(edges.n_edges[train].sum() / part.n_atoms.sum()),
        num_train=len(train),
        residual_std=float(residual_std),
        mean=float(mean),
        std=float(std),
        labels=part.labels,
        unique=not len(values) or bool(np.linalg.matrix_rank(counts[:, lacking]) == len(fitted)),
        fitted=fitted,
        tensor_scales=_tensor_scales(part),
        auxiliary=further | {name: (further[name][0], scale) for name in check_names("sum_of", sum_of, further)},
    )


def _of_auxiliary(part: StructureArrays, name: str, species: tuple[int, ...]) -> tuple[dict[int, float], float]:
    """Shifts by species (means of atoms, regressions of sums, the mean of means) and the deviation of the rest."""
    label, pooling, values = part.auxiliary[name]
    known = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not known.any():
        raise DataError(
            f"the training part of {part.source} must have {name} of a structure, got none. Leave {name} out of "
            "data.auxiliary, or correct the name."
        )
    if pooling == "vector":
        return dict.fromkeys(species, 0.0), float(np.sqrt(np.square(values[known]).mean())) or 1.0
    if label.axis == "A":
        columns = part.z[:, None] == np.array(species)
    else:
        columns = part.counts(species) if pooling == "sum" else part.counts(species) / part.n_atoms[:, None]
    columns, values = columns[known].astype(np.float64), values[known]
    shifts = np.full(len(species), values.mean()) if pooling == "mean" else regression(columns, values, intercept=False)
    scale = float((values - columns @ shifts).std())
    rounding = 1e-12 * max(1.0, float(np.abs(values).max()))
    return dict(zip(species, shifts.tolist(), strict=True)), scale if scale > rounding else 1.0


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
