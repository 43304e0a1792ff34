"""The picture and the page about dynamics hold what the frames say."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator
from ase.units import GPa

from eqlayers.cli.main import main
from eqlayers.simulate import DynamicsSettings, run_dynamics
from eqlayers.simulate.course import Course, drift_of, write_course
from eqlayers.simulate.frames import frames

pytestmark = pytest.mark.pictures


def of_energies(time: np.ndarray, total: np.ndarray, timestep: np.ndarray | None = None) -> Course:
    """The course of four atoms without velocities."""
    images = [Atoms("Ar4") for _ in time]
    for atoms, moment, energy, step in zip(
        images, time, total, np.ones_like(time) if timestep is None else timestep, strict=True
    ):
        atoms.info |= {"time": moment, "dynamics": {"timestep": step}}
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
    return Course(images)


def test_drift_is_the_slope_in_meV_per_atom_and_ns() -> None:
    time = np.linspace(0, 2, 201)
    noise = 1e-3 * np.where(np.arange(201) % 2, 1, -1)
    slope, error = drift_of(of_energies(time, 7.0 + 4 * 5e-6 * time + noise))  # 5e-6 eV/ps/atom
    assert abs(slope - 5.0) < 3 * error
    assert error < 50.0
    exact, none = drift_of(of_energies(time, 7.0 + 4 * 5e-6 * time))
    assert exact == pytest.approx(5.0)
    assert none < 1e-6


def test_the_error_of_a_drift_by_hand() -> None:
    """Three points with 0, 0.25 and 0 meV per atom, one picosecond apart: deviations of -1/12, 1/6 and -1/12 meV."""
    slope, error = drift_of(of_energies(np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.001, 0.0])))
    assert abs(slope) < 1e-9
    assert error == pytest.approx(np.sqrt((1 / 24) / 2e-6))


def test_a_drift_is_of_the_last_timestep() -> None:
    """2 meV per atom and ns with steps of 1 fs, then a jump and 7 with steps of 2 fs; of two frames there is none."""
    time = np.arange(10.0)
    total = 4e-6 * np.where(time < 5, 2.0 * time, 500 + 7.0 * time)
    slope, _ = drift_of(of_energies(time, total, np.where(time < 5, 1.0, 2.0)))
    assert slope == pytest.approx(7.0)
    assert np.isnan(drift_of(of_energies(time, total, np.where(time < 8, 1.0, 2.0)))).all()


def test_the_page_says_all_timesteps(tmp_path: Path) -> None:
    atoms = Atoms("Ar2", [[0, 0, 0], [0, 0, 3.9]])
    path, settings = tmp_path / "a.traj", DynamicsSettings(steps=4, interval=1, timestep=1.0, temperature=30.0)
    run_dynamics(atoms, LennardJones(), settings, path)
    settings = DynamicsSettings(steps=8, interval=1, timestep=2.0, temperature=30.0)
    run_dynamics(atoms, LennardJones(), settings, path, restart=True)
    text = write_course(path, settings, {})[1].read_text()
    for part in ("1, then 2 fs, a frame every 1 steps", "meV/atom/ns, from 0.006 ps on", "for 0.012 ps"):
        assert part in text


def test_atoms_that_do_not_meet_have_the_pressure_of_an_ideal_gas(tmp_path: Path) -> None:
    atoms = Atoms("Ar4", 8.0 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]]), cell=[16, 16, 16], pbc=True)
    settings = DynamicsSettings(steps=2, interval=2, timestep=0.5, temperature=30.0, ensemble="npt-berendsen")
    run_dynamics(atoms, LennardJones(rc=4.0), settings, tmp_path / "a.traj")
    course = Course(frames(tmp_path / "a.traj"))
    np.testing.assert_allclose(course.pressure * GPa, 2 / 3 * course.kinetic / course.volume, rtol=1e-9)


def test_the_course_is_what_the_frames_say(tmp_path: Path) -> None:
    atoms = Atoms("Ar4", 1.2 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]]), cell=[9, 9, 9], pbc=True)
    settings = DynamicsSettings(steps=6, interval=2, timestep=0.5, temperature=30.0, ensemble="npt-berendsen")
    found = run_dynamics(atoms, LennardJones(rc=4.0), settings, tmp_path / "a.traj")
    course = Course(frames(tmp_path / "a.traj"))
    np.testing.assert_allclose(course.time, [0, 0.001, 0.002, 0.003])
    moved = found.atoms
    last = (moved.get_potential_energy(), moved.get_kinetic_energy(), moved.get_temperature(), moved.get_volume())
    read = [column[-1] for column in (course.potential, course.kinetic, course.temperature, course.volume)]
    np.testing.assert_allclose(read, last)
    written = write_course(tmp_path / "a.traj", settings, {"model": "springs"})
    assert [path.name for path in written] == ["a.png", "a.html"]
    text = written[1].read_text()
    for part in ("<dd>springs</dd>", "temperature (K)", "volume (A^3)", "pressure (GPa)", "may change"):
        assert part in text
    assert "drift" not in text, "a thermostat changes the energy"


def test_the_command_says_where_they_are(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["md", "water.xyz", "-m", "toy.pt", "--interval", "1", "--timestep", "0.1"]
    assert main([*short, "--steps", "3"]) == 0
    assert "report       water_md.png, water_md.html" in capsys.readouterr().out
    text = (place / "water_md.html").read_text()
    for part in ("drift of the total energy", "meV/atom/ns", "eqlayers md water.xyz -m toy.pt", "temperature (K)"):
        assert part in text
    assert "http" not in text
    assert "volume" not in text, "a molecule has none"
    assert (place / "water_md.png").stat().st_size > 5000
    assert main([*short, "--steps", "3", "-o", "b.traj", "--report", "false"]) == 0
    assert main([*short, "--steps", "1", "-o", "c.traj"]) == 0
    assert not [*place.glob("b.html"), *place.glob("c.html")], "none asked for; too few frames"


def test_pictures_and_pages_of_the_user_stay(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = place / "run.html"
    mine.write_text("mine")
    command = ["md", "water.xyz", "-m", "toy.pt", "--steps", "3", "--interval", "1", "-o", "run.traj"]
    assert main(command) == 2
    assert "--report must write new files, got run.html, which is there" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert not (place / "run.traj").exists(), "said before the first step"
    assert main([*command, "--report", "false"]) == 0
    assert mine.read_text() == "mine"


def test_the_page_has_distances_and_displacements(tmp_path: Path) -> None:
    atoms = Atoms("Ar4", 1.2 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]]), cell=[9, 9, 9], pbc=True)
    for ensemble, displaced in (("nve", True), ("npt-berendsen", False)):
        settings = DynamicsSettings(steps=6, interval=2, timestep=0.5, temperature=30.0, ensemble=ensemble)
        run_dynamics(atoms.copy(), LennardJones(rc=4.0), settings, tmp_path / f"{ensemble}.traj")
        text = write_course(tmp_path / f"{ensemble}.traj", settings, {})[1].read_text()
        assert "Radial distribution function, mean of 4 frames" in text
        assert ("Mean square displacement" in text) == displaced
