"""Makes the sets of this folder with tblite, which no test needs: ``python tests/mistakes/make_sets.py``.

    pip install tblite==0.8.0

`molecules.npz`: 100 molecules of `examples/data/mini_qm9_xtb.npz`, each with all atoms displaced at random, GFN2-xTB.
`crystals.npz`: 60 cells of 12 compounds, strained at random and with displaced atoms, GFN1-xTB with stress.
`scans.npz`: right labels whose forces are 0 by symmetry, or whose energies hardly follow a pair potential: elastic
scans of MgO and diamond (GFN1-xTB), an SN2 reaction, a dissociation and a rotation (GFN2-xTB).
All in eV and Angstrom. It takes a minute.
"""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from tblite.ase import TBLite

HERE = Path(__file__).parent
MINI = HERE.parents[1] / "examples" / "data" / "mini_qm9_xtb.npz"
COMPOUNDS = [
    ("MgO", "rocksalt", 4.21),
    ("NaCl", "rocksalt", 5.64),
    ("LiF", "rocksalt", 4.03),
    ("SiC", "zincblende", 4.36),
    ("C", "diamond", 3.57),
    ("Si", "diamond", 5.43),
    ("BN", "zincblende", 3.62),
    ("CaO", "rocksalt", 4.81),
    ("ZnS", "zincblende", 5.41),
    ("AlN", "zincblende", 4.38),
    ("KCl", "rocksalt", 6.29),
    ("LiH", "rocksalt", 4.08),
]


def molecules(number: int, displacement: float) -> Iterator[Atoms]:
    """Molecules of the embedded set, every atom displaced by a normal distribution of this width in Angstrom."""
    rng = np.random.default_rng(5)
    with np.load(MINI) as file:
        sizes, z, pos = (file[key].astype(kind) for key, kind in (("n_atoms", int), ("z", int), ("pos", float)))
    ends = np.cumsum(sizes)
    for row in rng.choice(len(sizes), number, replace=False):
        atoms = slice(ends[row] - sizes[row], ends[row])
        yield Atoms(z[atoms], pos[atoms] + displacement * rng.normal(size=pos[atoms].shape))


def crystals(number: int, displacement: float, strain: float) -> Iterator[Atoms]:
    """Cells of 4 to 8 atoms, each component of the strain and each displacement from a normal distribution."""
    rng = np.random.default_rng(5)
    for row in range(number):
        name, structure, length = COMPOUNDS[row % len(COMPOUNDS)]
        cell = bulk(name, structure, a=length, cubic=bool(row // len(COMPOUNDS) % 2))
        if len(cell) < 8:
            cell *= (2, 1, 1) if row % 4 else (2, 2, 1)
        skew = strain * rng.normal(size=(3, 3))
        cell.set_cell(cell.cell.array @ (np.eye(3) + 0.5 * (skew + skew.T)), scale_atoms=True)
        cell.positions += displacement * rng.normal(size=cell.positions.shape)
        yield cell


def elastic(name: str, structure: str, length: float) -> Iterator[Atoms]:
    """Strains of -3 to 3 % along each of the six components of Voigt, atoms at their places in the cell."""
    for component in range(6):
        for size in np.linspace(-0.03, 0.03, 5):
            strain = np.zeros(6)
            strain[component] = size
            xx, yy, zz, yz, xz, xy = strain
            cell = bulk(name, structure, a=length, cubic=True)
            skew = np.array([[xx, xy / 2, xz / 2], [xy / 2, yy, yz / 2], [xz / 2, yz / 2, zz]])
            cell.set_cell(cell.cell.array @ (np.eye(3) + skew), scale_atoms=True)
            yield cell


def substitution() -> Iterator[Atoms]:
    """A chloride that comes to CH3Cl from behind, the umbrella turning over."""
    for step in np.linspace(-1.0, 1.0, 40):
        height = 0.35 * np.tanh(-2 * step)
        hydrogens = [[1.03 * np.cos(a), 1.03 * np.sin(a), height] for a in 2 * np.pi / 3 * np.arange(3)]
        far, near = 1.8 + 1.2 * max(step, 0), 1.8 + 1.2 * max(-step, 0)
        yield Atoms("CClClH3", [[0, 0, 0], [0, 0, far], [0, 0, -near], *hydrogens])


def dissociation() -> Iterator[Atoms]:
    """Nitrogen, pulled apart."""
    for distance in np.linspace(0.9, 2.0, 40):
        yield Atoms("N2", [[0, 0, 0], [0, 0, distance]])


def rotation() -> Iterator[Atoms]:
    """Ethane about its bond."""
    for angle in np.linspace(0, 120, 40):
        atoms = molecule("C2H6")
        atoms.set_dihedral(2, 0, 1, 5, angle, indices=[5, 6, 7])
        yield atoms


def labelled(structures: Iterator[Atoms], method: str, charge: int = 0) -> dict[str, np.ndarray]:
    """Flat arrays: energy (eV), forces (eV/Angstrom), and stress (eV/Angstrom^3) of periodic structures."""
    columns: dict[str, list[np.ndarray]] = {}
    for atoms in structures:
        atoms.calc = TBLite(method=method, charge=charge, verbosity=0)
        row = {"n_atoms": np.array([len(atoms)]), "z": atoms.numbers, "pos": atoms.positions}
        row |= {"energy": np.array([atoms.get_potential_energy()]), "forces": atoms.get_forces()}
        if atoms.pbc.all():
            row |= {"cell": atoms.cell.array[None], "stress": atoms.get_stress(voigt=False)[None]}
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    return {key: np.concatenate(parts) for key, parts in columns.items()}


def small(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Counts and atomic numbers in bytes, and all but energies in float32."""
    kinds = {"n_atoms": np.uint8, "z": np.uint8, "energy": np.float64}
    return {key: value.astype(kinds.get(key, np.float32)) for key, value in columns.items()}


SCANS = {
    "MgO": (elastic("MgO", "rocksalt", 4.21), "GFN1-xTB", 0),
    "diamond": (elastic("C", "diamond", 3.57), "GFN1-xTB", 0),
    "substitution": (substitution(), "GFN2-xTB", -1),
    "dissociation": (dissociation(), "GFN2-xTB", 0),
    "rotation": (rotation(), "GFN2-xTB", 0),
}

if __name__ == "__main__":
    np.savez_compressed(HERE / "molecules.npz", **small(labelled(molecules(100, 0.07), "GFN2-xTB")))
    np.savez_compressed(HERE / "crystals.npz", **small(labelled(crystals(60, 0.06, 0.03), "GFN1-xTB")))
    scans = {name: labelled(*scan) for name, scan in SCANS.items()}
    flat = {f"{name} {key}": value for name, columns in scans.items() for key, value in columns.items()}
    np.savez_compressed(HERE / "scans.npz", **flat)
