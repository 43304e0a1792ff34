"""Energy is conserved, a restart is the run that was not interrupted, and whatever ends a run leaves its frames."""

import copy
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.constraints import FixAtoms

from eqlayers.errors import ConfigError, DataError
from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential
from eqlayers.simulate import DynamicsSettings, run_dynamics

#: The potential was never trained, and does not bind water for long.
pytestmark = pytest.mark.filterwarnings("ignore:atom .* has no neighbour within the cutoff")


def state(atoms: Atoms) -> np.ndarray[Any, Any]:
    return np.concatenate([atoms.positions, atoms.get_momenta(), atoms.cell.array])


def total_energies(path: Path) -> np.ndarray[Any, Any]:
    return np.array([frame.get_potential_energy() + frame.get_kinetic_energy() for frame in ase.io.read(path, ":")])


def test_energy_is_conserved(potential: Potential, water: Atoms, tmp_path: Path) -> None:
    """Velocity Verlet: deviations fall with the square of the step and do not grow with time."""
    spreads = []
    for timestep in (0.5, 0.25):
        settings = DynamicsSettings(steps=round(50 / timestep), timestep=timestep, interval=1, temperature=200)
        path = tmp_path / f"{timestep}.traj"
        run_dynamics(water, Calculator(potential), settings, path)
        energies = total_energies(path)
        assert len(energies) == settings.steps + 1
        half = len(energies) // 2
        early, late = np.ptp(energies[:half]), np.ptp(energies[half:])
        assert late < 1.5 * early
        assert abs(energies[:half].mean() - energies[half:].mean()) < 0.2 * early
        spreads.append(np.ptp(energies))
    assert spreads[0] / spreads[1] == pytest.approx(4, rel=0.2)
    assert np.ptp([frame.get_kinetic_energy() for frame in ase.io.read(tmp_path / "0.5.traj", ":")]) > 30 * spreads[0]


@pytest.mark.parametrize("ensemble", ["nve", "nvt", "npt-berendsen"])
def test_a_restart_is_the_run_that_was_not_interrupted(
    potential: Potential, crystal: Atoms, tmp_path: Path, ensemble: str
) -> None:
    """17 is no multiple of the interval. Edges come in another order after a restart, so the last digits may differ."""
    settings = DynamicsSettings(ensemble, steps=40, interval=5, seed=3, pressure=1.0)
    whole = run_dynamics(crystal, Calculator(potential), settings, tmp_path / "whole.traj")
    run_dynamics(crystal, Calculator(potential), replace(settings, steps=17), tmp_path / "parts.traj")
    parts = run_dynamics(crystal, Calculator(potential), settings, tmp_path / "parts.traj", restart=True)
    assert (parts.first, parts.last, whole.last) == (17, 40, 40)
    np.testing.assert_allclose(state(parts.atoms), state(whole.atoms), atol=1e-11, rtol=0)
    assert np.abs(whole.atoms.positions - crystal.positions).max() > 0.01
    steps = [frame.info["step"] for frame in ase.io.read(tmp_path / "parts.traj", ":")]
    assert steps == [0, 5, 10, 15, 17, 20, 25, 30, 35, 40]


class Eventful(Calculator):
    """Does something at a call."""

    def __init__(self, potential: Potential, call: int, event: Any) -> None:
        super().__init__(potential)
        self.calls, self.call, self.event = 0, call, event

    def calculate(self, *args: Any, **options: Any) -> None:
        self.calls += 1
        if self.calls == self.call:
            self.event()
        super().calculate(*args, **options)


@pytest.mark.parametrize("suffix", [".traj", ".xyz"])
def test_ctrl_c_ends_a_step_and_the_run_goes_on(potential: Potential, water: Atoms, tmp_path, suffix: str) -> None:
    settings, path = DynamicsSettings("nvt", steps=30, interval=4, timestep=0.5), tmp_path / f"a{suffix}"
    handler = signal.getsignal(signal.SIGINT)
    interrupting = Eventful(potential, 14, lambda: os.kill(os.getpid(), signal.SIGINT))
    found = run_dynamics(water, interrupting, settings, path)
    assert found.stopped
    assert 10 < found.last < 16
    assert signal.getsignal(signal.SIGINT) is handler
    assert [frame.info["step"] for frame in ase.io.read(path, ":")] == [0, 4, 8, 12, found.last]
    rest = run_dynamics(water, Calculator(potential), settings, path, restart=True)
    whole = run_dynamics(water, Calculator(potential), settings)
    assert (rest.stopped, rest.last) == (False, 30)
    bound = 1e-11 if suffix == ".traj" else 1e-5  # .xyz keeps eight decimals
    np.testing.assert_allclose(state(rest.atoms), state(whole.atoms), atol=bound, rtol=0)


def test_an_error_leaves_the_frames_until_then(potential: Potential, water: Atoms, tmp_path: Path) -> None:
    def lose() -> None:
        raise DataError("positions of atoms must be finite")

    path = tmp_path / "a.traj"
    with pytest.raises(DataError, match="positions of atoms must"):
        run_dynamics(water, Eventful(potential, 10, lose), DynamicsSettings(steps=30, interval=2), path)
    assert [frame.info["step"] for frame in ase.io.read(path, ":")] == [0, 2, 4, 6, 8]


