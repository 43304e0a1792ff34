"""The cost of a committee beside its members one by one: `python docs/benchmarks/committee.py [members]`.

Energy, forces and stress of a crystal whose atoms move a little before each call; processor time of one thread, the
least of some interleaved rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk

from eqlayers.integrations.ase import Calculator
from eqlayers.models import MACE, NequIP, Potential

ROUNDS = 7
NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "MACE 32x0e + 32x1o": lambda: MACE([29], hidden="32x0e + 32x1o", cutoff=5.0),
    "NequIP 32x0e + 32x1o": lambda: NequIP([29], hidden="32x0e + 32x1o", lmax=2, layers=3, cutoff=5.0),
    "NequIP 4x0e + 4x1o": lambda: NequIP([29], hidden="4x0e + 4x1o", lmax=1, layers=2, cutoff=5.0),
}


def cost(atoms: Atoms, calculators: Sequence[Calculator]) -> float:
    """Seconds of one structure by all calculators, each at the same new positions."""
    began = time.process_time()
    for calculator in calculators:
        atoms.calc = calculator
        atoms.get_forces()
    return time.process_time() - began


def main(members: int) -> None:
    """Print a row for each network."""
    torch.set_num_threads(1)
    print("| network | atoms | one by one (ms) | committee (ms) | ratio |\n|---|---|---|---|---|")
    for name, make in NETWORKS.items():
        atoms = bulk("Cu", cubic=True).repeat(3)
        atoms.rattle(0.02, seed=0)
        potentials = [Potential(make(), species=[29]).eval() for _ in range(members)]
        ways = {"alone": [Calculator(one) for one in potentials], "together": [Calculator(potentials)]}
        least = dict.fromkeys(ways, np.inf)
        for _ in range(ROUNDS):
            for way, calculators in ways.items():
                atoms.rattle(0.002, seed=1)
                least[way] = min(least[way], cost(atoms, calculators))
        alone, together = (1000 * least[way] for way in ways)
        print(f"| {name} | {len(atoms)} | {alone:.0f} | {together:.0f} | {together / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
