"""Published data sets of forces: their files, where to fetch them, and checks that a file is the published one.

Without known checksums, contents are checked: the molecule, the number of structures, and the magnitude of energies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from ase.data import atomic_numbers
from ase.formula import Formula

from eqlayers.data.qm9 import thermochemical_atomref
from eqlayers.data.structures import StructureArrays
from eqlayers.data.targets import TARGETS

from ..core.checks import check_choice
from ..core.errors import ConfigError, DataError


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
