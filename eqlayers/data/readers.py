"""Read labelled structures from files of ASE's formats, and from npz archives such as MD17 and rMD17."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eqlayers.atoms.constraints import free_directions, held_atoms
from eqlayers.atoms.database import POSITIONS, database_units, size_of_unit
from eqlayers.atoms.elements import symbols_of
from eqlayers.atoms.structure_files import AtomsFrame, Which, files_of, selected, structures_of
from eqlayers.atoms.units import DEFAULT_UNITS, KEYS, OPEN, PERIODIC, read_units, unit_of, unit_size
from eqlayers.core.files.archives import open_arrays
from eqlayers.core.files.read_write import few
from eqlayers.data.cache import UNREADABLE
from eqlayers.data.labels import Column, columns_of, further_labels, stress_of, two_energies
from eqlayers.data.structures import StructureArrays

from ..core.checks import check_choice, check_type
from ..core.errors import ConfigError, DataError

Keys = Mapping[str, str | None] | None
Units = Mapping[str, Any] | None
_LISTED = 100  # most frames that are left out with a printed reason
# properties of the electrons of a whole structure
_STATES = {"charge", "total_charge", "spin", "total_spin", "multiplicity", "spin_multiplicity"}
_NPZ_ATOMS = {"z": ("nuclear_charges", "z"), "pos": ("coords", "R")}


class Frame(NamedTuple):
    """One structure of a file: atoms, all other values of the file by name, row, name in messages, free directions."""

    z: NDArray[np.int64]
    pos: NDArray[np.float64]
    cell: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    values: Mapping[str, Any]
    row: int
    name: str
    free: NDArray[np.float64] | None = None
    of_atoms: Iterable[str] = ()  # names of values that are of atoms, whatever their number
    file: str = ""  # the source if empty


class StructureFile(NamedTuple):
    """Structures read from files, with columns, units (``explicit``: given ones), printed notes and charge or spin.

    ``names`` are of all values in the file.
    """

    structures: StructureArrays
    columns: dict[str, Column]
    units: dict[str, Any]
    explicit: set[str]
    notes: list[str]
    states: dict[str, set[str]]
    names: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Printed lines on structures, labels and their units, assumptions, and unused values."""
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
            known = name in self.explicit or unit is None
            assumed = "" if known else " (taken for granted; set units if it is another)"
            names = " and ".join(repr(key) for key in column.names)
            lines.append(f"{name}: {names}{f' in {unit}{assumed}' if unit else ''}, of {column.number:,} structures")
        return lines + self.notes


def read_keys(keys: Any) -> dict[str, str | None]:
    """Check a mapping from label to name in the file."""
    fix = "Pass keys={'energy': 'my_energy', 'forces': 'my_forces'}."
    checked = check_type("keys", {} if keys is None else keys, Mapping, "a mapping from label to name in the file", fix)
    for label, name in checked.items():
        check_choice("keys", label, KEYS)
        if name is not None:
            check_type(f"keys of {label}", name, str, "a name in the file, or None to leave the label out", fix)
    return dict(checked)


def read_structures(
    path: str | Path, keys: Keys = None, units: Units = None, skip_bad: bool = False
) -> tuple[StructureArrays, list[str]]:
    """Read structures and labels from one or several files.

    Common names of labels are recognised, such as energy, REF_energy, dft_energy and TotEnergy;
    virials become stress. Numbers are in eV, eV/Angstrom, eV/Angstrom^3, e Angstrom and Angstrom^3 unless ``units``
    says otherwise.

    Args:
        path: A file of any format that ASE reads, optionally compressed by gzip, bzip2, xz or zstd; a slice of it,
            ``a.xyz@0:100``; a folder of such files, or a pattern such as ``runs/*.xyz``. Also a database with labels
            and units in the format of schnetpack, and an ``.npz`` archive with the keys of rMD17
            (``nuclear_charges, coords, energies, forces``, in kcal/mol) or MD17 (``z, R, E, F``).
        keys: Name in the file by label ('energy', 'forces', 'stress', 'virial', 'dipole', 'polarizability',
            'config_type'); it takes precedence over recognised names. None leaves a label out.
        units: Unit by quantity ('pos', 'energy', 'forces', 'stress', 'virial', 'dipole', 'polarizability'), such as
            'Hartree/Bohr'; see :func:`eqlayers.atoms.units.read_units` for groups of structures with different units.
        skip_bad: Leave out, and list, frames that cannot be read or have invalid labels.

    Forces that are NaN, or 0 on an atom held in some direction, are left out of loss, statistics and errors.

    Returns:
        The structures, and lines to print on labels, assumptions and unused values.

    Raises:
        ConfigError: An unknown label or unit.
        DataError: The file is missing, empty, truncated or unreadable; labels are not finite, have a wrong shape, or
            have different values under two names; or no structure has a name in ``keys``.

    Example:
        >>> from eqlayers.data.embedded import embedded_trajectory
        >>> units = {"energy": "eV", "forces": "eV/Angstrom", "dipole": "Debye"}
        >>> structures, report = read_structures(embedded_trajectory("ethanol_md"), units=units)
        >>> print(report[1])
        energy: 'E' in eV, of 2,000 structures
    """
    content = read_file(path, keys, units, skip_bad)
    return content.structures, content.lines()