def test_atoms_that_fly_apart_end_a_run(potential: Potential, water: Atoms, tmp_path: Path) -> None:
    """Frames until then are kept."""
    settings, path = DynamicsSettings(steps=200, timestep=10, temperature=100, interval=1), tmp_path / "a.traj"
    with pytest.raises(
        DataError, match=r"move by at most 1 Angstrom in a step, got \S+ of atom \d at step \d+: they fly"
    ):
        run_dynamics(water, Calculator(potential), settings, path)
    speeds = [np.linalg.norm(frame.get_velocities(), axis=1).max() for frame in ase.io.read(path, ":")]
    assert 0 < max(speeds) * 10 * units.fs <= 1


def test_velocities(potential: Potential, crystal: Atoms) -> None:
    """Velocities of the file, if it has some; else of the temperature, without a motion of the whole, by the seed."""
    many = crystal * (3, 3, 3)
    settings = DynamicsSettings(steps=0, temperature=500)
    first, again = (run_dynamics(many, Calculator(potential), settings).atoms for _ in range(2))
    np.testing.assert_array_equal(first.get_momenta(), again.get_momenta())
    assert np.abs(first.get_momenta().sum(0)).max() < 1e-12
    spread = (2 / (3 * len(many))) ** 0.5  # relative, of a temperature
    assert first.get_temperature() == pytest.approx(500, rel=4 * spread)
    moving = crystal.copy()
    moving.set_momenta(np.ones((len(crystal), 3)))
    kept = run_dynamics(moving, Calculator(potential), settings).atoms
    np.testing.assert_array_equal(kept.get_momenta(), moving.get_momenta())
    other = run_dynamics(many, Calculator(potential), replace(settings, seed=1)).atoms
    assert np.abs(other.get_momenta() - first.get_momenta()).max() > 0.1
    assert not run_dynamics(many, Calculator(potential), replace(settings, temperature=0)).atoms.get_momenta().any()


def test_the_thermostat_holds_a_temperature(potential: Potential, crystal: Atoms, tmp_path: Path) -> None:
    path, many = tmp_path / "a.traj", crystal * (2, 2, 1)
    settings = DynamicsSettings("nvt", steps=160, temperature=250, friction=50, interval=1, timestep=2)
    run_dynamics(many, Calculator(potential), settings, path)
    found = np.mean([frame.get_temperature() for frame in ase.io.read(path, "60:")])
    assert found == pytest.approx(250, rel=0.35)


@pytest.mark.parametrize("ensemble", ["npt", "npt-berendsen"])
def test_a_pressure_from_outside_shrinks_a_crystal(potential: Potential, crystal: Atoms, ensemble: str) -> None:
    volumes = []
    for pressure in (0.0, 40.0):
        settings = DynamicsSettings(ensemble, steps=30, temperature=50, pressure=pressure)
        volumes.append(run_dynamics(crystal, Calculator(potential), settings).atoms.get_volume())
    assert volumes[1] < 0.995 * volumes[0]


def test_the_log_goes_on(potential: Potential, water: Atoms, tmp_path: Path) -> None:
    path, log, settings = tmp_path / "a.traj", tmp_path / "a.log", DynamicsSettings(steps=20, timestep=0.5)
    run_dynamics(water, Calculator(potential), replace(settings, steps=10), path, log)
    run_dynamics(water, Calculator(potential), settings, path, log, restart=True)
    header, *rows = log.read_text().splitlines()
    assert header.startswith("Time[ps]")
    assert [float(row.split()[0]) for row in rows] == [0.0, 0.005, 0.01]
    frame = ase.io.read(path, "-1")
    assert float(rows[-1].split()[2]) == pytest.approx(frame.get_potential_energy(), abs=1e-4)
    assert frame.get_temperature() == pytest.approx(float(rows[-1].split()[4]), abs=0.1)


@pytest.mark.parametrize("suffix", [".traj", ".xyz"])
def test_time_goes_on_where_a_restart_changes_the_timestep(
    potential: Potential, water: Atoms, tmp_path: Path, suffix: str
) -> None:
    """10 steps of 1 fs and 5 of 5 fs are 0.035 ps."""
    path, log, settings = tmp_path / f"a{suffix}", tmp_path / "a.log", DynamicsSettings(steps=10, interval=5)
    run_dynamics(water, Calculator(potential), settings, path, log)
    other = replace(settings, steps=15, timestep=5.0, interval=1, temperature=200.0, seed=4)  # of no meaning to nve
    run_dynamics(water, Calculator(potential), other, path, log, restart=True)
    times = [0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035]
    assert [float(row.split()[0]) for row in log.read_text().splitlines()[1:]] == times
    frames = ase.io.read(path, ":")
    np.testing.assert_allclose([frame.info["time"] for frame in frames], times, rtol=1e-12)
    assert [frame.info["dynamics"]["timestep"] for frame in frames] == 3 * [1.0] + 5 * [5.0]


