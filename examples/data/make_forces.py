"""Make the sets with energies and forces from scratch, or compare random frames of them with a new computation.

    pip install rdkit tblite numpy rich
    python examples/data/make_forces.py ethanol_md --out build/forces   # about 75 s of one core
    python examples/data/make_forces.py ethanol_nm --out build/forces   # 3 s
    python examples/data/make_forces.py aspirin_nm --out build/forces   # 20 s
    python examples/data/make_forces.py aspirin_nm --verify 8           # energies and forces of stored geometries

GFN2-xTB at 500 K. Sets that end in `_md` are Langevin dynamics (BAOAB): time step 0.5 fs, friction 1/(100 fs), 1 ps to
equilibrate, then a frame every 5 fs. Those that end in `_nm` are drawn independently from the harmonic quantum
distribution about the minimum, along normal modes of at least 50 cm^-1. Keys as in rMD17 (`R E F z`), but in eV and
Angstrom, and the dipole in Debye.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from store import HERE, Deviations, progress_bar, save_set
from xtb import (
    BOHR_PER_ANGSTROM,
    ELECTRON_MASS_PER_DALTON,
    EV_PER_HARTREE,
    HARTREE_PER_KELVIN,
    MASS,
    WAVENUMBER_PER_HARTREE,
    Array,
    SinglePoint,
    embed,
    hessian,
    relax,
)

STRIDE, EQUILIBRATION = 10, 2000
TEMPERATURE, TIME_STEP_FS, FRICTION_FS, SEED = 500.0, 0.5, 100.0, 11
SLOWEST = 50.0  # cm^-1: slower modes, such as rotations of methyl groups, would leave the harmonic range
AU_TIME_PER_FS = 41.341374575751
ACCURACY = 0.1  # of tblite: tighter than for the minima, as forces enter every step
# Positions are stored in float32 (3e-7 A at most), which the stiffest bond (about 60 eV/A^2) turns into 2e-5 eV/A.
# The dipole, of first order in the density, shows where the self-consistent field stopped.
TOLERANCES = {"E": (1e-5, "eV"), "F": (1e-4, "eV/A"), "dipole": (1e-4, "D")}

Row = tuple[Array, float, Array, Array]


def start(z: np.ndarray, pos: Array) -> tuple[SinglePoint, Array, Array, float]:
    """Energy, minimum in Angstrom, masses `[A, 1]` and temperature in atomic units."""
    point = SinglePoint(z, pos, accuracy=ACCURACY)
    relaxed, _, _ = relax(point, pos, gmax=5e-5)
    mass = (np.array([MASS[int(number)] for number in z]) * ELECTRON_MASS_PER_DALTON)[:, None]
    return point, relaxed, mass, HARTREE_PER_KELVIN * TEMPERATURE


def row(point: SinglePoint, x: Array, energy: float, gradient: Array) -> Row:
    """Positions (Angstrom), energy (eV), forces (eV/Angstrom) and dipole (Debye) from atomic units."""
    forces = -gradient * EV_PER_HARTREE * BOHR_PER_ANGSTROM
    return x / BOHR_PER_ANGSTROM, energy * EV_PER_HARTREE, forces, point.dipole


def trajectory(z: np.ndarray, pos: Array, frames: int) -> Iterator[Row]:
    """Frames of Langevin dynamics."""
    rng = np.random.default_rng(SEED)
    point, relaxed, mass, kt = start(z, pos)
    dt = TIME_STEP_FS * AU_TIME_PER_FS
    decay = np.exp(-dt / (FRICTION_FS * AU_TIME_PER_FS))
    kick = np.sqrt(1 - decay * decay) * np.sqrt(kt / mass)

    x = relaxed * BOHR_PER_ANGSTROM
    v = rng.normal(size=x.shape) * np.sqrt(kt / mass)
    energy, gradient = point(x / BOHR_PER_ANGSTROM)
    for step in range(-EQUILIBRATION, frames * STRIDE):
        v -= 0.5 * dt * gradient / mass
        x = x + 0.5 * dt * v
        v = decay * v + kick * rng.normal(size=x.shape)
        x = x + 0.5 * dt * v
        x -= (mass * x).sum(0) / mass.sum()
        energy, gradient = point(x / BOHR_PER_ANGSTROM)
        v -= 0.5 * dt * gradient / mass
        if step >= 0 and step % STRIDE == 0:
            yield row(point, x, energy, gradient)


def normal_modes(z: np.ndarray, pos: Array, frames: int) -> Iterator[Row]:
    """Independent frames of the harmonic quantum distribution: the width of mode w is coth(w / 2kT) / 2w."""
    rng = np.random.default_rng(SEED)
    point, relaxed, mass, kt = start(z, pos)
    roots = np.sqrt(np.repeat(mass[:, 0], 3))
    squares, modes = np.linalg.eigh(hessian(point, relaxed) / np.outer(roots, roots))
    squares, modes = squares[6:], modes[:, 6:]  # less translations and rotations
    w = np.sqrt(np.maximum(squares, (SLOWEST / WAVENUMBER_PER_HARTREE) ** 2))
    for _ in range(frames):
        amplitude = rng.normal(size=len(w)) * np.sqrt(0.5 / w / np.tanh(0.5 * w / kt))
        x = relaxed * BOHR_PER_ANGSTROM + (modes @ amplitude / roots).reshape(-1, 3)
        energy, gradient = point(x / BOHR_PER_ANGSTROM)
        yield row(point, x, energy, gradient)


class ForceSet(NamedTuple):
    """How one set is made."""

    smiles: str
    frames: int
    rule: Callable[[np.ndarray, Array, int], Iterator[Row]]


SETS = {
    "ethanol_md": ForceSet("CCO", 2000, trajectory),
    "ethanol_nm": ForceSet("CCO", 1000, normal_modes),
    "aspirin_nm": ForceSet("CC(=O)Oc1ccccc1C(=O)O", 500, normal_modes),
}


def make(name: str, out: Path, frames: int | None) -> None:
    """Compute and pack the frames; it is short enough to start again after an interruption."""
    chosen = SETS[name]
    found = embed(chosen.smiles)
    if found is None:
        raise RuntimeError(f"RDKit found no geometry of {chosen.smiles}; try another version of RDKit")
    _, z, pos = found
    total = frames or chosen.frames
    with progress_bar() as bar:
        rows = list(bar.track(chosen.rule(z, pos, total), total=total, description="frames"))
    r, e, f, dipole = (np.array(column) for column in zip(*rows, strict=True))
    arrays = {
        "z": z.astype(np.uint8),
        "R": r.astype(np.float32),
        "E": e,
        "F": f.astype(np.float32),
        "dipole": dipole.astype(np.float32),
    }
    path = out / f"{name}.npz"
    save_set(path, arrays, len(e), "make_forces.py")
    print(f"wrote {path}: {len(e)} frames, energy std {e.std():.3f} eV, force rms {np.sqrt((f**2).mean()):.3f} eV/A")


def verify(path: Path, rows: int, seed: int) -> bool:
    """Recompute energies, forces and dipoles of stored geometries and print the largest deviations."""
    with np.load(path) as file:
        stored = {key: file[key] for key in file.files}
    z = stored["z"].astype(int)
    deviations = Deviations()
    chosen = np.sort(np.random.default_rng(seed).choice(len(stored["E"]), rows, replace=False))
    for number in chosen.tolist():
        point = SinglePoint(z, stored["R"][number].astype(float), accuracy=ACCURACY)
        energy, gradient = point(stored["R"][number].astype(float))
        deviations.add("E", stored["E"][number], energy * EV_PER_HARTREE, str(number))
        deviations.add("F", stored["F"][number], -gradient * EV_PER_HARTREE * BOHR_PER_ANGSTROM, str(number))
        deviations.add("dipole", stored["dipole"][number], point.dipole, str(number))
    return deviations.report(TOLERANCES)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETS, help="which set")
    parser.add_argument("--out", type=Path, help="folder for the new file (not examples/data, which is shipped)")
    parser.add_argument("--frames", type=int, help="frames to make, in place of the number of the shipped set")
    parser.add_argument("--verify", type=int, metavar="K", help="recompute K random frames of the shipped file")
    parser.add_argument("--seed", type=int, default=0, help="which frames --verify takes (default 0)")
    parser.add_argument("--file", type=Path, help="the file to verify, in place of the shipped one")
    options = parser.parse_args()
    if options.verify:
        return 0 if verify(options.file or HERE / f"{options.name}.npz", options.verify, options.seed) else 1
    if options.out is None:
        parser.error("one of --out and --verify is required")
    make(options.name, options.out, options.frames)
    return 0


if __name__ == "__main__":
    sys.exit(main())