def read_file(
    path: str | Path,
    keys: Keys = None,
    units: Units = None,
    skip_bad: bool = False,
    auxiliary: Sequence[str] = (),
    pooling: str = "mean",
) -> StructureFile:
    """Read files as :func:`read_structures`, with names and units of the labels in the result.

    ``auxiliary`` are names of further labels, and ``pooling`` makes a number of a whole molecule.
    """
    units, names = read_units(units), read_keys(keys)
    files, which = files_of(path)
    if not files:
        raise DataError(f"path must be a file of structures, got {str(path)!r}, which is none. Correct the path.")
    for file in files:
        if file.stat().st_size == 0:
            raise DataError(f"{file} must hold structures, got an empty file. Make or fetch it again.")
        if is_web_page(file):
            raise DataError(f"{file} must hold structures, got a web page (HTML). Fetch the file itself.")
    if len(files) > 1 and {file.suffix for file in files} & {".npz", ".db"}:
        raise ConfigError(f"path must be one file of .npz or .db, got {few([str(file) for file in files])}. Name one.")
    source, guessed, bad = str(path), dict[str, str](), list[str]()
    notes = [f"{len(files)} files: {few([str(file) for file in files])}"] if len(files) > 1 else []
    if files[0].suffix == ".npz":
        frames = list(selected(_npz(files[0], units, guessed), which))
    else:
        frames = list(_ase(files, which, bad if skip_bad else None, notes))
    if skip_bad:
        reasons = [_problem(frame, names) for frame in frames]
        frames = [frame for frame, reason in zip(frames, reasons, strict=True) if reason is None]
        bad += [reason for reason in reasons if reason is not None]
    notes += [f"left out: {reason}" for reason in bad[:_LISTED]]
    notes += [f"left out: {len(bad):,} frames in all"] if bad else []
    if not frames:
        left_out = f": {len(bad):,} frames are left out, the first one as {bad[0].rstrip('.')}" if bad else ""
        raise DataError(f"{path} must hold at least one structure, got none{left_out}. Make or fetch it again.")
    listed = [(len(frame.z), frame.values, frame.name) for frame in frames]
    columns, unused = columns_of(source, listed, names)
    further = further_labels(source, listed, auxiliary, set().union(*(frame.of_atoms for frame in frames)), pooling)
    present, unused = sorted(unused), unused - further.keys()
    if files[0].suffix == ".db":
        units = _units_of_database(files[0], columns, units)
    types = columns["config_type"].values.tolist() if "config_type" in columns else [""] * len(frames)
    sizes, of_groups = _sizes(source, {**DEFAULT_UNITS, **guessed, **units}, frames, types)
    cell = np.stack([frame.cell for frame in frames]) * sizes["pos"][:, None, None]
    labels = {}
    for name, column in columns.items():
        if name != "config_type":
            size = sizes.get(name, np.ones(len(frames)))
            size = np.repeat(size, [len(frame.z) for frame in frames]) if name == "forces" else size
            labels[name] = column.values * size.reshape(-1, *[1] * (column.values.ndim - 1))
    labels, of_stress = stress_of(source, [frame.name for frame in frames], labels, cell)
    of_stress += of_groups + two_energies(listed, columns.get("energy"))
    if "forces" in labels:
        labels["forces"], of_forces = _masked(frames, labels["forces"])
        of_stress += of_forces
    elif "energy" in labels:
        of_stress.append(
            "forces: none in the file, so the forces of the potential are slopes of energies alone, and learn slowly; "
            "add an array `forces` (3 numbers an atom), or name yours in keys: {forces: my_forces}"
        )
    structures = StructureArrays.of(
        source,
        n_atoms=[len(frame.z) for frame in frames],
        z=np.concatenate([frame.z for frame in frames]),
        pos=np.concatenate([frame.pos * size for frame, size in zip(frames, sizes["pos"], strict=True)]),
        cell=cell,
        pbc=np.stack([frame.pbc for frame in frames]),
        idx=[frame.row for frame in frames],
        file=[frame.file or source for frame in frames],
        auxiliary=further,
        **labels,
        **{name: column.values for name, column in columns.items() if name == "config_type"},
    )
    known = {name: [frame.values[name] for frame in frames if name in frame.values] for name in unused & _STATES}
    states = {name: {str(value).removesuffix(".0") for value in of} for name, of in sorted(known.items())}
    of_stress += different_states([states])
    of_stress += [f"not used: {few(sorted(unused))}"] if unused else []
    used = {name: units.get(name, guessed.get(name, DEFAULT_UNITS[name])) for name in columns if name in DEFAULT_UNITS}
    used |= {"groups": units["groups"]} if "groups" in units else {}
    return StructureFile(structures, columns, used, set(units), notes + of_stress, states, present)


