"""Read structures from files, and write trajectories frame by frame."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

import ase.io
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator

from ..atoms.database import POSITIONS, database_units, size_of_unit
from ..atoms.structure_files import files_of, structures_of
from ..atoms.units import FREE, KEYS
from ..core.checks import check_path
from ..core.errors import ConfigError, DataError
from ..core.files.read_write import atomic_write, check_output

#: Suffix of a trajectory -> format of ASE. `traj` keeps every digit, which an exact restart needs.
TRAJECTORIES = {".traj": "traj", ".xyz": "extxyz", ".extxyz": "extxyz"}


def frames(path: str | Path, index: str = "") -> Iterator[Atoms]:
    """Iterate over the structures of one or several files; ``index`` selects some, such as ``-1`` or ``:4``."""
    name = check_path("structures", path, "the path of a file")
    files, which = files_of(name)
    if index and which == slice(None):
        _, which = files_of(f"{name}@{index}")
    if not files:
        present = "a folder without one" if Path(name).is_dir() else "nothing"
        raise ConfigError(f"structures must be in a file, got {present} at {name}. Correct the path.")
    empty = True
    for file in files:
        unit = database_units(file).get(POSITIONS, "Angstrom") if file.suffix == ".db" else "Angstrom"
        size = size_of_unit(file, "pos", unit)
        for read in structures_of(file, which):
            if isinstance(read, str):
                raise DataError(f"structures of {file} must be whole, got {read}.")
            if size != 1.0:  # databases of schnetpack may have other units
                read.atoms.set_cell(size * read.atoms.cell.array, scale_atoms=False)
                read.atoms.positions *= size
            empty = False
            yield read.atoms
    if empty:
        raise DataError(f"structures must be at least one, got none in {name}. Use another file.")


def last_frame(path: str | Path) -> Atoms:
    """The last structure of a file, without results and labels; see :func:`without_results`."""
    (atoms,) = frames(path, "-1")
    return without_results(atoms)


def without_results(atoms: Atoms) -> Atoms:
    """Remove the calculator and all labels of recognised names from a structure in place, and return it."""
    atoms.calc = None
    for name in (FREE, *(name for label, names in KEYS.items() if label != "config_type" for name in names)):
        atoms.info.pop(name, None)
        atoms.arrays.pop(name, None)
    return atoms


def check_different(*named: tuple[str, str | Path | None]) -> None:
    """Raise if two of the (option, path) pairs name the same file; paths may be None."""
    seen: dict[Path, str] = {}
    for option, path in named:
        if path is None:
            continue
        resolved = Path(path).resolve()
        if resolved in seen:
            raise ConfigError(f"{option} must be another file than {seen[resolved]}, got {str(path)!r}. Name another.")
        seen[resolved] = option


def check_trajectory(path: str | Path, option: str, new: bool) -> Path:
    """Check that a trajectory can be written to a path, with ``new`` only to a new file; return the path."""
    checked = Path(check_path(option, path, "the path of a file"))
    restart = "Pass --restart to go on, or another." if new else None
    return check_output(checked, option, TRAJECTORIES, "Take .traj to go on later.", restart)


def with_results(atoms: Atoms, results: dict[str, Any]) -> Atoms:
    """A copy of atoms with results as files store them; labels of the same names get the prefix ``REF_``."""
    copy = atoms.copy()
    for values in (copy.info, copy.arrays):
        for name in results.keys() & values.keys() & set(all_properties):
            set_aside(values, name)
    copy.calc = SinglePointCalculator(copy, **{name: results[name] for name in results if name in all_properties})
    for name in results.keys() - set(all_properties):
        if name.endswith(("energies_deviation", "forces_deviation")):  # one number for each atom
            copy.arrays[name] = results[name]
        elif not name.endswith("_members"):  # one row per member, which file formats cannot store
            copy.info[name] = results[name]
    return copy


def set_aside(values: dict[str, Any], name: str) -> None:
    """Rename an entry to the first free name among REF_name, given_name, given2_name, ..."""
    free = (f"{prefix}_{name}" for prefix in chain(("REF", "given"), (f"given{n}" for n in count(2))))
    values[next(new for new in free if new not in values)] = values.pop(name)


@contextmanager
def new_file(path: Path) -> Iterator[Callable[[Atoms], None]]:
    """Context manager: a function ``write(atoms)`` for a trajectory, which appears when the block ends."""
    with atomic_write(path) as file:
        if TRAJECTORIES[path.suffix] == "traj":
            yield ase.io.Trajectory(file, "w").write
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
            yield lambda atoms: ase.io.write(text, atoms, format="extxyz")
            text.detach()


@contextmanager
def written_to(path: Path | None, append: bool = False) -> Iterator[Any]:
    """Context manager: a function ``write(atoms)``, which appends a frame with its results to a trajectory."""
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
