"""The course of molecular dynamics, read from its trajectory: a picture, and a page with what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase.units import GPa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..pages import COLOURS, GREY, Facts, Picture, Section, Text, new_figure, number, save_figure, write_page
from .dynamics import ENSEMBLES, DynamicsSettings
from .frames import frames
from .watch import progress

Array = NDArray[np.float64]
FEWEST = 3  # frames, for a line through them and its error


class Course(NamedTuple):
    """Values of the frames of a trajectory, `[F]` each.

    Attributes:
        atoms: How many there are.
        time: ps.
        potential, kinetic: eV.
        temperature: K.
        volume: Angstrom^3; NaN without a cell.
        pressure: GPa, with the motion of the atoms; NaN where the frames have no stress.
    """

    atoms: int
    time: Array
    potential: Array
    kinetic: Array
    temperature: Array
    volume: Array
    pressure: Array

    @property
    def total(self) -> Array:
        """Total energy in meV per atom, relative to the first frame."""
        total = self.potential + self.kinetic
        return 1e3 * (total - total[0]) / self.atoms


def course_of(trajectory: str | Path, timestep: float) -> Course:
    """Read a trajectory that :func:`eqlayers.simulate.run_dynamics` wrote."""
    rows: list[tuple[float, ...]] = []
    atoms = 0
    with progress("read the trajectory", 0) as say:
        for frame in frames(trajectory):
            atoms = len(frame)
            pressure = np.nan
            if "stress" in getattr(frame.calc, "results", {}) and frame.cell.volume > 0:
                pressure = -frame.get_stress(include_ideal_gas=True)[:3].mean() / GPa
            rows.append(
                (
                    frame.info.get("step", len(rows)) * timestep / 1000,
                    frame.get_potential_energy(),
                    frame.get_kinetic_energy(),
                    frame.get_temperature(),
                    frame.cell.volume if frame.pbc.all() else np.nan,
                    pressure,
                )
            )
            say(len(rows), f"{len(rows)} frames")
    return Course(atoms, *np.array(rows, dtype=float).T)


def drift_of(course: Course) -> tuple[float, float]:
    """Slope of a line through the total energy in meV per atom and ns, and its error for independent deviations."""
    time, energy = course.time / 1000, course.total
    slope, start = np.polyfit(time, energy, 1)
    rest = energy - start - slope * time
    spread = np.square(rest).sum() / (len(time) - 2) / np.square(time - time.mean()).sum()
    return float(slope), float(np.sqrt(spread))


def _panels(course: Course, settings: DynamicsSettings) -> dict[str, Callable[[Axes], None]]:
    """Functions that draw, by the text below the drawing."""
    time, ensemble = course.time, ENSEMBLES[settings.ensemble]

    def energies(axis: Axes) -> None:
        potential = 1e3 * (course.potential - course.potential[0]) / course.atoms
        axis.plot(time, potential, color=COLOURS[1], linewidth=1.0, label="potential")
        axis.plot(time, course.total, color=COLOURS[0], linewidth=1.4, label="total")
        axis.set_ylabel("energy (meV/atom)")
        axis.legend(fontsize=8)

    def conserved(axis: Axes) -> None:
        axis.plot(time, course.total, color=COLOURS[0], linewidth=1.0)
        slope = drift_of(course)[0]
        start = course.total.mean() - slope * time.mean() / 1000
        label = f"drift {slope:.3g} meV/atom/ns"
        axis.plot(time, start + slope * time / 1000, color=COLOURS[3], linewidth=1.4, linestyle="--", label=label)
        axis.set_ylabel("total energy (meV/atom)")
        axis.legend(fontsize=8)

    def of(values: Array, name: str, wanted: float | None) -> Callable[[Axes], None]:
        def draw(axis: Axes) -> None:
            axis.plot(time, values, color=COLOURS[0], linewidth=1.0)
            mean = float(np.nanmean(values))
            axis.axhline(mean, color=COLOURS[3], linewidth=1.4, linestyle="--", label=f"mean {number(mean)}")
            if wanted is not None:
                axis.axhline(wanted, color=GREY, linewidth=1.0, linestyle=":", label=f"wanted {number(wanted)}")
            axis.set_ylabel(name)
            axis.legend(fontsize=8)

        return draw

    constant = settings.ensemble == "nve"
    panels: dict[str, Callable[[Axes], None]] = {"Potential and total energy, relative to the first frame.": energies}
    if constant:
        panels["Total energy, which nve keeps, on a scale of its own."] = conserved
    panels["Temperature."] = of(course.temperature, "temperature (K)", None if constant else settings.temperature)
    if ensemble.periodic:
        panels["Volume of the cell."] = of(course.volume, "volume (A^3)", None)
    if np.isfinite(course.pressure).any():
        wanted = settings.pressure if ensemble.periodic else None
        panels["Pressure, with the motion of the atoms."] = of(course.pressure, "pressure (GPa)", wanted)
    return panels


def _finish(axis: Axes) -> None:
    axis.set_xlabel("time (ps)")
    axis.grid(alpha=0.25)
    axis.ticklabel_format(useOffset=False)


def _drawn(panels: Mapping[str, Callable[[Axes], None]]) -> Figure:
    figure = new_figure(6.4, 2.3 * len(panels))
    for axis, draw in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.values(), strict=True):
        draw(axis)
        _finish(axis)
    return figure


def _mean(values: Array, unit: str) -> str:
    return f"{values.mean():.4g} {unit} on average, with a standard deviation of {values.std():.3g} {unit}"


def write_course(trajectory: str | Path, settings: DynamicsSettings, facts: Mapping[str, str]) -> list[Path]:
    """Write the picture (PNG) and the page (HTML) of a trajectory beside it."""
    place = Path(trajectory)
    course = course_of(place, settings.timestep)
    if len(course.time) < FEWEST:
        return []
    panels = _panels(course, settings)
    measured = {"frames": f"{len(course.time):,}", "temperature": _mean(course.temperature, "K")}
    about: Any = f"{settings.ensemble} dynamics of {course.atoms} atoms for {number(course.time[-1])} ps."
    notes = []
    if settings.ensemble == "nve":
        slope, error = drift_of(course)
        measured["drift of the total energy"] = f"{slope:.3g} ± {error:.2g} meV/atom/ns"
        rest = float(np.abs(course.total - course.total.mean()).max())
        measured["total energy"] = f"within {rest:.3g} meV/atom of its mean"
    else:
        notes.append(Text("The thermostat gives and takes energy, so the total energy may change."))
    if ENSEMBLES[settings.ensemble].periodic:
        measured["volume"] = _mean(course.volume, "A^3")
    if np.isfinite(course.pressure).all():
        measured["pressure"] = _mean(course.pressure, "GPa")
    run = {
        "ensemble": f"{settings.ensemble}: {ENSEMBLES[settings.ensemble].about}",
        "time step": f"{settings.timestep:g} fs, a frame every {settings.interval} steps",
        "trajectory": str(place),
    }
    pictures = []
    for caption, draw in panels.items():
        figure = new_figure(4.6, 3.0)
        axis = figure.subplots()
        draw(axis)
        _finish(axis)
        pictures.append(Picture(figure, caption))
    sections = [
        Section("What was run", [Facts({**facts, **run})]),
        Section("What came out", [Facts(measured), *notes]),
        Section("Pictures", pictures),
    ]
    picture, page = place.with_suffix(".png"), place.with_suffix(".html")
    save_figure(_drawn(panels), picture)
    write_page(page, f"Dynamics {place.stem}", about, sections)
    return [picture, page]