def different_states(files: Sequence[Mapping[str, set[str]]]) -> list[str]:
    """A printed line for each charge or spin that differs within a file or between files."""
    lines = []
    for name in dict.fromkeys(name for states in files for name in states):
        each = [states.get(name, set()) for states in files]
        if len(every := set().union(*each)) > max(1, *map(len, each)) or (len(files) == 1 < len(every)):
            fix = "which no network sees: alike structures have other energies; train on one"
            lines.append(f"{name}: {few(sorted(every))}{' in different files' * (len(files) > 1)}, {fix}")
    return lines


def _sizes(
    source: str, units: Mapping[str, Any], frames: Sequence[Frame], types: Sequence[str]
) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
    """Conversion factors `[N]` of structures by quantity, and a printed line for each group with separate units."""
    keys = [(name, bool(frame.pbc.any())) for name, frame in zip(types, frames, strict=True)]
    groups, present = units.get("groups", {}), {*types, *(PERIODIC if periodic else OPEN for _, periodic in keys)}
    if unknown := sorted(set(groups) - present):
        raise ConfigError(
            f"groups of units must be config_types of {source}, {PERIODIC} or {OPEN}, got {', '.join(unknown)}; there "
            f"are {few(sorted(present - {''}))}. Correct the names."
        )
    size = cache(unit_size)
    sizes = {q: np.array([size(q, unit_of(units, q, *key)) for key in keys]) for q in DEFAULT_UNITS}
    return sizes, [f"units of the group {name}: {units_of_group}" for name, units_of_group in groups.items()]


def _masked(frames: Sequence[Frame], forces: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[str]]:
    """Forces with NaN for held atoms, for which programs write 0 in held directions, and printed lines on them."""
    sizes = [len(frame.z) for frame in frames]
    absent = np.isnan(forces[:, 0])
    known = np.repeat([not part.all() for part in np.split(absent, np.cumsum(sizes)[:-1])], sizes)
    parts = np.split(forces, np.cumsum(sizes)[:-1])
    fixed = np.concatenate([held_atoms(part, frame.free) for frame, part in zip(frames, parts, strict=True)])
    lines, held = [], "that are held, of which forces are 0 along that direction"
    for why, which in ((held, fixed), ("of which forces are NaN", absent & known)):
        marked = np.split(which, np.cumsum(sizes)[:-1])
        if names := [frame.name for frame, part in zip(frames, marked, strict=True) if part.any()]:
            lines.append(f"forces: left out of {int(which.sum()):,} atoms {why}: {few(names)}")
    return np.where(fixed[:, None], np.nan, forces), lines


def is_web_page(file: Path) -> bool:
    """Whether a file is HTML, such as an error page of a server saved instead of the file."""
    with file.open("rb") as handle:
        start = handle.read(512).lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html"))


def _ase(files: Sequence[Path], which: Which, bad: list[str] | None, notes: list[str]) -> Iterator[Frame]:
    """Iterate over frames of files that ASE reads; bad frames raise, or are described in ``bad`` if it is a list."""
    for file in files:
        prefix, twice = f"{file.name}, " if len(files) > 1 else "", dict[str, list[str]]()
        for read in structures_of(file, which, twice):
            if isinstance(read, AtomsFrame):
                yield _frame(read, prefix)._replace(file=str(file))
            elif bad is not None:
                bad.append(f"{prefix}{read}")
            else:
                fix = "or leave such frames out with --data.skip_bad true."
                raise DataError(f"{file} must have frames that can be read, got {read}; {fix}")
        notes += [
            f"{key!r} is twice in the header of {len(where):,} frames, first {prefix}{where[0]}: the last one counts"
            for key, where in twice.items()
        ]


