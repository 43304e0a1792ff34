"""Molecular dynamics that can be stopped after any step; a restart gives the trajectory of an uninterrupted run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms, units
from ase.md.langevin import Langevin
from ase.md.logger import MDLogger
from ase.md.nose_hoover_chain import IsotropicMTKNPT
from ase.md.nptberendsen import NPTBerendsen
from ase.md.verlet import VelocityVerlet

from ..cli.notices import progress, stop_asked
from ..core.checks import check_choice, check_integer, check_number, check_seed, check_type
from ..core.errors import ConfigError, DataError, EqlayersWarning
from ..core.files.read_write import check_output
from .frames import check_trajectory, frames, without_results, written_to

_DEVIATION = "forces_deviation"
_ANOTHER_MODEL = 1e-3  # eV an atom: energies that differ by more are of different models, not dtypes
_LARGEST_MOVE = 1.0  # Angstrom in a step, the length of a bond; hydrogen at 10,000 K moves by 0.16 in a femtosecond


@dataclass(frozen=True)
class DynamicsSettings:
    """Settings of molecular dynamics.

    Attributes:
        ensemble: A key of ``ENSEMBLES``.
        steps: Total number of steps, including steps before a restart.
        timestep: fs.
        temperature: K, of the thermostat and of initial velocities.
        pressure: GPa.
        friction: 1/ps, of the Langevin thermostat.
        interval: Steps between two frames, and between two lines of the log.
        seed: Seed of initial velocities and of Langevin noise.
        max_deviation: eV/Angstrom; the run stops where the members of a committee deviate by more in the force on an
            atom. None for no limit.
    """

    ensemble: str = "nve"
    steps: int = 1000
    timestep: float = 1.0
    temperature: float = 300.0
    pressure: float = 0.0
    friction: float = 10.0
    interval: int = 10
    seed: int = 0
    max_deviation: float | None = None

    def __post_init__(self) -> None:
        check_choice("ensemble", self.ensemble, ENSEMBLES)
        check_integer("steps", self.steps, 0)
        check_number("timestep", self.timestep, above=0, at_most=100, unit=" of fs", fix="0.5 to 2 are usual.")
        periodic = ENSEMBLES[self.ensemble].periodic  # barostats divide by the temperature
        above, least = (0.0, None) if periodic else (None, 0.0)
        fix = "Room temperature is 300."
        check_number("temperature", self.temperature, above=above, at_least=least, unit=" of K", fix=fix)
        check_number("pressure", self.pressure, unit=" of GPa", fix="0 is usual.")
        check_number("friction", self.friction, at_least=0, unit=" per ps", fix="1 to 10 are usual.")
        check_integer("interval", self.interval, 1)
        check_seed("seed", self.seed)
        if self.max_deviation is not None:
            fix = "0.2 is usual; None never stops."
            check_number("max_deviation", self.max_deviation, above=0, unit=" of eV/Angstrom", fix=fix)


class DynamicsOutcome(NamedTuple):
    """The outcome of a molecular dynamics run.

    Attributes:
        atoms: Final state, with ``info["step"]``.
        first: Number of the first step; above 0 after a restart.
        last: Number of the last step.
        stopped: Whether Ctrl-C ended the run.
        deviation: eV/Angstrom, the largest deviation of a committee in the force on an atom, over all steps of this
            run; None for a single potential.
        exceeded: Atom and its deviation in eV/Angstrom if ``max_deviation`` ended the run, else None.
    """

    atoms: Atoms
    first: int
    last: int
    stopped: bool
    deviation: float | None = None
    exceeded: tuple[int, float] | None = None


class Ensemble(NamedTuple):
    """One ensemble: help text, constructor of ASE's integrator, and requirements."""

    about: str
    integrator: Callable[..., Any]
    options: Callable[[DynamicsSettings], dict[str, Any]]  # arguments of the integrator besides atoms and time step
    periodic: bool = False
    forgets: bool = False  # whether its thermostat has a state that trajectories do not store
    fixed: tuple[str, ...] = ()  # settings that a restart must not change, besides the ensemble


