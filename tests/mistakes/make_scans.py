"""Makes scans.npz with tblite, which no test needs: ``python tests/mistakes/make_scans.py``.

    pip install tblite==0.8.0

Scans of right labels in eV and Angstrom, whose forces are 0 by symmetry, or whose energies hardly follow a pair
potential: elastic scans of MgO and diamond (GFN1-xTB), an SN2 reaction, a dissociation and a rotation (GFN2-xTB).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from tblite.ase import TBLite

HERE = Path(__file__).parent


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


def save() -> None:
    """Flat arrays of all scans: energy (eV), forces (eV/Angstrom), stress (eV/Angstrom^3) of periodic ones."""
    columns: dict[str, np.ndarray] = {}
    scans = {
        "MgO": (elastic("MgO", "rocksalt", 4.21), "GFN1-xTB", 0),
        "diamond": (elastic("C", "diamond", 3.57), "GFN1-xTB", 0),
        "substitution": (substitution(), "GFN2-xTB", -1),
        "dissociation": (dissociation(), "GFN2-xTB", 0),
        "rotation": (rotation(), "GFN2-xTB", 0),
    }
    for name, (structures, method, charge) in scans.items():
        rows: dict[str, list[np.ndarray]] = {}
        for atoms in structures:
            atoms.calc = TBLite(method=method, charge=charge, verbosity=0)
            row = {"n_atoms": np.array([len(atoms)]), "z": atoms.numbers, "pos": atoms.positions}
            row |= {"energy": np.array([atoms.get_potential_energy()]), "forces": atoms.get_forces()}
            if atoms.pbc.all():
                row |= {"cell": atoms.cell.array[None], "stress": atoms.get_stress(voigt=False)[None]}
            for key, value in row.items():
                rows.setdefault(key, []).append(value)
        columns |= {f"{name} {key}": np.concatenate(parts) for key, parts in rows.items()}
    np.savez_compressed(HERE / "scans.npz", **columns)


if __name__ == "__main__":
    save()
