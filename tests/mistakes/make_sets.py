"""Makes molecules.npz and crystals.npz with tblite, which no test needs: ``python tests/mistakes/make_sets.py``.

    pip install tblite==0.8.0

`molecules.npz`: 100 molecules of `examples/data/mini_qm9_xtb.npz`, each with all atoms displaced at random, GFN2-xTB.
`crystals.npz`: 60 cells of 12 compounds, strained at random and with displaced atoms, GFN1-xTB with stress.
Both in eV and Angstrom. It takes half a minute.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from ase import Atoms
from ase.build import bulk
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


def save(name: str, method: str, structures: Iterator[Atoms]) -> None:
    """Compute and store flat arrays: energy (eV), forces (eV/Angstrom), stress (eV/Angstrom^3) of periodic ones."""
    columns: dict[str, list[np.ndarray]] = {}
    for atoms in structures:
        atoms.calc = TBLite(method=method, verbosity=0)
        row = {"n_atoms": np.array([len(atoms)], np.uint8), "z": atoms.numbers.astype(np.uint8)}
        row |= {"energy": np.array([atoms.get_potential_energy()]), "pos": atoms.positions.astype(np.float32)}
        row["forces"] = atoms.get_forces().astype(np.float32)
        if atoms.pbc.all():
            row["cell"] = atoms.cell.array[None].astype(np.float32)
            row["stress"] = atoms.get_stress(voigt=False)[None].astype(np.float32)
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    np.savez_compressed(HERE / f"{name}.npz", **{key: np.concatenate(parts) for key, parts in columns.items()})


if __name__ == "__main__":
    save("molecules", "GFN2-xTB", molecules(100, 0.07))
    save("crystals", "GFN1-xTB", crystals(60, 0.06, 0.03))
