"""Mistakes of some frames, of the order of labels, and of numbers that were not computed; and their words."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from eqlayers.data.structures import StructureArrays

from .sets import shuffled, stored, trajectory

_VOIGT = ((1, 2), (0, 2), (0, 1))


@dataclass(frozen=True)
class Defect:
    """A mistake that is no factor of all labels.

    Attributes:
        name: For tables.
        made: The structures with the mistake.
        said: Words that one of the sentences must have.
        sets: Names of sets that it is made in.
    """

    name: str
    made: Callable[[StructureArrays], StructureArrays]
    said: str
    sets: tuple[str, ...]


def rows_times(label: str, factor: float, number: int | None) -> Callable[[StructureArrays], StructureArrays]:
    """The labels of so many structures, or of every other one, times a factor."""

    def made(structures: StructureArrays) -> StructureArrays:
        rows = bad_rows(structures, number)
        which = np.isin(structures.row_of_atom if label in ("forces", "pos") else np.arange(len(structures)), rows)
        values = getattr(structures, label)
        return replace(
            structures, **{label: np.where(which.reshape(-1, *[1] * (values.ndim - 1)), factor, 1.0) * values}
        )

    return made


def bad_rows(structures: StructureArrays, number: int | None) -> np.ndarray:
    """So many rows all over the set, or every other one."""
    if number is None:
        return np.arange(0, len(structures), 2)
    if number > len(structures):
        return np.arange(len(structures))
    return np.linspace(3, len(structures) - 2, number).astype(int)


def per_atom(structures: StructureArrays) -> StructureArrays:
    """Energies over the number of atoms."""
    return replace(structures, energy=structures.energy / structures.n_atoms)


def zero_energies(structures: StructureArrays) -> StructureArrays:
    """Every other energy is 0."""
    return rows_times("energy", 0.0, None)(structures)


def method(size: float, number: int | None) -> Callable[[StructureArrays], StructureArrays]:
    """Energies of some structures of another method: another energy of each atom, some eV."""

    def made(structures: StructureArrays) -> StructureArrays:
        offset = np.bincount(structures.row_of_atom, size * (1 + 0.3 * np.sin(structures.z)))
        which = np.isin(np.arange(len(structures)), bad_rows(structures, number))
        return replace(structures, energy=structures.energy + np.where(which, offset, 0.0))

    return made


def before(*labels: str) -> Callable[[StructureArrays], StructureArrays]:
    """Labels of the frame before; the structures are of one molecule."""

    def made(structures: StructureArrays) -> StructureArrays:
        last = np.r_[len(structures) - 1, np.arange(len(structures) - 1)]
        other = structures.take(last)
        return replace(structures, **{label: getattr(other, label) for label in labels})

    return made


def nanometers(structures: StructureArrays) -> StructureArrays:
    """Positions and cells in nm."""
    return replace(structures, pos=0.1 * structures.pos, cell=0.1 * structures.cell)


def diagonal(structures: StructureArrays) -> StructureArrays:
    """The diagonal of the stress."""
    return replace(structures, stress=structures.stress * np.eye(3))


def shear(*order: int) -> Callable[[StructureArrays], StructureArrays]:
    """Components of shear in another order."""

    def made(structures: StructureArrays) -> StructureArrays:
        stress = structures.stress.copy()
        for (a, b), other in zip(_VOIGT, order, strict=True):
            c, d = _VOIGT[other]
            stress[:, a, b] = stress[:, b, a] = structures.stress[:, c, d]
        return replace(structures, stress=stress)

    return made


def transposed(structures: StructureArrays) -> StructureArrays:
    """Cells whose vectors are columns."""
    return replace(structures, cell=structures.cell.transpose(0, 2, 1))


def other_axes(structures: StructureArrays) -> StructureArrays:
    """Cells with z, x and y in place of x, y and z."""
    return replace(structures, cell=structures.cell[:, [2, 0, 1]][:, :, [2, 0, 1]])


_MOLECULES = ("molecules", "ethanol", "aspirin")
_CRYSTALS = ("crystals", "copper", "alloys", "argon")
_ALL = (*_MOLECULES, *_CRYSTALS)
_HARTREE, _HARTREES = 1 / 27.211386, 1 / 51.422067
DEFECTS = [
    Defect("energies over number of atoms", per_atom, "divided by the number of atoms", _ALL),
    Defect("energies 0 in half", zero_energies, "energies are exactly 0 eV", _ALL),
    Defect("forces 0 in all", rows_times("forces", 0.0, 10**6), "all forces are 0 in", _ALL),
    Defect("forces 0 in half", rows_times("forces", 0.0, None), "all forces are 0 in", _ALL),
    Defect("forces 0 in three", rows_times("forces", 0.0, 3), "all forces are 0 in", _ALL),
    Defect("stress 0 in all", rows_times("stress", 0.0, 10**6), "stress is 0 in", _CRYSTALS),
    Defect("stress 0 in half", rows_times("stress", 0.0, None), "stress is 0 in", _CRYSTALS),
    Defect("stress diagonal", diagonal, "stress is diagonal", _CRYSTALS),
    Defect("positions in nm", nanometers, "positions are in nm", _ALL),
    Defect("three energies in Hartree", rows_times("energy", _HARTREE, 3), "energies are far from", _MOLECULES),
    Defect("half of energies in Hartree", rows_times("energy", _HARTREE, None), "energies are far from", _MOLECULES),
    Defect("three of another method", method(20.0, 3), "energies are far from", _ALL),
    Defect("half of another method", method(20.0, None), "energies are far from", _ALL),
    Defect("three forces in Hartree/Bohr", rows_times("forces", _HARTREES, 3), "forces of", _ALL),
    Defect("half of forces in Hartree/Bohr", rows_times("forces", _HARTREES, None), "forces of", _ALL),
    Defect("three gradients", rows_times("forces", -1.0, 3), "forces of", _ALL),
    Defect("half gradients", rows_times("forces", -1.0, None), "forces of", _ALL),
    Defect("all labels of the frame before", before("energy", "forces"), "of the frame before", ("ethanol", "random")),
    Defect("energies of the frame before", before("energy"), "of the frame before", ("ethanol", "random")),
    Defect("forces of the frame before", before("forces"), "of the frame before", ("ethanol", "random")),
    Defect("cells transposed", transposed, "transposed", ("triclinic",)),
    Defect("cells with other axes", other_axes, "another order of x, y and z", ("long",)),
    Defect("shear in VASP's order", shear(2, 0, 1), "in another order", _CRYSTALS),
    Defect("shear reversed", shear(2, 1, 0), "in another order", _CRYSTALS),
]


def skewed(seed: int, skew: float) -> StructureArrays:
    """Copper at 900 K, so to say, in long cells: triclinic, or straight."""
    from ase.build import bulk
    from ase.calculators.emt import EMT

    from .sets import computed

    def cells():  # type: ignore[no-untyped-def]
        rng = np.random.default_rng(seed)
        for _ in range(40):
            atoms = bulk("Cu", cubic=True) * (2, 1, 1)
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + np.diag([0.0, 0.0, 0.06]) + skew * np.eye(3, k=1)), True)
            atoms.rattle(0.1, rng=rng)
            yield atoms

    return computed("skewed", cells(), EMT())


def base(name: str, size: int = 40, seed: int = 0) -> StructureArrays:
    """A right set that defects are made in."""
    from .sets import alloys, argon, copper

    if name == "ethanol":
        return trajectory("ethanol_md").take(100 + seed + np.arange(size))
    if name == "triclinic":
        return skewed(seed, 0.25)
    if name == "long":
        return skewed(seed, 0.0)
    pools = {"copper": copper, "alloys": alloys, "argon": argon}
    if name in pools:
        return shuffled(pools[name](), size, seed)
    stores = {"random": "ethanol_md", "aspirin": "aspirin_nm"}
    return shuffled(trajectory(stores[name]) if name in stores else stored(name), size, seed)
