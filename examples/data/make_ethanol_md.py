"""Make `ethanol_md.npz` from scratch, or compare random frames of it with a new computation.

    pip install rdkit tblite numpy rich
    python examples/data/make_ethanol_md.py --out build/ethanol   # about 75 s of one core
    python examples/data/make_ethanol_md.py --verify 8            # energies and forces of stored geometries, 1 s

Langevin dynamics (BAOAB) of ethanol at 500 K with GFN2-xTB: time step 0.5 fs, friction 1/(100 fs), 1 ps to equilibrate,
then a frame every 5 fs. Keys as in rMD17 (`R E F z`), but in eV and Angstrom, and the dipole in Debye.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from store import HERE, Deviations, progress_bar, save_set
from xtb import (
    BOHR_PER_ANGSTROM,
    ELECTRON_MASS_PER_DALTON,
    EV_PER_HARTREE,
    HARTREE_PER_KELVIN,
    MASS,
    Array,
    SinglePoint,
    embed,
    relax,
)

NAME, SMILES = "ethanol_md.npz", "CCO"
FRAMES, STRIDE, EQUILIBRATION = 2000, 10, 2000
TEMPERATURE, TIME_STEP_FS, FRICTION_FS, SEED = 500.0, 0.5, 100.0, 11
AU_TIME_PER_FS = 41.341374575751
ACCURACY = 0.1  # of tblite: tighter than for the minima, as forces enter every step
# Positions are stored in float32 (3e-7 A at most), which the stiffest bond (about 60 eV/A^2) turns into 2e-5 eV/A.
# The dipole, of first order in the density, shows where the self-consistent field stopped.
TOLERANCES = {"E": (1e-5, "eV"), "F": (1e-4, "eV/A"), "dipole": (1e-4, "D")}


def trajectory(z: np.ndarray, start: Array, frames: int) -> Iterator[tuple[Array, float, Array, Array]]:
    """Positions (Angstrom), energy (eV), forces (eV/Angstrom) and dipole (Debye) of every frame."""
    rng = np.random.default_rng(SEED)
    point = SinglePoint(z, start, accuracy=ACCURACY)
    relaxed, _, _ = relax(point, start, gmax=5e-5)
    mass = (np.array([MASS[int(number)] for number in z]) * ELECTRON_MASS_PER_DALTON)[:, None]
    kt = HARTREE_PER_KELVIN * TEMPERATURE
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
            forces = -gradient * EV_PER_HARTREE * BOHR_PER_ANGSTROM
            yield x / BOHR_PER_ANGSTROM, energy * EV_PER_HARTREE, forces, point.dipole


def make(out: Path, frames: int) -> None:
    """Run the dynamics and pack the frames; it is short enough to start again after an interruption."""
    start = embed(SMILES)
    if start is None:
        raise RuntimeError(f"RDKit found no geometry of {SMILES}; try another version of RDKit")
    _, z, pos = start
    with progress_bar() as bar:
        rows = list(bar.track(trajectory(z, pos, frames), total=frames, description="frames"))
    r, e, f, dipole = (np.array(column) for column in zip(*rows, strict=True))
    arrays = {
        "z": z.astype(np.uint8),
        "R": r.astype(np.float32),
        "E": e,
        "F": f.astype(np.float32),
        "dipole": dipole.astype(np.float32),
    }
    save_set(out / NAME, arrays, len(e), "make_ethanol_md.py")
    print(
        f"wrote {out / NAME}: {len(e)} frames, energy std {e.std():.3f} eV, force rms {np.sqrt((f**2).mean()):.3f} eV/A"
    )


def verify(path: Path, rows: int, seed: int) -> bool:
    """Recompute energies, forces and dipoles of stored geometries and print the largest deviations."""
    with np.load(path) as file:
        stored = {key: file[key] for key in file.files}
    z = stored["z"].astype(int)
    deviations = Deviations()
    chosen = np.sort(np.random.default_rng(seed).choice(len(stored["E"]), rows, replace=False))
    for row in chosen.tolist():
        point = SinglePoint(z, stored["R"][row].astype(float), accuracy=ACCURACY)
        energy, gradient = point(stored["R"][row].astype(float))
        deviations.add("E", stored["E"][row], energy * EV_PER_HARTREE, str(row))
        deviations.add("F", stored["F"][row], -gradient * EV_PER_HARTREE * BOHR_PER_ANGSTROM, str(row))
        deviations.add("dipole", stored["dipole"][row], point.dipole, str(row))
    return deviations.report(TOLERANCES)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the new file (not examples/data: that is shipped)")
    parser.add_argument("--frames", type=int, default=FRAMES, help=f"frames to make (default {FRAMES})")
    parser.add_argument("--verify", type=int, metavar="K", help="recompute K random frames of the shipped file")
    parser.add_argument("--seed", type=int, default=0, help="which frames --verify takes (default 0)")
    parser.add_argument("--file", type=Path, default=HERE / NAME, help="the file to verify")
    options = parser.parse_args()
    if options.verify:
        return 0 if verify(options.file, options.verify, options.seed) else 1
    if options.out is None:
        parser.error("one of --out and --verify is required")
    make(options.out, options.frames)
    return 0


if __name__ == "__main__":
    sys.exit(main())
