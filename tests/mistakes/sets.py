"""Right structures of many kinds, in which mistakes are made."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones

from eqlayers.data.embedded import TRAJECTORY_UNITS, embedded_folder, embedded_trajectory
from eqlayers.data.readers import read_structures
from eqlayers.data.structures import StructureArrays

HERE = Path(__file__).parent
METALS = ("Al", "Ni", "Cu", "Pd", "Ag", "Pt", "Au")


def shuffled(structures: StructureArrays, number: int, seed: int = 0) -> StructureArrays:
    """Some of the structures, in random order, so that no neighbours in the file are alike."""
    return structures.take(np.random.default_rng(seed).permutation(len(structures))[:number])


def without_stress(structures: StructureArrays) -> StructureArrays:
    """The structures without this label."""
    return replace(structures, stress=np.full_like(structures.stress, np.nan))


@cache
def trajectory(name: str) -> StructureArrays:
    """An embedded set."""
    return read_structures(embedded_trajectory(name), units=TRAJECTORY_UNITS)[0]


@cache
def stored(name: str) -> StructureArrays:
    """The sets that make_sets.py has made."""
    with np.load(HERE / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    if "cell" in arrays:
        arrays["pbc"] = np.ones((len(arrays["n_atoms"]), 3))
    return StructureArrays.of(name, **arrays)


@cache
def minima() -> StructureArrays:
    """Molecules at rest, with energies alone."""
    with np.load(embedded_folder("mini_qm9_xtb.npz") / "mini_qm9_xtb.npz") as file:
        arrays = {name: file[name] for name in ("n_atoms", "z", "pos")}
        return StructureArrays.of("mini_qm9", **arrays, energy=27.211386245988 * file["energy"])


def computed(name: str, structures: Iterator[Atoms], calculator: Calculator, stress: bool = True) -> StructureArrays:
    """Energy, forces and, if asked for, stress by a calculator of ASE."""
    rows = []
    for atoms in structures:
        atoms.calc = calculator
        stresses = {"stress": atoms.get_stress(voigt=False)} if stress else {}
        rows.append((atoms.get_potential_energy(), atoms.get_forces(apply_constraint=False), atoms, stresses))
    energy, forces, cells, stresses = zip(*rows, strict=True)
    return StructureArrays.of(
        name,
        [len(atoms) for atoms in cells],
        np.concatenate([atoms.numbers for atoms in cells]),
        np.concatenate([atoms.positions for atoms in cells]),
        cell=[atoms.cell.array for atoms in cells],
        pbc=[atoms.pbc for atoms in cells],
        energy=energy,
        forces=np.concatenate(forces),
        **({"stress": [one["stress"] for one in stresses]} if stress else {}),
    )


def cells(number: int, elements: tuple[str, ...], strain: float, displacement: float, seed: int) -> Iterator[Atoms]:
    """Cells of 8 or 16 atoms, each a mixture of two elements where there are more, strained and displaced."""
    rng = np.random.default_rng(seed)
    for row in range(number):
        one, other = rng.choice(elements, 2, replace=len(elements) == 1)
        length = {"Ar": 5.31}
        atoms = bulk(one, "fcc", a=length.get(one), cubic=True) * (2, 1 + row % 2, 1)
        symbols = np.where(rng.random(len(atoms)) < rng.random(), one, other)
        atoms.symbols = symbols
        mean = np.mean([bulk(each, "fcc", a=length.get(each), cubic=True).cell[0, 0] for each in symbols])
        skew = strain * rng.normal(size=(3, 3))
        grown = mean / bulk(one, "fcc", a=length.get(one), cubic=True).cell[0, 0]
        atoms.set_cell(grown * atoms.cell.array @ (np.eye(3) + 0.5 * (skew + skew.T)), scale_atoms=True)
        atoms.positions += displacement * rng.normal(size=atoms.positions.shape)
        yield atoms


@cache
def copper() -> StructureArrays:
    """One element, effective medium theory."""
    return computed("copper", cells(100, ("Cu",), 0.03, 0.08, seed=1), EMT())


@cache
def alloys() -> StructureArrays:
    """Two of seven metals in each cell, effective medium theory."""
    return computed("alloys", cells(200, METALS, 0.03, 0.08, seed=2), EMT())


@cache
def argon() -> StructureArrays:
    """A pair potential of Lennard-Jones."""
    return computed(
        "argon", cells(100, ("Ar",), 0.03, 0.15, seed=3), LennardJones(epsilon=0.0104, sigma=3.4, rc=8.5, smooth=True)
    )


#: Sets of the table: name, description, and how to get the set.
SETS: dict[str, tuple[str, Callable[[], StructureArrays]]] = {
    "in order": ("200 frames of `ethanol_md`, 5 fs apart", lambda: trajectory("ethanol_md").take(np.arange(200))),
    "ethanol_md": ("200 of its frames, in random order", lambda: shuffled(trajectory("ethanol_md"), 200)),
    "ethanol_nm": ("100 of its frames, independent draws", lambda: shuffled(trajectory("ethanol_nm"), 100)),
    "aspirin_nm": ("100 of its frames, independent draws", lambda: shuffled(trajectory("aspirin_nm"), 100)),
    "molecules": (
        "100 molecules of 66 compositions, all atoms displaced at random, GFN2-xTB",
        lambda: shuffled(stored("molecules"), 100),
    ),
    "crystals": (
        "60 cells of 12 compounds with stress, strained and displaced at random, GFN1-xTB",
        lambda: shuffled(stored("crystals"), 60),
    ),
    "copper": ("100 cells with stress, effective medium theory", lambda: shuffled(copper(), 100)),
    "no stress": ("the same without stress", lambda: without_stress(shuffled(copper(), 100))),
    "alloys": (
        "200 cells of seven metals with stress, 134 compositions, effective medium theory",
        lambda: shuffled(alloys(), 200),
    ),
    "argon": ("100 cells with stress, Lennard-Jones", lambda: shuffled(argon(), 100)),
    "minima": ("`mini_qm9_xtb`, 500 molecules at rest with energies alone, GFN2-xTB", lambda: shuffled(minima(), 500)),
}


def in_order(size: int, seed: int) -> StructureArrays:
    """Neighbouring frames of the trajectory."""
    start = int(np.random.default_rng(seed).integers(len(trajectory("ethanol_md")) - size))
    return trajectory("ethanol_md").take(start + np.arange(size))


def drawn_from(pool: Callable[[], StructureArrays]) -> Callable[[int, int], StructureArrays]:
    """A draw of some size by some seed, in random order."""
    return lambda size, seed: shuffled(pool(), size, seed)


#: Draws by number of structures and seed; fewer structures where the set is smaller.
POOLS: dict[str, Callable[[int, int], StructureArrays]] = {
    "in order": in_order,
    **{name: drawn_from(partial(trajectory, name)) for name in ("ethanol_md", "ethanol_nm", "aspirin_nm")},
    **{name: drawn_from(partial(stored, name)) for name in ("molecules", "crystals")},
    "copper": drawn_from(copper),
    "alloys": drawn_from(alloys),
    "argon": drawn_from(argon),
    "minima": drawn_from(minima),
}
