"""Data sets known by name: those in `examples/data` of a source checkout, and published sets of forces.

The set "mini" has 2,785 small molecules at GFN2-xTB level. It is not DFT: errors on it are not comparable with
published QM9 tables. See `examples/data/README.md`. Published sets have no known checksums, so contents are checked:
the molecule, the number of structures, and the magnitude of energies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from ase.data import atomic_numbers
from ase.formula import Formula

from eqlayers.atoms.units import unit_size
from eqlayers.data.cache import UNREADABLE
from eqlayers.data.qm9 import ENERGY, HARTREE_TO_EV, TARGETS, Target, auxiliary_of, check_target, thermochemical_atomref
from eqlayers.data.structures import Auxiliary, StructureArrays, check_names

from ..core.checks import check_choice, check_path
from ..core.errors import ConfigError, DataError

MANIFEST = "manifest.json"
#: Sets with energies and forces, of rMD17's keys but in eV, eV/Angstrom and Debye.
TRAJECTORIES = ("ethanol_md", "ethanol_nm", "aspirin_nm")
TRAJECTORY_UNITS = {"energy": "eV", "forces": "eV/Angstrom", "dipole": "Debye"}


def embedded_folder(file: str, option: str = "root= a folder that holds") -> Path:
    """Folder of an embedded set in a source checkout."""
    root = Path(__file__).resolve().parents[2] / "examples" / "data"
    if not (root / file).exists():
        raise DataError(
            f"expected {file} in {root}, the place of the embedded set in a source checkout; there is "
            "none, as the data are not part of an installed package; pass "
            f"{option} examples/data/{file} of the repository"
        )
    return root


def embedded_trajectory(name: str) -> Path:
    """File of one of ``TRAJECTORIES``, compared with the manifest."""
    path = embedded_folder(f"{name}.npz", "path= the folder") / f"{name}.npz"
    fix = "restore it from the repository (git checkout) or make it again with examples/data/make_forces.py"
    compare_with_manifest(path, fix)
    return path


def embedded_source(path: str, units: Any) -> tuple[str | Path, Any]:
    """The file and the units of one of ``TRAJECTORIES`` if a path is its name and no file; else both unchanged."""
    embedded = path in TRAJECTORIES and not Path(path).exists()
    return (embedded_trajectory(path), TRAJECTORY_UNITS) if embedded else (path, units)


def compare_with_manifest(path: Path, remedy: str) -> None:
    """Compare the SHA-256 of a file with the `manifest.json` beside it, if this lists the file."""
    manifest = path.parent / MANIFEST
    if not manifest.exists():
        return
    try:
        listed = json.loads(manifest.read_text())["files"].get(path.name)
        expected = None if listed is None else str(listed["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{manifest}: expected JSON with files -> name -> sha256; got {type(error).__name__}: {error}; {remedy}"
        ) from error
    received = hashlib.sha256(path.read_bytes()).hexdigest()
    if expected is not None and received != expected:
        raise DataError(
            f"{path}: expected SHA-256 {expected} (from {MANIFEST}); got {received}; the file is truncated or "
            f"changed: {remedy}"
        )


MINI_FILE = "mini_qm9_xtb.npz"
_REMEDY = "restore it from the repository (git checkout) or make it again with examples/data/make_mini_qm9.py"


def default_mini_root() -> Path:
    """Folder of the embedded set in a source checkout.

    Raises:
        DataError: If the package is not in a source checkout; the data are not part of an installed wheel.
    """
    return embedded_folder(MINI_FILE)


#: Labels of the embedded set that are no targets, with the factor from its unit.
FURTHER = {
    "charges": (Auxiliary.of("charges", "atom", "e"), 1.0),
    "dipole": (Auxiliary.of("dipole", "vector", "e A", thousandth=True), unit_size("dipole", "Debye")),
    ENERGY: (auxiliary_of(ENERGY), HARTREE_TO_EV),
}
FURTHER |= {name: (auxiliary_of(name), row.raw_factor) for name, row in TARGETS.items() if row.mini_key}


#: Steps of values that are stored as integers, in Angstrom and e.
STEPS = {"pos": 1e-3, "charges": 1e-4}


def load_mini(root: str | Path | None, target: Target, auxiliary: Sequence[str] = ()) -> StructureArrays:
    """Read the embedded set.

    If a `manifest.json` beside it lists the file, its SHA-256 is compared.

    Args:
        root: Folder of `mini_qm9_xtb.npz`; the source checkout's `examples/data` if None.
        target: Which labels to read.
        auxiliary: Further labels to read, of ``FURTHER``.

    Returns:
        The molecules, in the order of the file.

    Raises:
        ConfigError: If the set has no such target.
        DataError: If the file is missing, is not the listed one, cannot be read, or lacks something.
    """
    if (key := check_target(target).mini_key) is None:
        known = ", ".join(name for name, row in TARGETS.items() if row.mini_key)
        raise ConfigError(
            f'target: expected one that dataset="mini" has ({known}); got {target.name!r}; choose one of these'
        )
    path = _mini_path(root)
    names = check_names("auxiliary", auxiliary, FURTHER)
    arrays = _read_arrays(path, ["n_atoms", "z", "pos", key, *names], _REMEDY)
    molecules = _molecules(path, arrays, names, y=arrays[key].astype(np.float64) * target.raw_factor)
    molecules.refuse("finite labels", np.flatnonzero(np.isnan(molecules.y)))
    return molecules


def _mini_path(root: str | Path | None) -> Path:
    """The file of the embedded set, compared with the manifest."""
    path = (default_mini_root() if root is None else Path(check_path("root", root))) / MINI_FILE
    if not path.exists():
        raise DataError(f"root: expected a folder with {MINI_FILE}; {path} does not exist; {_REMEDY}, or correct root")
    compare_with_manifest(path, _REMEDY)
    return path


def _read_arrays(path: Path, keys: Sequence[str], remedy: str) -> dict[str, np.ndarray]:
    """Arrays of an npz archive, of the right kind: integers, texts or numbers."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {key: file[key] for key in keys}
    except UNREADABLE as error:
        raise DataError(
            f"{path}: expected an npz archive with {', '.join(keys[:-1])} and {keys[-1]}; it cannot be read "
            f"({type(error).__name__}: {error}); {remedy}"
        ) from error
    for key, array in arrays.items():
        kinds = {"n_atoms": "ui", "z": "ui", "smiles": "S", "pos": "fi", "charges": "fi"}
        if array.dtype.kind not in kinds.get(key, "f"):
            raise DataError(f"{path}: expected numbers of the right kind in {key!r}; got dtype {array.dtype}; {remedy}")
        if key in STEPS and array.dtype.kind == "i":
            arrays[key] = array * STEPS[key]
    return arrays


