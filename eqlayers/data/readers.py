"""Files of labelled structures: all that ASE reads, and npz archives such as MD17 and rMD17."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase.io import iread
from numpy.typing import NDArray

from eqlayers.archives import open_arrays
from eqlayers.data.cache import UNREADABLE
from eqlayers.data.labels import Column, columns_of, stress_of, two_energies
from eqlayers.data.structures import StructureArrays
from eqlayers.database import PLACES, database_structures, database_units, size_of_unit
from eqlayers.elements import symbols_of
from eqlayers.files import KEYS, few, free_directions, held_atoms
from eqlayers.units import DEFAULT_UNITS, read_units, unit_size

from ..core.checks import check_choice, check_path, check_type
from ..core.errors import ConfigError, DataError, EqlayersWarning

_NPZ_ATOMS = {"z": ("nuclear_charges", "z"), "pos": ("coords", "R")}


class Frame(NamedTuple):
    """One structure of a file, with all else that the file says of it."""

    z: NDArray[np.int64]
    pos: NDArray[np.float64]
    cell: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    values: Mapping[str, Any]
    free: NDArray[np.float64] | None = None


class StructureFile(NamedTuple):
    """The content of a file of structures.

    Attributes:
        structures: The structures with their labels, in the units of this package.
        columns: Names in the file and numbers of structures, by label.
        units: Unit of the file, by label.
        said: Labels whose unit the user or the file says; of the others it is taken for granted.
        notes: What else was found, in lines.
    """

    structures: StructureArrays
    columns: dict[str, Column]
    units: dict[str, str]
    said: set[str]
    notes: list[str]

    def lines(self) -> list[str]:
        """Lines on what was found, what was assumed and what was not used."""
        data = self.structures
        smallest, largest = data.n_atoms.min(), data.n_atoms.max()
        atoms = f"{smallest} to {largest}" if smallest < largest else f"{smallest}"
        periodic = int(data.pbc.any(axis=1).sum())
        lines = [
            f"{data.source}: {len(data):,} structures of {atoms} atoms, species {symbols_of(data.species)}, "
            f"{f'{periodic:,} of them' if periodic else 'none'} periodic"
        ]
        for name, column in self.columns.items():
            unit = self.units.get(name)
            taken = "" if name in self.said or unit is None else " (taken for granted; set units if it is another)"
            names = " and ".join(repr(key) for key in column.names)
            lines.append(f"{name}: {names}{f' in {unit}{taken}' if unit else ''}, of {column.number:,} structures")
        return lines + self.notes


def read_keys(keys: Any) -> dict[str, str | None]:
    """Names in the file by label, each checked."""
    fix = "Pass keys={'energy': 'my_energy', 'forces': 'my_forces'}."
    checked = check_type("keys", {} if keys is None else keys, Mapping, "a mapping from label to name in the file", fix)
    for label, name in checked.items():
        check_choice("keys", label, KEYS)
        if name is not None:
            check_type(f"keys of {label}", name, str, "a name in the file, or None to leave the label out", fix)
    return dict(checked)


def read_structures(
    path: str | Path, keys: Mapping[str, str | None] | None = None, units: Mapping[str, str] | None = None
) -> tuple[StructureArrays, list[str]]:
    """Structures and labels of a file.

    Names of labels that are usual in the field are recognised, such as energy, REF_energy, dft_energy and TotEnergy;
    virials become stress. Numbers are in eV, eV/Angstrom, eV/Angstrom^3, e Angstrom and Angstrom^3 unless ``units``
    says otherwise.

    Args:
        path: A file that ASE reads, with as many frames as it has; a database with labels and units as schnetpack
            writes it, among them; or an ``.npz`` archive with the keys of rMD17
            (``nuclear_charges, coords, energies, forces``, in kcal/mol) or MD17 (``z, R, E, F``).
        keys: Name in the file by label ('energy', 'forces', 'stress', 'virial', 'dipole', 'polarizability',
            'config_type'); it goes before recognised names. None leaves a label out.
        units: Unit by quantity ('pos', 'energy', 'forces', 'stress', 'virial', 'dipole', 'polarizability'), such
            as 'Hartree/Bohr'.

    Forces of 0 on atoms that are held, along a line or in a plane as well, and NaN, are left out: no loss, statistic
    or error has them.

    Returns:
        The structures, and lines that say what was found, what was taken for granted and what was not used.

    Raises:
        ConfigError: An unknown label or unit.
        DataError: The file is missing, empty, broken off or not readable; labels are not finite, of another shape, or
            found under two names with different values; or ``keys`` names what no structure has.

    Example:
        >>> from eqlayers.data.embedded import embedded_trajectory
        >>> units = {"energy": "eV", "forces": "eV/Angstrom", "dipole": "Debye"}
        >>> structures, report = read_structures(embedded_trajectory("ethanol_md"), units=units)
        >>> print(report[1])
        energy: 'E' in eV, of 2,000 structures
    """
    content = read_file(path, keys, units)
    return content.structures, content.lines()


def read_file(
    path: str | Path, keys: Mapping[str, str | None] | None = None, units: Mapping[str, str] | None = None
) -> StructureFile:
    """Structures and labels of a file, as :func:`read_structures`, with names and units of the labels."""
    file = Path(check_path("path", path, "a file of structures"))
    units, names = read_units(units), read_keys(keys)
    if not file.is_file():
        raise DataError(f"path must be a file of structures, got {str(file)!r}, which is none. Correct the path.")
    if file.stat().st_size == 0:
        raise DataError(f"{file} must hold structures, got an empty file. Make or fetch it again.")
    if is_web_page(file):
        raise DataError(f"{file} must hold structures, got a web page (HTML). Fetch the file itself.")
    guessed: dict[str, str] = {}
    frames = list(_npz(file, units, guessed) if file.suffix == ".npz" else _ase(file))
    if not frames:
        raise DataError(f"{file} must hold at least one structure, got none. Make or fetch it again.")
    listed = [(len(frame.z), frame.values) for frame in frames]
    columns, unused = columns_of(str(file), listed, names)
    if file.suffix == ".db":
        units = _units_of_database(file, columns, units)
    sizes = {name: unit_size(name, units.get(name, guessed.get(name, usual))) for name, usual in DEFAULT_UNITS.items()}
    cell = np.stack([frame.cell for frame in frames]) * sizes["pos"]
    labels = {name: column.values * sizes.get(name, 1.0) for name, column in columns.items() if name != "config_type"}
    labels, of_stress = stress_of(str(file), labels, cell)
    of_stress += two_energies(listed, columns.get("energy"))
    if "forces" in labels:
        labels["forces"], of_forces = _masked(frames, labels["forces"])
        of_stress += of_forces
    elif "energy" in labels:
        of_stress.append(
            "forces: none in the file, so the forces of the potential are slopes of energies alone, and learn slowly; "
            "add an array `forces` (3 numbers an atom), or name yours in keys: {forces: my_forces}"
        )
    structures = StructureArrays.of(
        str(file),
        n_atoms=[len(frame.z) for frame in frames],
        z=np.concatenate([frame.z for frame in frames]),
        pos=np.concatenate([frame.pos for frame in frames]) * sizes["pos"],
        cell=cell,
        pbc=np.stack([frame.pbc for frame in frames]),
        **labels,
        **{name: column.values for name, column in columns.items() if name == "config_type"},
    )
    of_stress += [f"not used: {few(sorted(unused))}"] if unused else []
    used = {name: units.get(name, guessed.get(name, DEFAULT_UNITS[name])) for name in columns if name in DEFAULT_UNITS}
    return StructureFile(structures, columns, used, set(units), of_stress)


def _masked(frames: Sequence[Frame], forces: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[str]]:
    """Forces with NaN for atoms that are held, and lines that say which are left out.

    Programs write 0 along directions in which an atom is held: the atom is left out whole.
    """
    sizes = [len(frame.z) for frame in frames]
    absent = np.isnan(forces[:, 0])
    known = np.repeat([not part.all() for part in np.split(absent, np.cumsum(sizes)[:-1])], sizes)
    parts = np.split(forces, np.cumsum(sizes)[:-1])
    fixed = np.concatenate([held_atoms(part, frame.free) for frame, part in zip(frames, parts, strict=True)])
    lines = [
        f"forces: left out of {int(which.sum()):,} atoms {why}"
        for which, why in (
            (fixed, "that are held, of which forces are 0 along that direction"),
            (absent & known, "of which forces are NaN"),
        )
        if which.any()
    ]
    return np.where(fixed[:, None], np.nan, forces), lines


def is_web_page(file: Path) -> bool:
    """Whether a file begins as HTML does: a page with an error or a question, saved in place of the file."""
    with file.open("rb") as handle:
        start = handle.read(512).lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html"))


def _ase(file: Path) -> Iterator[Frame]:
    """Frames of a file that ASE reads."""
    try:
        for atoms in database_structures(file) if file.suffix == ".db" else iread(str(file), index=":"):
            others = {name: value for name, value in atoms.arrays.items() if name not in ("numbers", "positions")}
            results = {} if atoms.calc is None else {k: v for k, v in atoms.calc.results.items() if v is not None}
            values = {**others, **atoms.info, **results}
            # of atoms, as ASE has it; rMD17's are of structures
            if np.shape(values.get("energies", 0)) == (len(atoms),):
                values["energies of atoms"] = values.pop("energies")
            yield Frame(
                atoms.numbers.astype(np.int64),
                atoms.positions.astype(np.float64),
                np.asarray(atoms.cell.array, dtype=np.float64),
                np.asarray(atoms.pbc, dtype=bool),
                values,
                free_directions(atoms),
            )
    except Exception as error:  # readers of a hundred formats fail in as many ways
        problem = " ".join(str(error).split())
        raise DataError(
            f"{file} must be whole and of a format that ASE reads, got {type(error).__name__}: {problem}. Make or "
            "fetch it again, or convert it to extended XYZ."
        ) from error
    if file.suffix in (".xyz", ".extxyz"):
        with file.open("rb") as text:
            text.seek(-1, 2)
            if text.read(1) != b"\n":
                warnings.warn(
                    f"{file} does not end with a line break: the last number may be cut off. Compare its size with "
                    "the original's",
                    EqlayersWarning,
                    stacklevel=5,
                )


def _units_of_database(file: Path, columns: Mapping[str, Column], units: Mapping[str, str]) -> dict[str, str]:
    """Units by label: those that are given, and others where a database says them as schnetpack does."""
    said = database_units(file)
    names = {"pos": PLACES, **{label: column.names[0] for label, column in columns.items() if label in DEFAULT_UNITS}}
    of_database = {label: said[name] for label, name in names.items() if name in said and label not in units}
    for label, unit in of_database.items():
        size_of_unit(file, label, unit)
    return {**of_database, **units}


def _npz(file: Path, units: Mapping[str, str], guessed: dict[str, str]) -> Iterator[Frame]:
    """Frames of an archive of one molecule, or of molecules of one size; ``guessed`` receives what units it has."""
    try:
        with file.open("rb") as handle, open_arrays(handle) as archive:
            arrays = {}
            for name in archive.files:
                try:
                    arrays[name] = archive[name]
                except ValueError:  # an object, such as the name of a method: nothing that is read here
                    continue
    except UNREADABLE as error:
        raise DataError(
            f"{file} must be a whole npz archive, got {type(error).__name__}: {error}. Make or fetch it again."
        ) from error
    atoms = {name: next((key for key in known if key in arrays), None) for name, known in _NPZ_ATOMS.items()}
    if atoms["z"] is None or atoms["pos"] is None:
        raise DataError(
            f"{file} must have the keys nuclear_charges and coords, or z and R, got {few(sorted(arrays))}. Rename them."
        )
    z, pos = arrays.pop(atoms["z"]), arrays.pop(atoms["pos"])
    numbers = z.dtype.kind in "iu" and z.ndim in (1, 2) and pos.dtype.kind == "f"
    if not numbers or pos.ndim != 3 or pos.shape[1:] != (z.shape[-1], 3) or z.shape[:-1] not in ((), pos.shape[:1]):
        raise DataError(
            f"{atoms['z']} and {atoms['pos']} of {file} must be [A] integers and [N, A, 3], got {list(z.shape)} of "
            f"{z.dtype} and {list(pos.shape)}. Store molecules of one size."
        )
    said = {unit: str(arrays[key]) for unit, key in (("pos", "r_unit"), ("energy", "e_unit")) if key in arrays}
    if atoms["pos"] == "coords":
        said.setdefault("energy", "kcal/mol")  # of rMD17
    if "energy" in said:
        both = {"pos": "Angstrom", **said, **units}
        guessed.update(said, forces=f"{both['energy']}/{both['pos']}")
    elif not {"energy", "forces"} <= set(units):
        raise ConfigError(
            f"units of energy and forces must be given for {file}, got {sorted(units)}: archives with the keys z, R, E "
            "and F are in kcal/mol or in eV. Pass units={'energy': 'kcal/mol', 'forces': 'kcal/mol/Angstrom'} or eV."
        )
    kinds = np.broadcast_to(z.astype(np.int64), pos.shape[:2])
    lattice = arrays.pop("lattice", np.zeros((3, 3)))  # sGDML: a lattice vector in each column
    cell, pbc = np.asarray(lattice, dtype=np.float64).T, np.full(3, bool(lattice.any()))
    rows = {name: array for name, array in arrays.items() if array.ndim and len(array) == len(pos)}
    for row in range(len(pos)):
        yield Frame(kinds[row], pos[row].astype(np.float64), cell, pbc, {name: a[row] for name, a in rows.items()})