@pytest.mark.parametrize("suffix", [".traj", ".xyz"])
def test_a_restart_keeps_the_model(potential: Potential, water: Atoms, tmp_path: Path, suffix: str) -> None:
    """A copy in another dtype is the same model; one of other weights, or of other shifts alone, is not."""
    path, settings = tmp_path / f"a{suffix}", DynamicsSettings(steps=4, interval=2)
    run_dynamics(water, Calculator(potential), replace(settings, steps=2), path)
    before = path.read_bytes()
    other = copy.deepcopy(potential)
    other.shifts += 0.01
    with pytest.raises(ConfigError, match=r"must be with the model of .*a\S+, got one .* is \+0\.03 eV off\. Name"):
        run_dynamics(water, Calculator(other), settings, path, restart=True)
    assert path.read_bytes() == before
    assert run_dynamics(water, Calculator(copy.deepcopy(potential).float()), settings, path, restart=True).last == 4


@pytest.mark.parametrize(
    ("ensemble", "changed", "message"),
    [
        ("nve", {"ensemble": "nvt"}, r"ensemble must be nve throughout .*a\.traj, got nvt\. Pass"),
        ("nvt", {"temperature": 400.0}, r"temperature must be 300\.0 throughout .*a\.traj, got 400\.0\. Pass"),
        ("nvt", {"friction": 1.0}, r"friction must be 10\.0 throughout"),
        ("nvt", {"seed": 1}, r"seed must be 0 throughout .*, got 1\."),
        ("npt-berendsen", {"pressure": 1.0}, r"pressure must be 0\.0 throughout .*, got 1\.0\."),
    ],
)
def test_a_restart_keeps_ensemble_thermostat_and_barostat(
    potential: Potential, crystal: Atoms, tmp_path: Path, ensemble: str, changed: dict[str, Any], message: str
) -> None:
    settings, path = DynamicsSettings(ensemble, steps=1), tmp_path / "a.traj"
    run_dynamics(crystal, Calculator(potential), settings, path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=message):
        run_dynamics(crystal, Calculator(potential), replace(settings, steps=3, **changed), path, restart=True)
    assert path.read_bytes() == before


BAD = [
    ({"ensemble": "nph"}, "ensemble must be one of nve, nvt, npt, npt-berendsen, got 'nph'"),
    ({"timestep": 0}, "timestep must be a positive number of fs, got 0"),
    ({"steps": -1}, "steps must be an integer, at least 0, got -1"),
    ({"interval": 0}, "interval must be an integer, at least 1, got 0"),
    ({"temperature": -1}, "temperature must be a finite number of at least 0 of K, got -1"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=str)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DynamicsSettings(**options)


def test_runs_that_cannot_be(potential: Potential, water: Atoms, tmp_path: Path) -> None:
    calculator, settings, path = Calculator(potential), DynamicsSettings(steps=2), tmp_path / "a.traj"
    with pytest.raises(ConfigError, match="npt must"):
        run_dynamics(water, calculator, DynamicsSettings("npt"))
    with pytest.raises(ConfigError, match="restart must"):
        run_dynamics(water, calculator, settings, restart=True)
    with pytest.raises(ConfigError, match="structures must"):
        run_dynamics(water, calculator, settings, path, restart=True)
    run_dynamics(water, calculator, settings, path)
    with pytest.raises(ConfigError, match=r"the trajectory must .*got .*a\.traj, which is there"):
        run_dynamics(water, calculator, settings, path)
    with pytest.raises(ConfigError, match="the trajectory must"):
        run_dynamics(water, calculator, settings, tmp_path / "a.pdb")
    ase.io.write(tmp_path / "other.traj", water)
    with pytest.raises(ConfigError, match=r"a restart must .*got .* without steps"):
        run_dynamics(water, calculator, settings, tmp_path / "other.traj", restart=True)
    (tmp_path / "broken.traj").write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"broken\.traj must"):
        run_dynamics(water, calculator, settings, tmp_path / "broken.traj", restart=True)


@pytest.mark.parametrize("ensemble", ["npt", "npt-berendsen"])
def test_fixed_atoms_in_a_cell_that_moves(potential: Potential, crystal: Atoms, ensemble: str) -> None:
    crystal.set_constraint(FixAtoms([0]))
    with pytest.raises(ConfigError, match=f"{ensemble} must be of atoms that all move with the cell, got 1"):
        run_dynamics(crystal, Calculator(potential), DynamicsSettings(ensemble, steps=1))


def test_an_atom_that_leaves_is_said_once(potential: Potential) -> None:
    atoms = Atoms("OHH", positions=[[0, 0, 0], [0, 0, 1.0], [0, 1.0, 0]])
    atoms.set_velocities([[0, 0, 0], [0, 0, 0], [0, 5.0, 0]])
    settings = DynamicsSettings(steps=12, timestep=1.0)
    with pytest.warns(UserWarning, match=r"atom 2 \(H\) has no neighbour within the cutoff at step \d+") as said:
        found = run_dynamics(atoms, Calculator(potential), settings)
    assert len(said) == 1
    assert found.last == 12