def _langevin(settings: DynamicsSettings) -> dict[str, Any]:
    friction = settings.friction / (1000 * units.fs)
    return {"temperature_K": settings.temperature, "friction": friction, "fixcm": False}


def _barostat(settings: DynamicsSettings, **times: float) -> dict[str, Any]:
    return {"temperature_K": settings.temperature, "pressure_au": settings.pressure * units.GPa, **times}


def _npt(settings: DynamicsSettings) -> dict[str, Any]:
    step = settings.timestep * units.fs
    return _barostat(settings, tdamp=100 * step, pdamp=1000 * step)


def _berendsen(settings: DynamicsSettings) -> dict[str, Any]:
    return _barostat(settings, taut=100 * units.fs, taup=1000 * units.fs, compressibility_au=0.01 / units.GPa)


_BAROSTAT = ("temperature", "pressure")
ENSEMBLES = {
    "nve": Ensemble("velocity Verlet", VelocityVerlet, lambda settings: {}),
    "nvt": Ensemble("Langevin", Langevin, _langevin, fixed=("temperature", "friction", "seed")),
    "npt": Ensemble(
        "isotropic Martyna-Tobias-Klein with Nose-Hoover chains", IsotropicMTKNPT, _npt, True, True, _BAROSTAT
    ),
    "npt-berendsen": Ensemble("Berendsen; fluctuations are too small", NPTBerendsen, _berendsen, True, fixed=_BAROSTAT),
}


