"""Structures in files: read with errors that say what to do, written frame by frame."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

import ase.io
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator

from ..atoms.database import PLACES, database_units, size_of_unit
from ..atoms.labels import FREE, KEYS
from ..atoms.structure_files import files_of, structures_of
from ..core.checks import check_path
from ..core.errors import ConfigError, DataError
from ..core.files.read_write import atomic_write, check_output

#: Ending of a trajectory -> its format. ASE's own keeps every digit, which an exact restart needs.
TRAJECTORIES = {".traj": "traj", ".xyz": "extxyz", ".extxyz": "extxyz"}
#: Endings of results that have a number for each atom and are no property of ASE.
OF_ATOMS = ("energies_deviation", "forces_deviation")


def frames(path: str | Path, index: str = "") -> Iterator[Atoms]:
    """Iterate over the structures of one or several files; ``index`` selects some, such as ``-1`` or ``:4``."""
    name = check_path("structures", path, "the path of a file")
    files, which = files_of(name)
    if index and which == slice(None):
        _, which = files_of(f"{name}@{index}")
    if not files:
        kind = "a folder without one" if Path(name).is_dir() else "nothing"
        raise ConfigError(f"structures must be in a file, got {kind} at {name}. Correct the path.")
    empty = True
    for place in files:
        unit = database_units(place).get(PLACES, "Angstrom") if place.suffix == ".db" else "Angstrom"
        size = size_of_unit(place, "pos", unit)
        for read in structures_of(place, which):
            if isinstance(read, str):
                raise DataError(f"structures of {place} must be whole, got {read}.")
            if size != 1.0:  # schnetpack's
                read.atoms.set_cell(size * read.atoms.cell.array, scale_atoms=False)
                read.atoms.positions *= size
            empty = False
            yield read.atoms
    if empty:
        raise DataError(f"structures must be at least one, got none in {name}. Use another file.")


def one_frame(path: str | Path) -> Atoms:
    """The last structure of a file, without what was computed of it: results, and labels by any name."""
    (atoms,) = frames(path, "-1")
    return without_results(atoms)


def without_results(atoms: Atoms) -> Atoms:
    """Remove results, and labels by any name, from a structure, which is returned."""
    atoms.calc = None
    for name in (FREE, *(name for label, names in KEYS.items() if label != "config_type" for name in names)):
        atoms.info.pop(name, None)
        atoms.arrays.pop(name, None)
    return atoms


def check_different(*named: tuple[str, str | Path | None]) -> None:
    """Raise if two names lead to one file, of which one would be lost."""
    seen: dict[Path, str] = {}
    for option, path in named:
        if path is None:
            continue
        place = Path(path).resolve()
        if place in seen:
            raise ConfigError(f"{option} must be another file than {seen[place]}, got {str(path)!r}. Name another.")
        seen[place] = option


def check_trajectory(path: str | Path, option: str, new: bool) -> Path:
    """The path of a trajectory that can be written."""
    place = Path(check_path(option, path, "the path of a file"))
    restart = "Pass --restart to go on, or another." if new else None
    return check_output(place, option, TRAJECTORIES, "Take .traj to go on later.", restart)


def with_results(atoms: Atoms, results: dict[str, Any]) -> Atoms:
    """A copy that holds what was computed, as files keep it; labels of the same names get the prefix ``REF_``."""
    kept = atoms.copy()
    for values in (kept.info, kept.arrays):
        for name in results.keys() & values.keys() & set(all_properties):
            set_aside(values, name)
    kept.calc = SinglePointCalculator(kept, **{name: results[name] for name in results if name in all_properties})
    for name in results.keys() - set(all_properties):
        if name.endswith(OF_ATOMS):
            kept.arrays[name] = results[name]
        elif not name.endswith("_members"):  # as many numbers as members, which no format has a place for
            kept.info[name] = results[name]
    return kept


def set_aside(values: dict[str, Any], name: str) -> None:
    """Give a label another name, as a prediction takes its own."""
    free = (f"{prefix}_{name}" for prefix in chain(("REF", "given"), (f"given{n}" for n in count(2))))
    values[next(one for one in free if one not in values)] = values.pop(name)


def write_frame(path: Path, atoms: Atoms) -> None:
    """Write one structure to a file of its own, whole or not at all."""
    with atomic_write(path) as file:
        if TRAJECTORIES[path.suffix] == "traj":
            ase.io.write(file, atoms, format="traj")
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
            ase.io.write(text, atoms, format="extxyz")
            text.detach()


@contextmanager
def written_to(path: Path | None, append: bool = False) -> Iterator[Any]:
    """A function that writes a frame to a trajectory; every frame is whole when it returns."""
    if path is None:
        yield lambda atoms: None
    elif TRAJECTORIES[path.suffix] == "traj":
        with ase.io.Trajectory(str(path), "a" if append else "w") as trajectory:
            yield lambda atoms: trajectory.write(with_results(atoms, atoms.calc.results))
    else:
        if not append:
            path.unlink(missing_ok=True)
        yield lambda atoms: ase.io.write(
            str(path), with_results(atoms, atoms.calc.results), format="extxyz", append=True
        )
