"""Dynamics with tables of radial networks: a kink at a knot would show in the total energy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk
from ase.md.verlet import VelocityVerlet

from eqlayers import compress
from eqlayers.integrations.ase import Calculator
from eqlayers.models import NequIP, Potential
from eqlayers.nn import ZBL

STEPS, EVERY, STEP_FS = 20_000, 20, 2.0


def crystal() -> Atoms:
    """Copper of 600 K, 8 atoms that see images of themselves."""
    atoms = bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.rattle(0.05, seed=1)
    drawn = np.random.default_rng(1).standard_normal((len(atoms), 3))
    atoms.set_momenta((drawn - drawn.mean(0)) * np.sqrt(atoms.get_masses()[0] * 600 * units.kB))
    return atoms


def total_energies(knots: int | None) -> np.ndarray:
    """In eV per atom, along a trajectory at constant energy."""
    torch.manual_seed(0)
    network = NequIP([29], hidden="4x0e + 4x1o", lmax=1, layers=2, cutoff=4.0, radial_hidden=(16,))
    potential = Potential(network, [29], scale=2.0, repulsion=ZBL()).double().eval()
    if knots is not None:
        compress(potential, knots=knots)
    atoms = crystal()
    atoms.calc = Calculator(potential)
    run, found = VelocityVerlet(atoms, STEP_FS * units.fs), []
    run.attach(lambda: found.append(atoms.get_total_energy() / len(atoms)), EVERY)
    run.run(STEPS)
    return np.array(found)


def drift_and_noise(energies: np.ndarray) -> tuple[float, float]:
    """MeV per atom and ps, and the root mean square around that line in meV per atom."""
    time = np.arange(len(energies)) * EVERY * STEP_FS / 1000
    slope, start = np.polyfit(time, 1000 * energies, 1)
    return float(slope), float(np.std(1000 * energies - slope * time - start))


@pytest.mark.slow
def test_20000_steps_drift_no_more_than_with_the_network() -> None:
    (exact, noise), (tabled, other) = (drift_and_noise(total_energies(knots)) for knots in (None, 64))
    print(f"drift {exact:.2g} and {tabled:.2g} meV per atom and ps, noise {noise:.3g} and {other:.3g} meV per atom")
    assert noise > 1e-4  # atoms do move
    bound = 3 * noise / (STEPS * STEP_FS / 1000)  # of a slope that is no more than noise
    assert abs(tabled) <= abs(exact) + bound
    assert other <= 1.2 * noise