def _molecules(path: Path, arrays: Mapping[str, Any], names: Sequence[str], **labels: Any) -> StructureArrays:
    """The molecules of an archive, with further labels of these names."""
    values = {name: arrays[name].astype(np.float64) * FURTHER[name][1] for name in names}
    further = {name: FURTHER[name][0]._replace(values=array) for name, array in values.items()}
    pos = arrays["pos"].astype(np.float32)
    return StructureArrays.of(str(path), arrays["n_atoms"], arrays["z"], pos, auxiliary=further, **labels)


def load_extra(
    path: str | Path, root: str | Path | None, held_out: np.ndarray, known: Sequence[str]
) -> StructureArrays:
    """Read further molecules for the training on the embedded set, which have no target.

    Args:
        path: An npz archive with the keys n_atoms, z, pos, charges, energy and smiles of the embedded set, such as
            `examples/data/further_qm9_xtb.npz`; integers in pos and charges count 0.001 Angstrom and 0.0001 e.
        root: Folder of the embedded set, as of :func:`load_mini`.
        held_out: Rows of its validation and test parts.
        known: Further labels that are learned; charges and energies are read where they are among them.

    Raises:
        DataError: The file is missing or another one, or a molecule of it is in the validation or test part.
    """
    path, fix = Path(check_path("extra", path)), "make it with the keys of examples/data/README.md"
    if not path.is_file():
        raise DataError(f"extra must be an npz archive of molecules, got {str(path)!r}, which is none. Correct it.")
    arrays = _read_arrays(path, ["n_atoms", "z", "pos", "charges", ENERGY, "smiles"], fix)
    smiles = _read_arrays(_mini_path(root), ["smiles"], _REMEDY)["smiles"][held_out]
    seen = np.flatnonzero(np.isin(arrays["smiles"], smiles))
    if len(seen):
        named = ", ".join(text.decode() for text in arrays["smiles"][seen[:8]])
        raise DataError(
            f"extra must hold no molecule of the validation and test parts, got {len(seen)} in {path}: {named}. "
            "Remove them from the file."
        )
    return _molecules(path, arrays, [name for name in known if name in arrays])


class PublishedFile(NamedTuple):
    """A file of a published set: formula of its molecule, and number of structures, None for any."""

    formula: str
    frames: int | None = None