def _frame(read: AtomsFrame, prefix: str) -> Frame:
    """Convert a frame read by ASE: collect arrays, info and results in ``values``."""
    atoms = read.atoms
    others = {name: value for name, value in atoms.arrays.items() if name not in ("numbers", "positions")}
    results = {} if atoms.calc is None else {k: v for k, v in atoms.calc.results.items() if v is not None}
    values = {**others, **atoms.info, **results}
    # ASE's `energies` are of atoms, rMD17's of structures
    if np.shape(values.get("energies", 0)) == (len(atoms),):
        values["energies of atoms"] = values.pop("energies")
    name, free = f"{prefix}{read.name}", free_directions(atoms)
    z = atoms.numbers.astype(np.int64)
    of_atoms = {*others, "charges", "magmoms", "energies of atoms"}
    return Frame(z, atoms.positions, atoms.cell.array, atoms.pbc, values, read.frame, name, free, of_atoms)


def _problem(frame: Frame, keys: Mapping[str, str | None]) -> str | None:
    """Describe invalid labels, positions or cell of a structure; None if it is valid."""
    known = {label: name if name in frame.values else None for label, name in keys.items()}
    try:
        columns_of("the file", [(len(frame.z), frame.values, frame.name)], known)
        StructureArrays.of("", [len(frame.z)], frame.z, frame.pos, cell=frame.cell[None], pbc=frame.pbc[None])
    except DataError as error:  # its text is about all structures: take the expected value only
        expected = str(error).partition(": expected ")[2].partition(";")[0]
        return f"{frame.name}: {f'no {expected}' if expected else error}"
    return None


def _units_of_database(file: Path, columns: Mapping[str, Column], units: Mapping[str, str]) -> dict[str, str]:
    """Units by label: ``units``, then those in the metadata of a database of schnetpack."""
    metadata = database_units(file)
    names = {label: column.names[0] for label, column in columns.items() if label in DEFAULT_UNITS}
    names["pos"] = POSITIONS
    of_database = {label: metadata[name] for label, name in names.items() if name in metadata and label not in units}
    for label, unit in of_database.items():
        size_of_unit(file, label, unit)
    return {**of_database, **units}


def _npz(file: Path, units: Mapping[str, str], guessed: dict[str, str]) -> Iterator[Frame]:
    """Iterate over frames of an npz archive of molecules of one size; its units are added to ``guessed``."""
    try:
        with file.open("rb") as handle, open_arrays(handle) as archive:
            arrays = {}
            for name in archive.files:
                try:
                    arrays[name] = archive[name]
                except ValueError:  # a pickled object, which no label is
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
    numeric = z.dtype.kind in "iu" and z.ndim in (1, 2) and pos.dtype.kind == "f"
    if not numeric or pos.ndim != 3 or pos.shape[1:] != (z.shape[-1], 3) or z.shape[:-1] not in ((), pos.shape[:1]):
        raise DataError(
            f"{atoms['z']} and {atoms['pos']} of {file} must be [A] integers and [N, A, 3], got {list(z.shape)} of "
            f"{z.dtype} and {list(pos.shape)}. Store molecules of one size."
        )
    stored = {unit: str(arrays[key]) for unit, key in (("pos", "r_unit"), ("energy", "e_unit")) if key in arrays}
    if atoms["pos"] == "coords":
        stored.setdefault("energy", "kcal/mol")  # unit of rMD17
    if "energy" in stored:
        both = {"pos": "Angstrom", **stored, **units}
        guessed.update(stored, forces=f"{both['energy']}/{both['pos']}")
    elif not {"energy", "forces"} <= set(units):
        raise ConfigError(
            f"units of energy and forces must be given for {file}, got {sorted(units)}: archives with the keys z, R, E "
            "and F are in kcal/mol or in eV. Pass units={'energy': 'kcal/mol', 'forces': 'kcal/mol/Angstrom'} or eV."
        )
    numbers = np.broadcast_to(z.astype(np.int64), pos.shape[:2])
    lattice = arrays.pop("lattice", np.zeros((3, 3)))  # sGDML: a lattice vector in each column
    cell, pbc = np.asarray(lattice, dtype=np.float64).T, np.full(3, bool(lattice.any()))
    rows = {name: array for name, array in arrays.items() if array.ndim and len(array) == len(pos)}
    for row in range(len(pos)):
        values = {name: array[row] for name, array in rows.items()}
        yield Frame(numbers[row], pos[row].astype(np.float64), cell, pbc, values, row, f"row {row}")
