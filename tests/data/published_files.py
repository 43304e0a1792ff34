"""Files in the formats of rMD17 and 3BPA with made-up numbers, and the names, keys, types and shapes of the sets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.io import write
from ase.units import kcal, mol

from eqlayers.data.embedded import PUBLISHED
from eqlayers.data.qm9 import TARGETS, thermochemical_atomref

FREE = thermochemical_atomref(TARGETS["U0"])


def atoms_of(formula: str) -> Atoms:
    """Atoms of a molecule on a cubic grid, 1.4 Angstrom apart."""
    atoms = Atoms(formula)
    side = np.arange(4) * 1.4
    grid = np.stack(np.meshgrid(side, side, side, indexing="ij"), axis=-1).reshape(-1, 3)
    atoms.positions = grid[: len(atoms)]
    return atoms


def springs(atoms: Atoms, num: int, seed: int, stretch: float = 0.05) -> dict[str, np.ndarray]:
    """Displaced structures with energies and forces of springs between the atoms and their places, in eV."""
    moved = stretch * np.random.default_rng(seed).standard_normal((num, len(atoms), 3))
    moved -= moved.mean(axis=1, keepdims=True)
    total = 1.006 * sum(FREE[number] for number in atoms.numbers.tolist())
    return {
        "pos": atoms.positions + moved,
        "energy": total + 5.0 * np.square(moved).sum(axis=(1, 2)),
        "forces": -10.0 * moved,
    }


def write_rmd17(path: Path, num: int, formula: str | None = None, **replaced: Any) -> Path:
    """An archive as rMD17's: kcal/mol, float64, uncompressed; an array that is None is left out."""
    atoms = atoms_of(formula or PUBLISHED["rmd17"].files[path.name].formula)
    made, unit = springs(atoms, num, seed=1), kcal / mol
    noise = np.random.default_rng(2)
    arrays = {
        "nuclear_charges": atoms.numbers.astype(np.uint8),
        "coords": made["pos"],
        "energies": made["energy"] / unit,
        "forces": made["forces"] / unit,
        "old_indices": noise.permutation(num),
        "old_energies": made["energy"] / unit + noise.standard_normal(num),
        "old_forces": made["forces"] / unit + noise.standard_normal(made["forces"].shape),
    } | replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def write_md17(path: Path, num: int) -> Path:
    """An archive as MD17's, the original set."""
    atoms = molecule("CH3CH2OH")
    made = springs(atoms, num, seed=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = {"E": made["energy"][:, None] * mol / kcal, "F": made["forces"] * mol / kcal}
    np.savez(path, z=atoms.numbers.astype(np.uint8), R=made["pos"], name="ethanol", theory="unknown", **labels)
    return path


def write_rows(folder: Path, train: int, test: int, num: int) -> tuple[Path, Path]:
    """Files of row numbers as rMD17's: a number in each line, no heading."""
    rows = np.random.default_rng(3).permutation(num)
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "index_train_01.csv", folder / "index_test_01.csv"
    for file, part in zip(files, (rows[:train], rows[train : train + test]), strict=True):
        file.write_text("".join(f"{row}\n" for row in part))
    return files


def write_3bpa(folder: Path, name: str, num: int, formula: str = "C12H12N2O", **info: Any) -> Path:
    """Extended XYZ as 3BPA's: total energies in eV, forces, and angles of the torsions in the line of comment."""
    atoms = atoms_of(formula)
    seed = len(name) + sum(map(ord, name))
    made = springs(atoms, num, seed, stretch=0.05 * (2 if "1200" in name else 1))
    frames = []
    for row in range(num):
        frame = Atoms(atoms.numbers, made["pos"][row])
        frame.info = {"energy": made["energy"][row], "dihedrals": np.array([60.0, 120.0, 0.1 * row]), **info}
        frame.arrays["forces"] = made["forces"][row]
        frames.append(frame)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{name}.xyz", frames, format="extxyz")
    return folder / f"{name}.xyz"


def take_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes files of published sets right with any number of structures."""
    for name, published in PUBLISHED.items():
        files = {file: content._replace(frames=None) for file, content in published.files.items()}
        monkeypatch.setitem(PUBLISHED, name, published._replace(files=files))
