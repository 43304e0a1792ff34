"""Right structures whose labels are unusual: large or vanishing forces, energies with all electrons, scans."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
from ase import Atoms, units
from ase.build import add_adsorbate, bulk, fcc111
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential
from ase.cluster import Octahedron
from ase.constraints import FixAtoms
from ase.md.langevin import Langevin
from ase.optimize import BFGS

from eqlayers.data.structures import StructureArrays

from .sets import HERE, alloys, computed, shuffled, stored, trajectory

#: eV: energies of atoms with all electrons, about.
ATOMS = {1: -13.6, 6: -1030.0, 7: -1486.0, 8: -2043.0, 9: -2715.0, 29: -45_000.0}


def labelled(structures: Iterator[Atoms], calculator: Calculator, stress: bool = False) -> StructureArrays:
    """Labels of a calculator; stress if asked for."""
    return computed("right", structures, calculator, stress)


def with_all_electrons(structures: StructureArrays) -> StructureArrays:
    """The structures with energies of atoms added to theirs."""
    atoms = np.bincount(structures.row_of_atom, [ATOMS[number] for number in structures.z.tolist()])
    return replace(structures, energy=structures.energy + atoms)


def rounded(structures: StructureArrays, energy: int, forces: int) -> StructureArrays:
    """The structures with so many digits of their labels."""
    return replace(structures, energy=structures.energy.round(energy), forces=structures.forces.round(forces))


@cache
def scan(name: str) -> StructureArrays:
    """A scan that make_sets.py has made."""
    with np.load(HERE / "scans.npz") as file:
        arrays = {key.split(" ")[1]: file[key] for key in file.files if key.split(" ")[0] == name}
    if "cell" in arrays:
        arrays["pbc"] = np.ones((len(arrays["n_atoms"]), 3))
    return StructureArrays.of(name, **arrays)


def rattled(start: Atoms, size: int, displacement: float, seed: int) -> Iterator[Atoms]:
    """Copies of a structure, each with displacements of its own."""
    for row in range(size):
        atoms = start.copy()
        atoms.rattle(displacement, seed=seed + row)
        yield atoms


def hot(size: int, seed: int, symbol: str = "Cu", displacement: float = 0.45) -> StructureArrays:
    """A metal with forces of some 20 eV/Angstrom."""
    return labelled(rattled(bulk(symbol, cubic=True) * (2, 2, 1), size, displacement, 1000 * seed), EMT())


def strained(size: int, seed: int, symbol: str, isotropic: bool = False) -> StructureArrays:
    """Strains of a perfect crystal, whose forces are 0 by symmetry."""

    def cells() -> Iterator[Atoms]:
        rng = np.random.default_rng(seed)
        for _ in range(size):
            atoms = bulk(symbol, cubic=True)
            skew = 0.03 * (rng.normal() * np.eye(3) if isotropic else rng.normal(size=(3, 3)))
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.5 * (skew + skew.T)), scale_atoms=True)
            yield atoms

    return computed("right", cells(), EMT())


def dimers(size: int, seed: int, symbol: str, calculator: Calculator, low: float, high: float) -> StructureArrays:
    """Distances of two atoms, in random order."""
    order = np.random.default_rng(seed).permutation(np.linspace(low, high, size))
    return labelled((Atoms(f"{symbol}2", [[0, 0, 0], [0, 0, d]]) for d in order), calculator)


def dynamics(size: int, seed: int, start: Callable[[], Atoms], kelvin: float, order: bool = True) -> StructureArrays:
    """Frames of molecular dynamics by effective medium theory."""

    def frames() -> Iterator[Atoms]:
        atoms, rng = start(), np.random.default_rng(seed)
        atoms.calc = EMT()
        deviation = np.sqrt(2 * kelvin * units.kB * atoms.get_masses())[:, None]
        atoms.set_momenta(deviation * rng.standard_normal((len(atoms), 3)))
        steps = Langevin(atoms, 4 * units.fs, temperature_K=kelvin, friction=0.02 / units.fs, rng=rng, fixcm=False)
        for _ in range(size):
            steps.run(3)
            yield atoms.copy()

    made = labelled(frames(), EMT(), stress=bool(start().pbc.all()))
    return made if order else shuffled(made, size, seed)


def slab() -> Atoms:
    """A surface with an atom on it and one layer held."""
    atoms = fcc111("Al", (2, 2, 3), vacuum=6.0)
    add_adsorbate(atoms, "Cu", 2.0, "fcc")
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == 3))
    return atoms


def vacancy() -> Atoms:
    """A crystal with a hole."""
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    del atoms[3]
    return atoms


def relaxed(size: int, seed: int) -> StructureArrays:
    """Steps of relaxations of clusters, one after the other."""

    def frames() -> Iterator[Atoms]:
        rng = np.random.default_rng(seed)
        for run in range(size):
            atoms = Octahedron("Cu", 3, 1)
            atoms.rattle(0.2, rng=rng)
            atoms.calc = EMT()
            for _ in BFGS(atoms, logfile=None).irun(fmax=0.02, steps=8):
                yield atoms.copy()
            if run > size // 9:
                return

    made = labelled(frames(), EMT())
    return made.take(np.arange(min(size, len(made))))


def phonons(size: int, seed: int) -> StructureArrays:
    """One atom of a crystal displaced by 0.01 Angstrom."""

    def frames() -> Iterator[Atoms]:
        rng = np.random.default_rng(seed)
        for _ in range(size):
            atoms = bulk("Al", cubic=True) * (2, 2, 1)
            atoms.positions[rng.integers(len(atoms))] += 0.01 * rng.choice([-1, 1]) * np.eye(3)[rng.integers(3)]
            yield atoms

    return labelled(frames(), EMT(), stress=True)


def mixed(size: int, seed: int) -> StructureArrays:
    """Crystals, clusters, dimers and free atoms of one metal in one file."""

    def frames() -> Iterator[Atoms]:
        rng = np.random.default_rng(seed)
        for row in range(size):
            kind = row % 4
            if kind == 0:
                atoms = bulk("Ni", a=3.5 * (1 + 0.05 * rng.normal()), cubic=True) * (2, 1, 1)
            elif kind == 1:
                atoms = Octahedron("Ni", 3, 1)
            elif kind == 2:
                atoms = Atoms("Ni2", [[0, 0, 0], [0, 0, rng.uniform(1.6, 5.0)]])
            else:
                atoms = Atoms("Ni")
            atoms.rattle(0.1 if kind < 2 else 0.0, rng=rng)
            yield atoms

    return labelled(frames(), EMT())


def morse(size: int, seed: int, displacement: float) -> StructureArrays:
    """Clusters of a Morse potential."""
    calculator = MorsePotential(epsilon=0.4, r0=2.6, rho0=4.0, rcut1=7.0, rcut2=9.0)
    return labelled(rattled(Octahedron("Cu", 3, 1), size, displacement, 100 * seed), calculator)


def liquid(size: int, seed: int) -> StructureArrays:
    """Argon with large displacements."""
    calculator = LennardJones(epsilon=0.0104, sigma=3.4, rc=8.5, smooth=True)
    start = bulk("Ar", "fcc", a=5.6, cubic=True) * (2, 1, 1)
    return labelled(rattled(start, size, 0.35, 100 * seed), calculator, stress=True)


def _lj(epsilon: float, sigma: float) -> Calculator:
    return LennardJones(epsilon=epsilon, sigma=sigma, rc=6 * sigma, smooth=False)


def _of_scan(name: str, size: int, seed: int) -> StructureArrays:
    return shuffled(scan(name), size, seed)


def _frames(size: int, seed: int, name: str, order: bool = False) -> StructureArrays:
    start = seed * 37 % (len(trajectory(name)) - size)
    made = trajectory(name).take(start + np.arange(size))
    return made if order else shuffled(trajectory(name), size, seed)


#: Right sets by name: made of a number of structures and a seed.
RIGHT: dict[str, Callable[[int, int], StructureArrays]] = {
    "hot copper": hot,
    "hot copper, all electrons": lambda size, seed: with_all_electrons(hot(size, seed)),
    "copper, all electrons": lambda size, seed: with_all_electrons(hot(size, seed, displacement=0.08)),
    "hot gold": partial(hot, symbol="Au", displacement=0.35),
    "molecules, all electrons": lambda size, seed: with_all_electrons(shuffled(stored("molecules"), size, seed)),
    "ethanol, all electrons": lambda size, seed: with_all_electrons(_frames(size, seed, "ethanol_md")),
    "ethanol in order, all electrons": lambda size, seed: with_all_electrons(_frames(size, seed, "ethanol_md", True)),
    "elastic scan of MgO": partial(_of_scan, "MgO"),
    "elastic scan of diamond": partial(_of_scan, "diamond"),
    "SN2 in random order": partial(_of_scan, "substitution"),
    "SN2 in order": lambda size, seed: scan("substitution").take(seed % 3 + np.arange(min(size, 37))),
    "nitrogen in random order": partial(_of_scan, "dissociation"),
    "rotation in random order": partial(_of_scan, "rotation"),
    **{f"strained {symbol}": partial(strained, symbol=symbol) for symbol in ("Cu", "Al", "Ni", "Au")},
    "volumes of Cu": partial(strained, symbol="Cu", isotropic=True),
    "volumes of Al": partial(strained, symbol="Al", isotropic=True),
    "He dimer": partial(dimers, symbol="He", calculator=_lj(0.00088, 2.64), low=2.4, high=6.0),
    "Ar dimer": partial(dimers, symbol="Ar", calculator=_lj(0.0104, 3.4), low=3.1, high=8.0),
    "H dimer": partial(
        dimers, symbol="H", calculator=MorsePotential(epsilon=4.7, r0=0.74, rho0=1.4), low=0.5, high=2.5
    ),
    "Cu dimer": partial(dimers, symbol="Cu", calculator=EMT(), low=1.7, high=5.0),
    "cluster at 600 K": partial(dynamics, start=partial(Octahedron, "Cu", 3, 1), kelvin=600),
    "cluster at 100 K": partial(dynamics, start=partial(Octahedron, "Au", 3, 1), kelvin=100),
    "cluster, random order": partial(dynamics, start=partial(Octahedron, "Cu", 3, 1), kelvin=600, order=False),
    "slab": partial(dynamics, start=slab, kelvin=300),
    "vacancy": partial(dynamics, start=vacancy, kelvin=900),
    "crystal at 50 K": partial(dynamics, start=lambda: bulk("Al", cubic=True) * (2, 1, 1), kelvin=50),
    "relaxations": relaxed,
    "phonons": phonons,
    "mixed": mixed,
    "Morse clusters": partial(morse, displacement=0.1),
    "Morse clusters, hot": partial(morse, displacement=0.35),
    "liquid argon": liquid,
    "alloys": lambda size, seed: shuffled(alloys(), size, seed),
    "few digits of copper": lambda size, seed: rounded(hot(size, seed, displacement=0.08), 3, 2),
    "few digits of ethanol": lambda size, seed: rounded(_frames(size, seed, "ethanol_md", True), 2, 2),
    "ethanol": lambda size, seed: _frames(size, seed, "ethanol_md", True),
    "aspirin": lambda size, seed: _frames(size, seed, "aspirin_nm"),
    "molecules": lambda size, seed: shuffled(stored("molecules"), size, seed),
    "crystals": lambda size, seed: shuffled(stored("crystals"), size, seed),
}
