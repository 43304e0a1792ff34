"""Native programs beside mace-torch, first calls and dynamics: `python docs/benchmarks/native_goals.py TABLE`.

- `mace`: microseconds an atom of a model of mace-torch, of the converted potential in Python and of its programs, with
  and without tables, which are called in turns; least processor times of one thread, vectors of edges among them.
  mace-torch must be installed: `make .venv/mace/.installed`, then
  `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 PYTHONPATH=.venv/mace .venv/bin/python docs/benchmarks/native_goals.py mace`.
- `first`: processor seconds until a potential of `native.py` has its first results by a program, with an empty cache
  and with a full one; on one core these are the seconds of a quiet machine.
- `drift`: the total energy of 20,000 steps at constant energy, by Python and by a program, from one state.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch
from ase import units
from ase.build import bulk
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE
from native import CASES, SPECIES, structure_of

from eqlayers import Calculator, deploy, keep_memory
from eqlayers.models import MACE, Potential, compress
from eqlayers.native import NativePotential, as_native
from eqlayers.nn import ZBL

ATOMS, ROUNDS = 256, 7
STEPS, TIMESTEP = 20_000, 0.5


def mace() -> None:
    """The table beside mace-torch, of the model of `eqlayers bench networks mace`."""
    from eqlayers.bench.networks.run import read_network_settings, subject_of, units_of

    keep_memory()
    _, fields = read_network_settings("networks")
    options = fields["networks"]["mace"]
    subject = subject_of("mace", options, ATOMS, **units_of("mace", options, 64, torch.device("cpu")))
    assert subject.native is not None
    theirs = subject.make(torch.float32).eval().requires_grad_(False)
    exact = subject.native(theirs).eval().requires_grad_(False)
    tables = copy.deepcopy(exact)
    compress(tables, fields["tolerance"])
    batch = subject.sample.structures(torch.float32)

    def evaluate(potential: Callable[..., Mapping[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        found = potential(batch, ("energy", "forces"))
        return found["energy"], found["forces"]

    ways = {
        "mace-torch": partial(subject.evaluate, theirs, False),
        "Python": partial(evaluate, exact),
        "Python, tables": partial(evaluate, tables),
        "native": partial(evaluate, as_native(exact)),
        "native, tables": partial(evaluate, as_native(tables)),
    }
    results = {name: [t.detach().double() for t in call()] for name, call in ways.items()}
    times = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, call in ways.items():
            for _ in range(1 if name == "mace-torch" else 5):
                began = time.thread_time()
                call()
                times[name] = min(times[name], time.thread_time() - began)
    print(f"{subject.name}, {subject.sample.mean_neighbors:.0f} edges an atom, {ATOMS} atoms, float32, one thread\n")
    print("| | us an atom | times as fast | energy differs by, eV/atom | forces, eV/A |\n|---|--:|--:|--:|--:|")
    energy, forces = results["mace-torch"]
    for name, seconds in times.items():
        apart = float((results[name][0] - energy).abs().max()) / ATOMS, float((results[name][1] - forces).abs().max())
        faster = times["mace-torch"] / seconds
        print(f"| {name} | {1e6 * seconds / ATOMS:,.0f} | {faster:.1f} | {apart[0]:.1e} | {apart[1]:.1e} |")


def _used() -> float:
    """Processor seconds of this process and of those that it waited for, such as compilers."""
    return sum(os.times()[:4])


def _first_call(name: str) -> float:
    """Processor seconds from a potential to its results by a program."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    potential = Potential(CASES[name](), SPECIES).float().eval()
    batch = structure_of(potential, 16)
    with tempfile.TemporaryDirectory() as folder:
        began = _used()
        NativePotential(deploy(potential, f"{folder}/program.so").path)(batch)
        return _used() - began


def first() -> None:
    """The table of first calls, each in a process of its own."""
    print("| processor seconds of a first call | empty cache | from the cache |\n|---|--:|--:|")
    for name in CASES:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["EQLAYERS_CACHE_DIR"] = cache
            seconds = []
            for _ in range(2):
                with get_context("spawn").Pool(1) as pool:
                    seconds.append(pool.apply(_first_call, (name,)))
        print(f"| {name} | {seconds[0]:.1f} | {seconds[1]:.1f} |", flush=True)


def drift() -> None:
    """The table of drifts, of random weights with a repulsion."""
    torch.manual_seed(0)
    network = MACE(SPECIES, hidden="32x0e + 32x1o", lmax=2, correlation=2, layers=2, cutoff=4.0)
    potential = Potential(network, SPECIES, scale=20.0, repulsion=ZBL()).float().eval()
    compress(potential, 3e-5)
    crystal = bulk("AlN", "wurtzite", a=3.11, c=4.98) * (2, 2, 1)
    crystal.rattle(0.05, seed=1)
    crystal.calc = Calculator(potential, native=True)
    FIRE(crystal, logfile=None).run(fmax=0.005, steps=5000)
    thermalize_momenta(crystal, temperature_K=200, rng=np.random.default_rng(0))
    print(f"{len(crystal)} atoms, {STEPS:,} steps of {TIMESTEP} fs, float32, tables\n")
    print("| | drift, meV per atom and ns | its standard error | around it, meV per atom | K |\n|---|--:|--:|--:|--:|")
    for native in (False, True):
        atoms, energies, kelvins = crystal.copy(), [], []
        atoms.calc = Calculator(potential, native=native)
        for _ in VelocityVerlet(atoms, TIMESTEP * units.fs).irun(STEPS):
            energies.append(1e3 * atoms.get_total_energy() / len(atoms))
            kelvins.append(atoms.get_temperature())
        times = 1e-6 * TIMESTEP * np.arange(len(energies))
        (slope, _), covariance = np.polyfit(times, energies, 1, cov=True)
        left = np.std(np.array(energies) - np.polyval(np.polyfit(times, energies, 1), times))
        name, error = "native" if native else "Python", covariance[0, 0] ** 0.5
        print(f"| {name} | {slope:.2f} | {error:.2f} | {left:.4f} | {np.mean(kelvins):.0f} |", flush=True)


def main() -> None:
    """Print a table."""
    tables = {"mace": mace, "first": first, "drift": drift}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=tables)
    torch.set_num_threads(1)
    tables[parser.parse_args().table]()


if __name__ == "__main__":
    main()