def run_dynamics(
    atoms: Atoms,
    calculator: Any,
    settings: DynamicsSettings,
    trajectory: str | Path | None = None,
    log: str | Path | None = None,
    restart: bool = False,
) -> DynamicsOutcome:
    """Run molecular dynamics; Ctrl-C ends the run after a step and writes its last state to the trajectory.

    Atoms without velocities get thermal velocities with zero total momentum. Noise depends on seed and step only, so
    a restart continues as the uninterrupted run would; ``npt`` alone resets its thermostat and barostat. A restart may
    change steps, interval, timestep and max_deviation. Every frame has its step, its time in ps and its settings in
    ``info``.

    Args:
        atoms: Initial structure; a copy is moved.
        calculator: ASE calculator, such as :class:`eqlayers.integrations.ase.Calculator`.
        settings: Ensemble, steps and further settings.
        trajectory: A ``.traj``, which keeps every digit, or ``.xyz``; None writes none.
        log: A text file for time, energies and temperature, and the largest force deviation of a committee.
        restart: Continue from the last frame of the trajectory.

    Returns:
        A :class:`DynamicsOutcome`.

    Raises:
        ConfigError: The ensemble needs a periodic cell, the trajectory exists (or is missing for a restart), a restart
            has another model, ensemble, thermostat or barostat, or max_deviation is set without a committee.
        DataError: Atoms fly apart, or a file cannot be read; earlier frames are kept.

    Source:
        Swope et al. 1982, doi:10.1063/1.442716; Vanden-Eijnden and Ciccotti 2006, doi:10.1016/j.cplett.2006.07.086;
        Martyna, Tobias and Klein 1994, doi:10.1063/1.467468; Berendsen et al. 1984, doi:10.1063/1.448118.

    Example:
        >>> import torch
        >>> from ase.build import molecule
        >>> from eqlayers.integrations.ase import Calculator
        >>> from eqlayers.models import Potential
        >>> from eqlayers.testing import ToyNetwork
        >>> calculator = Calculator(Potential(ToyNetwork(2), species=[1, 8]), torch.float64)
        >>> run_dynamics(molecule("H2O"), calculator, DynamicsSettings(steps=5)).last
        5
    """
    check_type("atoms", atoms, Atoms, "an ase.Atoms", "Read one with ase.io.read(path).")
    ensemble = ENSEMBLES[settings.ensemble]
    if restart and trajectory is None:
        raise ConfigError(
            "restart must be from a trajectory, got none. Name the trajectory of the run that was stopped."
        )
    path = None if trajectory is None else check_trajectory(trajectory, "the trajectory", new=not restart)
    moved, before = atoms.copy(), None
    if restart and path is not None:
        (end,) = frames(path, "-1")
        before, moved = getattr(end.calc, "results", {}).get("energy"), without_results(end)
    if moved.numbers.tolist() != atoms.numbers.tolist():
        raise ConfigError(
            f"a restart must be of the atoms of the trajectory, got {atoms.get_chemical_formula()}, where {path} has "
            f"{moved.get_chemical_formula()}. Name the structure that it began with."
        )
    first, start_time = _end_of_trajectory(moved, settings, path) if restart else (0, 0.0)
    if ensemble.periodic and not (moved.pbc.all() and moved.cell.volume > 0):
        raise ConfigError(
            f"{settings.ensemble} must have a structure with a cell that is periodic along all axes, got pbc "
            f"{moved.pbc.tolist()}. Use nvt."
        )
    if ensemble.periodic and moved.constraints:
        raise ConfigError(
            f"{settings.ensemble} must be of atoms that all move with the cell, got {len(moved.constraints)} "
            "constraints such as fixed atoms. Use nvt, or remove them: atoms.set_constraint()."
        )
    committee = _DEVIATION in getattr(calculator, "implemented_properties", ())
    if settings.max_deviation is not None and not committee:
        raise ConfigError(
            f"max_deviation must be left out for one potential, got {settings.max_deviation:g}. Run a committee: "
            "Calculator([...]), or -m with several models."
        )
    if not restart and not moved.get_momenta().any() and settings.temperature > 0:
        give_velocities(moved, settings)
    moved.calc = calculator
    moved.info |= {"step": first, "time": start_time, "dynamics": asdict(settings)}
    moved.get_forces()  # errors of the calculator are raised before a file is created
    if before is not None and abs(now := moved.get_potential_energy() - before) > _ANOTHER_MODEL * len(moved):
        raise ConfigError(
            f"a restart must be with the model of {path}, got one whose energy of the last frame is {now:+.6g} eV "
            "off. Name that model, or begin another trajectory with its last frame."
        )
    _check_speed(moved, settings)
    dynamics = ensemble.integrator(moved, settings.timestep * units.fs, **ensemble.options(settings))
    dynamics.nsteps = first
    dynamics.get_time = lambda: 1000 * units.fs * moved.info["time"]  # time in the log
    logger = None if log is None else _Logger(dynamics, moved, log, restart, ensemble.periodic)
    stopped, lone = False, set(_lone_atoms(moved))
    largest, exceeded = None, None
    with stop_asked() as stop, written_to(path, restart) as write, progress("dynamics", settings.steps) as say:
        try:
            written = first if restart else -1
            for _ in dynamics.irun(max(0, settings.steps - first)):
                step = moved.info["step"] = int(dynamics.nsteps)
                moved.info["time"] = start_time + (step - first) * settings.timestep / 1000
                _check_speed(moved, settings)
                dynamics.rng = np.random.default_rng((settings.seed, 0, step))  # noise of the next step
                due = step % settings.interval == 0
                stopped = stop() and step < settings.steps
                if committee:
                    atom, deviation = _largest_deviation(moved)
                    largest = max(largest or 0.0, deviation)
                    if settings.max_deviation is not None and not deviation <= settings.max_deviation:
                        exceeded = atom, deviation
                if due or step == settings.steps:
                    _warn_of_lone_atoms(moved, step, lone)
                if (due or stopped or exceeded or step == settings.steps) and step > written:
                    write(moved)
                    written = step
                    if logger is not None:
                        logger()
                spread = f", deviation {deviation:.3g} eV/A" if committee else ""
                say(step, f"{moved.get_temperature():.0f} K{spread}")
                if stopped or exceeded:
                    break
        finally:
            if logger is not None:
                logger.close()
    last = int(moved.info["step"])
    return DynamicsOutcome(moved, first, last, stopped and not exceeded, largest, exceeded)