class PublishedSet(NamedTuple):
    """A published set: title, archive to fetch, and files by name."""

    title: str
    archive: str
    files: Mapping[str, PublishedFile]


#: Molecules of rMD17 with 100,000 structures each; azobenzene has 12 fewer.
_RMD17 = {
    "aspirin": "C9H8O4",
    "azobenzene": "C12H10N2",
    "benzene": "C6H6",
    "ethanol": "C2H6O",
    "malonaldehyde": "C3H4O2",
    "naphthalene": "C10H8",
    "paracetamol": "C8H9NO2",
    "salicylic": "C7H6O3",
    "toluene": "C7H8",
    "uracil": "C4H4N2O2",
}
_3BPA = ("test_300K", "test_600K", "test_1200K", "test_dih_beta120", "test_dih_beta150", "test_dih_beta180")
PUBLISHED: dict[str, PublishedSet] = {
    "rmd17": PublishedSet(
        "rMD17",
        "rmd17.tar.bz2 of doi:10.6084/m9.figshare.12672038",
        {
            f"rmd17_{name}.npz": PublishedFile(formula, 99_988 if name == "azobenzene" else 100_000)
            for name, formula in _RMD17.items()
        },
    ),
    "3bpa": PublishedSet(
        "3BPA",
        "the supporting information of doi:10.1021/acs.jctc.1c00647 (ct1c00647_si_002.zip)",
        {f"{name}.xyz": PublishedFile("C12H12N2O", 500) for name in ("train_300K", "train_mixedT")}
        | {f"{name}.xyz": PublishedFile("C12H12N2O") for name in _3BPA},
    ),
}
_NEAR = 0.03  # relative tolerance of total energies; binding energies are below 0.01


def find_published(name: str, path: str) -> None:
    """Check that ``path`` names an existing file of a published set."""
    entry, file = PUBLISHED[check_choice("published", name, PUBLISHED)], Path(path)
    if file.name not in entry.files:
        raise ConfigError(
            f"path must be a file of {entry.title} ({', '.join(entry.files)}), got {path!r}. Correct the path, or set "
            "published to null for data of your own."
        )
    if not file.is_file():
        raise DataError(
            f"path must be {file.name} of {entry.title}, got {path!r}, which is no file. Fetch {entry.archive} on a "
            f"machine with a connection, unpack it, and pass --data.path FOLDER/{file.name}."
        )


def check_published(name: str, path: str, structures: StructureArrays) -> None:
    """Check molecule, number of structures and energies read from a file of a published set."""
    entry, file = PUBLISHED[check_choice("published", name, PUBLISHED)], Path(path)
    molecule = entry.files[file.name]
    counts = structures.counts(structures.species)
    formula_counts = {atomic_numbers[symbol]: count for symbol, count in Formula(molecule.formula).count().items()}
    others = np.flatnonzero((counts != [formula_counts.get(number, 0) for number in structures.species]).any(axis=1))
    if len(others) or set(formula_counts) - set(structures.species):
        row = int(others[0]) if len(others) else 0
        numbers = {number: int(count) for number, count in zip(structures.species, counts[row], strict=True) if count}
        _refuse(entry, file, f"the molecule {molecule.formula}", f"atoms by atomic number {numbers} in row {row}")
    if molecule.frames not in (None, len(structures)):
        _refuse(entry, file, f"{molecule.frames:,} structures", f"{len(structures):,}")
    for label in ("energy", "forces"):
        absent = int(np.isnan(getattr(structures, label)).sum())
        if absent:
            _refuse(entry, file, f"{label} of every structure", f"{absent:,} that are missing")
    energies = thermochemical_atomref(TARGETS["U0"])
    assert energies is not None  # of U0; other functionals differ by less than binding energies
    free = sum(energies[number] * count for number, count in formula_counts.items())
    far = np.flatnonzero(np.abs(structures.energy / free - 1) > _NEAR)
    if len(far):
        what = f"{structures.energy[far[0]]:.6g} eV in row {int(far[0])}, with the units that were given or found"
        _refuse(entry, file, f"total energies near the energy of the free atoms, {free:.0f} eV", what)


def _refuse(entry: PublishedSet, file: Path, expected: str, received: str) -> NoReturn:
    """Raise the error of a file that is not the published one."""
    raise DataError(
        f"{file} of {entry.title} must have {expected}, got {received}. Fetch {entry.archive} again, or set published "
        "to null for data of your own."
    )
