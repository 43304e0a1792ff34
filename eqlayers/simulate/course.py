"""The course of molecular dynamics, read from its trajectory: a picture, and a page with what it means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.geometry.rdf import get_rdf
from ase.md.analysis import DiffusionCoefficient
from ase.units import GPa
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..cli.notices import progress
from ..pages.page import COLOURS, GREY, Facts, Picture, Section, Text, new_figure, number, save_figure, write_page
from .dynamics import ENSEMBLES, DynamicsSettings
from .frames import frames

Array = NDArray[np.float64]
FEWEST = 3  # frames, for a line through them and its error
MOST_FRAMES, MOST_ATOMS = 200, 50_000  # for distances: frames, and atoms of all frames together
FARTHEST, BINS = 8.0, 120  # of radial distributions: largest distance in Angstrom, and number of intervals
MOST_SPECIES = 3  # above this number of species, only g(r) of all atoms is computed


#: Numbers or one number, a label, and how the line looks.
Curve = tuple[Array | float, str | None, dict[str, Any]]
THIN = {"color": COLOURS[0], "linewidth": 1.0}
SECOND = THIN | {"color": COLOURS[1]}
DASHED = {"color": COLOURS[3], "linewidth": 1.4, "linestyle": "--"}
DOTTED = {"color": GREY, "linewidth": 1.0, "linestyle": ":"}


class Panel(NamedTuple):
    """A drawing: the text below it, the label of its axis, its curves, and their horizontal axis if it is not time."""

    caption: str
    label: str
    curves: list[Curve]
    across: tuple[str, Array] | None = None


class Course:
    """Values of the frames of a trajectory that :func:`eqlayers.simulate.run_dynamics` wrote, `[F]` each.

    Attributes:
        atoms: How many there are.
        time: ps.
        timestep: fs; one trajectory has several where a restart changed it.
        potential, kinetic: eV.
        temperature: K.
        volume: Angstrom^3; NaN without a cell.
        pressure: GPa, with the motion of the atoms; NaN where the frames have no stress.
        total: Total energy in meV per atom, relative to the first frame.
        last_part: Mask of the frames with the final timestep: the conserved energy depends on the timestep.
    """

    def __init__(self, images: Iterable[Atoms]) -> None:
        rows: list[tuple[float, ...]] = []
        with progress("read the trajectory") as say:
            for frame in images:
                self.atoms = len(frame)
                pressure = np.nan
                if "stress" in getattr(frame.calc, "results", {}) and frame.cell.volume > 0:
                    pressure = -frame.get_stress(include_ideal_gas=True)[:3].mean() / GPa
                times = frame.info["time"], frame.info["dynamics"]["timestep"]
                energies = frame.get_potential_energy(), frame.get_kinetic_energy(), frame.get_temperature()
                rows.append((*times, *energies, frame.cell.volume if frame.pbc.all() else np.nan, pressure))
                say(len(rows), f"{len(rows)} frames")
        columns: tuple[Array, ...] = tuple(np.array(rows, dtype=float).T)
        self.time, self.timestep, self.potential, self.kinetic, self.temperature, self.volume, self.pressure = columns
        total = self.potential + self.kinetic
        self.total = 1e3 * (total - total[0]) / self.atoms
        changed = np.flatnonzero(np.diff(self.timestep))
        self.last_part = np.arange(len(self.time)) > (changed[-1] if len(changed) else -1)


def drift_of(course: Course) -> tuple[float, float]:
    """Slope of a line through the total energy in meV per atom and ns, and its error for independent deviations.

    The line is through the frames of the last timestep. Both are NaN of fewer than three frames.
    """
    time, energy = course.time[course.last_part] / 1000, course.total[course.last_part]
    if len(time) < FEWEST:
        return np.nan, np.nan
    (slope, _), covariance = np.polyfit(time, energy, 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


def _panels(course: Course, settings: DynamicsSettings) -> list[Panel]:
    time, ensemble = course.time, ENSEMBLES[settings.ensemble]

    def around(caption: str, label: str, values: Array, target: float | None = None) -> Panel:
        mean = float(np.nanmean(values))
        curves: list[Curve] = [(values, None, THIN), (mean, f"mean {number(mean)}", DASHED)]
        if target is not None:
            curves.append((target, f"wanted {number(target)}", DOTTED))
        return Panel(caption, label, curves)

    potential = 1e3 * (course.potential - course.potential[0]) / course.atoms
    energies: list[Curve] = [(potential, "potential", SECOND), (course.total, "total", THIN | {"linewidth": 1.4})]
    panels = [Panel("Potential and total energy, relative to the first frame.", "energy (meV/atom)", energies)]
    constant = settings.ensemble == "nve"
    if constant:
        slope, part = drift_of(course)[0], course.last_part
        line = course.total[part].mean() + slope * (time - time[part].mean()) / 1000
        line[~part] = np.nan
        conserved: list[Curve] = [(course.total, None, THIN), (line, f"drift {slope:.3g} meV/atom/ns", DASHED)]
        caption = "Total energy, which nve keeps, on a scale of its own."
        panels.append(Panel(caption, "total energy (meV/atom)", conserved))
    target = None if constant else settings.temperature
    panels.append(around("Temperature.", "temperature (K)", course.temperature, target))
    if ensemble.periodic:
        panels.append(around("Volume of the cell.", "volume (A^3)", course.volume))
    if np.isfinite(course.pressure).any():
        target = settings.pressure if ensemble.periodic else None
        panels.append(around("Pressure, with the motion of the atoms.", "pressure (GPa)", course.pressure, target))
    return panels


def _of_atoms(trajectory: Path, course: Course, barostat: bool) -> list[Panel]:
    """Panels of distances and, if the cell is constant, of displacements, from evenly spaced frames."""
    most = max(FEWEST, min(MOST_FRAMES, MOST_ATOMS // course.atoms))
    step = -(-len(course.time) // most)
    images = list(frames(trajectory, f"::{step}"))
    looks = [THIN | {"color": colour} for colour in COLOURS]
    panels = []
    distances, functions = radial_distribution(images)
    if functions:
        curves: list[Curve] = [(g, name, looks[n % len(looks)]) for n, (name, g) in enumerate(functions.items())]
        caption = f"Radial distribution function, mean of {len(images)} frames."
        panels.append(Panel(caption, "g(r)", curves, ("distance (A)", distances)))
    if not barostat:
        squares = mean_square_displacement(images)
        curves = [(values, name, looks[n % len(looks)]) for n, (name, values) in enumerate(squares.items())]
        caption = "Mean square displacement from the first frame, relative to the centre of mass."
        panels.append(Panel(caption, "displacement (A^2)", curves, ("time (ps)", course.time[::step])))
    return panels


def _drawn(panels: Sequence[Panel], time: Array, width: float, height: float) -> Figure:
    """A figure with panels below each other; ``width`` and ``height`` of one panel are in inches."""
    figure = new_figure(width, height * len(panels))
    for axis, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        name, across = panel.across or ("time (ps)", time)
        for values, label, look in panel.curves:
            axis.plot(across, np.broadcast_to(values, across.shape), label=label, **look)
        axis.set(xlabel=name, ylabel=panel.label)
        axis.legend(fontsize=8)
        axis.grid(alpha=0.25)
        axis.ticklabel_format(useOffset=False)
    return figure


def _mean(values: Array, unit: str) -> str:
    return f"{values.mean():.4g} {unit} on average, with a standard deviation of {values.std():.3g} {unit}"


def write_course(trajectory: str | Path, settings: DynamicsSettings, facts: Mapping[str, str]) -> list[Path]:
    """Write the picture (PNG) and the page (HTML) of a trajectory beside it."""
    path = Path(trajectory)
    course = Course(frames(path))
    if len(course.time) < FEWEST:
        return []
    panels = _panels(course, settings) + _of_atoms(path, course, ENSEMBLES[settings.ensemble].periodic)
    measured = {"frames": f"{len(course.time):,}", "temperature": _mean(course.temperature, "K")}
    about: Any = f"{settings.ensemble} dynamics of {course.atoms} atoms for {number(course.time[-1])} ps."
    notes = []
    if settings.ensemble == "nve":
        slope, error = drift_of(course)
        part = "" if course.last_part.all() else f", from {number(course.time[course.last_part][0])} ps on"
        measured["drift of the total energy"] = f"{slope:.3g} ± {error:.2g} meV/atom/ns{part}"
        rest = float(np.abs(course.total - course.total.mean()).max())
        measured["total energy"] = f"within {rest:.3g} meV/atom of its mean"
    else:
        notes.append(Text("The thermostat gives and takes energy, so the total energy may change."))
    if ENSEMBLES[settings.ensemble].periodic:
        measured["volume"] = _mean(course.volume, "A^3")
    if np.isfinite(course.pressure).all():
        measured["pressure"] = _mean(course.pressure, "GPa")
    steps = ", then ".join(f"{step:g}" for step in course.timestep[np.diff(course.timestep, prepend=0) != 0])
    run = {
        "ensemble": f"{settings.ensemble}: {ENSEMBLES[settings.ensemble].about}",
        "time step": f"{steps} fs, a frame every {settings.interval} steps",
        "trajectory": str(path),
    }
    pictures = [Picture(_drawn([panel], course.time, 4.6, 3.0), panel.caption) for panel in panels]
    sections = [
        Section("What was run", [Facts({**facts, **run})]),
        Section("What came out", [Facts(measured), *notes]),
        Section("Pictures", pictures),
    ]
    picture, page = path.with_suffix(".png"), path.with_suffix(".html")
    save_figure(_drawn(panels, course.time, 6.4, 2.3), picture)
    write_page(page, f"Dynamics {path.stem}", about, sections)
    return [picture, page]


def radial_distribution(images: Sequence[Atoms]) -> tuple[Array, dict[str, Array]]:
    """Radial distribution functions g(r), averaged over structures in periodic cells.

    Args:
        images: Structures of the same atoms.

    Returns:
        The distances ``[B]`` in Angstrom, up to half of the smallest height of the cells and 8 Angstrom at most; and
        g(r) ``[B]`` of all atoms ('all') and of each pair of species ('H-O'), which goes to 1 where atoms are
        independent. No functions if a cell is not periodic along all axes.

    Example:
        >>> from ase.build import bulk
        >>> distances, functions = radial_distribution([bulk("Cu", cubic=True).repeat(3)])
        >>> bool(2.5 < distances[functions["all"].argmax()] < 2.6), list(functions)
        (True, ['all'])
    """
    if not all(atoms.pbc.all() and atoms.cell.volume > 0 for atoms in images):
        return np.empty(0), {}
    heights = [1 / np.linalg.norm(atoms.cell.reciprocal().array, axis=1) for atoms in images]
    farthest = min(FARTHEST, 0.499 * float(np.min(heights)))  # ASE rejects half of the height itself
    species = sorted(set(images[0].symbols))
    pairs = list(combinations_with_replacement(species, 2)) if 1 < len(species) <= MOST_SPECIES else []
    functions = {"all": get_rdf(images, farthest, BINS, no_dists=True)}
    for pair in pairs:
        functions["-".join(pair)] = get_rdf(images, farthest, BINS, elements=pair, no_dists=True)
    return (np.arange(BINS) + 0.5) * farthest / BINS, functions


def mean_square_displacement(images: Sequence[Atoms]) -> dict[str, Array]:
    """Mean of ``|r(t) - r(0)|^2`` of the atoms of each species in Angstrom^2, relative to the centre of mass.

    Args:
        images: Frames of a trajectory, with positions that are not wrapped into the cell.

    Returns:
        Displacements ``[F]`` of the frames, by species.

    Example:
        >>> images = [Atoms("ArHe", [[0, 0, -x], [0, 0, 9.98 * x]]) for x in (0.0, 0.1)]
        >>> mean_square_displacement(images)["Ar"].round(4).tolist()
        [0.0, 0.01]
    """
    moved = [atoms.copy() for atoms in images]
    for atoms in moved:
        atoms.positions -= atoms.get_center_of_mass() - moved[0].get_center_of_mass()
    analysis = DiffusionCoefficient(moved, timestep=1.0)
    analysis.calculate()
    (halves,) = analysis.xyz_segment_ensemble_average  # [species, 3, F], half of the mean squares
    return dict(zip(analysis.types_of_atoms, 2 * halves.sum(axis=1), strict=True))