def _end_of_trajectory(last: Atoms, settings: DynamicsSettings, trajectory: Any) -> tuple[int, float]:
    """Step and time in ps of the last frame; raise unless a restart with these settings can continue it."""
    step, time, before = (last.info.get(name) for name in ("step", "time", "dynamics"))
    if not (isinstance(step, (int, np.integer)) and isinstance(time, (int, float)) and isinstance(before, dict)):
        raise ConfigError(
            f"a restart must be from a trajectory of dynamics, got {trajectory} without steps, time and settings. "
            "Start without restart."
        )
    for name in ("ensemble", *ENSEMBLES[settings.ensemble].fixed):
        if before.get(name) != (now := getattr(settings, name)):
            raise ConfigError(
                f"{name} must be {before.get(name)} throughout {trajectory}, got {now}. Pass the trajectory's, "
                "or begin another trajectory with its last frame."
            )
    return int(step), float(time)


def _largest_deviation(atoms: Atoms) -> tuple[int, float]:
    """The atom with the largest force deviation of a committee, and that deviation in eV/Angstrom."""
    deviations = atoms.calc.get_property(_DEVIATION, atoms)
    atom = int(np.argmax(deviations))
    return atom, float(deviations[atom])


def _check_speed(atoms: Atoms, settings: DynamicsSettings) -> None:
    """Raise if an atom would move by more than the length of a bond in one step."""
    moves = np.linalg.norm(atoms.get_velocities(), axis=1) * settings.timestep * units.fs
    if not moves.max() <= _LARGEST_MOVE:
        raise DataError(
            f"atoms must move by at most {_LARGEST_MOVE:g} Angstrom in a step, got {moves.max():.3g} of atom "
            f"{int(moves.argmax())} at step {atoms.info['step']}: they fly apart. Shorten the timestep, relax the "
            "structure first, or train the potential on such structures."
        )


def _lone_atoms(atoms: Atoms) -> list[int]:
    """Atoms without neighbours within the cutoff of a potential; none for other calculators."""
    cutoff = getattr(getattr(atoms.calc, "potential", None), "cutoff", None)
    if cutoff is None or len(atoms) < 2 or atoms.pbc.all():
        return []
    edges = atoms.calc.neighbors(atoms)[0]
    return np.flatnonzero(np.bincount(edges[1].numpy(), minlength=len(atoms)) == 0).tolist()


def _warn_of_lone_atoms(atoms: Atoms, step: int, lone: set[int]) -> None:
    """Warn once of each atom without neighbours, on which no force acts, and add it to ``lone``."""
    for atom in set(_lone_atoms(atoms)) - lone:
        lone.add(atom)
        warnings.warn(
            f"atom {atom} ({atoms.symbols[atom]}) has no neighbour within the cutoff at step {step}: it has left, "
            "feels no force and flies on. Take the run until then, a lower temperature, or a periodic cell.",
            EqlayersWarning,
            stacklevel=3,
        )


def give_velocities(atoms: Atoms, settings: DynamicsSettings) -> None:
    """Set velocities drawn from the Maxwell-Boltzmann distribution, with zero total momentum."""
    generator = np.random.default_rng((settings.seed, 1))  # the noise of steps has other seeds
    masses = atoms.get_masses()[:, None]
    momenta = np.sqrt(masses * units.kB * settings.temperature) * generator.standard_normal((len(atoms), 3))
    if len(atoms) > 1:
        momenta -= masses * momenta.sum(0) / masses.sum()
    atoms.set_momenta(momenta)


class _Logger(MDLogger):
    """ASE's log of dynamics; for a committee with one more column, the largest force deviation on an atom."""

    def __init__(self, dynamics: Any, atoms: Atoms, path: str | Path, restart: bool, stress: bool) -> None:
        file, mode = str(check_output(path, "the log")), "a" if restart else "w"
        super().__init__(dynamics, atoms, file, header=False, stress=stress, mode=mode)
        self.committee = _DEVIATION in getattr(atoms.calc, "implemented_properties", ())
        if self.committee:
            self.hdr += " Fdev[eV/A]"
            self.fmt = self.fmt.removesuffix("\n")
        if not restart:
            self.logfile.write(self.hdr + "\n")

    def __call__(self) -> None:
        """Write one line of the log."""
        super().__call__()
        if self.committee:
            self.logfile.write(f" {_largest_deviation(self.atoms)[1]:10.4f}\n")
            self.logfile.flush()
