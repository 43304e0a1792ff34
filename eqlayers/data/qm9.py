"""QM9 (B3LYP/6-31G(2df,p), 130,831 molecules): its 19 targets, and its raw files, fetched where they are missing.

A download that is cut off leaves nothing behind that a next one would take for complete, and truncated files are
noticed. Labels are read from the table `gdb9.sdf.csv` in float64: in float32, as torch-geometric has them, a total
energy of -11,000 eV has steps of 1 meV. Inside models energies are in eV; they are reported in meV, as the
field's tables do. The order of `TARGETS` is the order of the columns of `torch_geometric.datasets.QM9`.
"""

from __future__ import annotations

import http.client
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from eqlayers.data.cache import cached_arrays, content_key
from eqlayers.data.structures import Auxiliary, StructureArrays, check_names

from ..core.checks import check_choice, check_flag, check_path, check_type
from ..core.errors import DataError

SDF, CSV, SKIP = "gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"
#: Where the files are: an archive with geometries and table, and the list of records to leave out.
SOURCES = {
    "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/molnet_publish/qm9.zip": (SDF, CSV),
    "https://ndownloader.figshare.com/files/3195404": (SKIP,),
}
RAW_SIZE, RAW_SKIPPED = 133_885, 3_054  # records of the full set, and how many are left out

_SPECIES = (1, 6, 7, 8, 9)
# Energies of the free atoms in Hartree at B3LYP/6-31G(2df,p), from QM9's own `atomref.txt` (Ramakrishnan et al., 2014).
_ATOMREF: dict[str, tuple[float, ...]] = {
    "U0": (-0.500273, -37.846772, -54.583861, -75.064579, -99.718730),
    "U": (-0.498857, -37.845355, -54.582445, -75.063163, -99.717314),
    "H": (-0.497912, -37.844411, -54.581501, -75.062219, -99.716370),
    "G": (-0.510927, -37.861317, -54.598897, -75.079532, -99.733544),
}
_SYMBOLS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}


def load_qm9(
    root: str | Path,
    target: Target,
    cache: str | Path | None = None,
    offline: bool = False,
    auxiliary: Sequence[str] = (),
) -> StructureArrays:
    """Read QM9, downloading its three raw files if one is missing.

    Args:
        root: Folder with `raw/`, as torch-geometric lays it out.
        target: Which labels to read, as `y`.
        cache: Folder for geometries, so that the next start does not parse them; None for no cache.
        offline: Raise instead of downloading.
        auxiliary: Further labels: other targets, and "energy", U0 less the zero-point energy.

    Returns:
        The molecules, in torch-geometric's order; `idx` is the row in `gdb9.sdf.csv`.

    Raises:
        DataError: If the data are missing and cannot be downloaded, or are incomplete or corrupt.
    """
    check_target(target)
    check_flag("offline", offline)
    root = Path(check_path("root", root)).expanduser()
    cache = None if cache is None else Path(check_path("cache", cache))
    raw = root / "raw"
    for url, names in SOURCES.items():
        if all((raw / name).exists() for name in names):
            continue
        if offline:
            _refuse(raw, "no download, as offline is set")
        try:
            _fetch(url, names, raw)
        except (OSError, http.client.HTTPException, zipfile.BadZipFile, KeyError, EOFError) as error:
            _refuse(raw, f"{type(error).__name__} from {url}: {error}", error)
    arrays = _geometries(raw, cache)
    labels = check_names("auxiliary", auxiliary, (*TARGETS, ENERGY))
    terms = {name: [TARGETS["U0"], TARGETS["zpve"]] if name == ENERGY else [TARGETS[name]] for name in labels}
    read = [target, *(term for listed in terms.values() for term in listed)]
    table = _read_table(raw / CSV, tuple(term.raw_column for term in read))[arrays["idx"]]
    values = {term.name: table[:, column] * term.raw_factor for column, term in enumerate(read)}
    further = {
        name: auxiliary_of(name)._replace(values=sum((-values[term.name] for term in less), values[first.name]))
        for name, (first, *less) in terms.items()
    }
    source = f"QM9 in {root}, target {target.name}"
    molecules = StructureArrays.of(source, **arrays, y=values[target.name], auxiliary=further)
    molecules.refuse("finite labels", np.flatnonzero(np.isnan(molecules.y)))
    return molecules


def _refuse(raw: Path, received: str, cause: Exception | None = None) -> NoReturn:
    archive, skipped = SOURCES
    raise DataError(
        f"QM9: expected {SDF}, {CSV} and {SKIP} in {raw}; got {received}; fetch {archive} (unzip) and {skipped} "
        f"(rename to {SKIP}) into {raw} on a machine with a connection, or use the embedded set: --data.dataset mini"
    ) from cause


def _fetch(url: str, names: Sequence[str], raw: Path) -> None:
    """Download a file, or an archive of files, and move them to the folder when all of them are complete."""
    raw.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=raw, prefix=".download-") as folder:
        part = Path(folder) / "part"
        torch.hub.download_url_to_file(url, str(part))
        if zipfile.is_zipfile(part) or url.endswith(".zip"):
            with zipfile.ZipFile(part) as archive:
                for name in names:
                    with archive.open(name) as source, (Path(folder) / name).open("wb") as target:
                        shutil.copyfileobj(source, target)
        else:
            part.rename(Path(folder) / names[0])
        for name in names:
            os.replace(Path(folder) / name, raw / name)


def _geometries(raw: Path, cache: Path | None) -> dict[str, NDArray[Any]]:
    """Geometries as of :func:`read_sdf`, from a cache if there is one."""
    if cache is None:
        return read_sdf(raw)
    stats = [(name, (raw / name).stat().st_size, (raw / name).stat().st_mtime_ns) for name in (SDF, CSV, SKIP)]

    def problem(arrays: Mapping[str, NDArray[Any]]) -> str | None:
        sizes = arrays["n_atoms"]
        fits = len(arrays["idx"]) == len(sizes) and len(arrays["z"]) == len(arrays["pos"]) == sizes.sum()
        return None if fits else "its arrays do not fit each other"

    return cached_arrays(cache / "geometries.npz", content_key("geometries-1", stats), lambda: read_sdf(raw), problem)


def thermochemical_atomref(target: Target) -> Mapping[int, float] | None:
    """Energies of the free atoms by atomic number, in eV and float64, or None where QM9 gives none.

    Example:
        >>> from eqlayers.data.qm9 import TARGETS
        >>> {z: round(energy, 3) for z, energy in thermochemical_atomref(TARGETS["U0"]).items()}
        {1: -13.613, 6: -1029.863, 7: -1485.303, 8: -2042.611, 9: -2713.485}
    """
    if check_target(target).name not in _ATOMREF:
        return None
    return {z: value * HARTREE_TO_EV for z, value in zip(_SPECIES, _ATOMREF[target.name], strict=True)}


def _corrupt(path: Path, expected: str, received: str) -> DataError:
    return DataError(
        f"{path}: expected {expected}; got {received}; the file is incomplete or corrupt: delete it and fetch it again"
    )


def _kind(error: Exception) -> str:
    """Text of an error while reading a file; ValueError and KeyError are only named, as they repeat its content."""
    return f"another content ({type(error).__name__})" if not isinstance(error, OSError) else str(error)


def read_skipped(raw: Path) -> list[int]:
    """Rows (from 0) of the records that QM9's authors advise to leave out: nine lines of header, one of footer."""
    path = raw / SKIP
    try:
        return [int(line.split()[0]) - 1 for line in path.read_text().split("\n")[9:-2]]
    except (OSError, ValueError, IndexError) as error:
        raise _corrupt(path, "a record number at the start of every line", _kind(error)) from None


def _read_table(path: Path, columns: tuple[int, ...]) -> NDArray[np.float64]:
    """Columns of the table, counted after `mol_id`, `[records, columns]`."""
    try:
        return np.loadtxt(path, delimiter=",", skiprows=1, usecols=[1 + column for column in columns], ndmin=2)
    except (OSError, ValueError, IndexError) as error:
        raise _corrupt(path, "mol_id and 19 numbers in every row", _kind(error)) from None


def check_raw(raw: Path) -> None:
    """Compare the numbers of records in the three raw files."""
    rows = len(_read_table(raw / CSV, (18,)))
    with (raw / SDF).open("rb") as file:
        records = sum(line.startswith(b"$$$$") for line in file)
    if records != rows:
        raise _corrupt(raw / SDF, f"{rows} records, as many as rows in {CSV}", f"{records} complete ones")
    skipped = read_skipped(raw)
    if any(not 0 <= row < rows for row in skipped):
        raise _corrupt(raw / SKIP, f"record numbers from 1 to {rows}", f"{max(skipped) + 1}")
    if rows == RAW_SIZE and len(skipped) != RAW_SKIPPED:
        raise _corrupt(raw / SKIP, f"{RAW_SKIPPED} record numbers", f"{len(skipped)}")


def read_sdf(raw: Path) -> dict[str, NDArray[Any]]:
    """Read geometries from the raw files.

    Returns:
        `n_atoms` `[N]`, `z` `[A]`, `pos` `[A, 3]` (Angstrom) and `idx` `[N]` (row in the table), without the records of
        `uncharacterized.txt`.
    """
    check_raw(raw)
    skipped = set(read_skipped(raw))
    n_atoms, z, idx, pos = list[int](), list[int](), list[int](), list[tuple[float, float, float]]()
    record, row, path = list[str](), 0, raw / SDF
    try:
        with path.open() as file:
            for line in file:
                if not line.startswith("$$$$"):
                    record.append(line)
                    continue
                if row not in skipped:
                    num = int(record[3][:3])  # the V2000 format has fixed columns
                    atoms = record[4 : 4 + num]
                    z += [_SYMBOLS[atom[31:34].strip()] for atom in atoms]
                    pos += [(float(atom[:10]), float(atom[10:20]), float(atom[20:30])) for atom in atoms]
                    n_atoms.append(num)
                    idx.append(row)
                record = []
                row += 1
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise _corrupt(path, f"a V2000 record in place {row + 1}", _kind(error)) from None
    integers = {"n_atoms": n_atoms, "z": z, "idx": idx}
    arrays = {name: np.array(values, dtype=np.int64) for name, values in integers.items()}
    return arrays | {"pos": np.array(pos, dtype=np.float32).reshape(-1, 3)}


HARTREE_TO_EV = 27.211386245988  # CODATA 2018
# QM9's table of atomisation energies was itself made from Hartree with 627.509 kcal/mol; undoing the same number gives
# back the exact difference of total energies (CH4: (-40.47893 + 39.847864) Eh * 627.509 = -395.999594594 kcal/mol).
KCAL_PER_MOL_TO_EV = HARTREE_TO_EV / 627.509


@dataclass(frozen=True)
class Target:
    """One property to predict.

    Attributes:
        name: Name as in `torch_geometric.datasets.QM9`'s documentation.
        unit: Unit of `y` inside models.
        report_unit: Unit of errors in tables and metric names.
        report_factor: Multiplies a value in `unit` to give `report_unit`.
        extensive: Whether the value grows with the molecule: sum pooling and per-species shifts; else mean pooling.
        qm9_index: Column in `torch_geometric.datasets.QM9`'s `y`.
        raw_unit: Unit in QM9's own table (`gdb9.sdf.csv`) and in the embedded set.
        raw_factor: Multiplies a raw value to give `unit`.
        mini_key: Key of the embedded set, or None where it has no such column.
        about: What it is.
    """

    name: str
    unit: str
    report_unit: str
    report_factor: float
    extensive: bool
    qm9_index: int
    raw_unit: str
    raw_factor: float
    mini_key: str | None
    about: str

    @property
    def raw_column(self) -> int:
        """Column of the value in `gdb9.sdf.csv`, counted after `mol_id`: that table has A, B, C first."""
        return (self.qm9_index + 3) % 19


# raw unit -> (unit inside models, factor, unit of reports, factor)
_UNITS: dict[str, tuple[str, float, str, float]] = {
    "Hartree": ("eV", HARTREE_TO_EV, "meV", 1000.0),
    "kcal/mol": ("eV", KCAL_PER_MOL_TO_EV, "meV", 1000.0),
    **{unit: (unit, 1.0, unit, 1.0) for unit in ("D", "a0^3", "a0^2", "cal/(mol K)", "GHz")},
}

# name, raw unit, extensive, in the embedded set, about
_ROWS: tuple[tuple[str, str, bool, bool, str], ...] = (
    ("mu", "D", False, True, "norm of the dipole moment"),
    ("alpha", "a0^3", True, True, "isotropic polarisability"),
    ("homo", "Hartree", False, True, "energy of the highest occupied molecular orbital"),
    ("lumo", "Hartree", False, True, "energy of the lowest unoccupied molecular orbital"),
    ("gap", "Hartree", False, True, "LUMO energy minus HOMO energy"),
    ("r2", "a0^2", True, False, "electronic spatial extent <R^2>; grows faster than the number of atoms"),
    ("zpve", "Hartree", True, True, "zero-point vibrational energy"),
    ("U0", "Hartree", True, True, "internal energy at 0 K"),
    ("U", "Hartree", True, True, "internal energy at 298.15 K"),
    ("H", "Hartree", True, True, "enthalpy at 298.15 K"),
    ("G", "Hartree", True, True, "free energy at 298.15 K"),
    ("Cv", "cal/(mol K)", True, True, "heat capacity at constant volume and 298.15 K"),
    ("U0_atom", "kcal/mol", True, False, "atomisation energy at 0 K"),
    ("U_atom", "kcal/mol", True, False, "atomisation energy at 298.15 K"),
    ("H_atom", "kcal/mol", True, False, "atomisation enthalpy at 298.15 K"),
    ("G_atom", "kcal/mol", True, False, "atomisation free energy at 298.15 K"),
    ("A", "GHz", False, True, "largest rotational constant (0 for linear molecules)"),
    ("B", "GHz", False, True, "middle rotational constant"),
    ("C", "GHz", False, True, "smallest rotational constant"),
)


def _row(index: int, name: str, raw_unit: str, extensive: bool, in_mini: bool, about: str) -> Target:
    unit, raw_factor, report_unit, report_factor = _UNITS[raw_unit]
    mini_key = name if in_mini else None
    return Target(name, unit, report_unit, report_factor, extensive, index, raw_unit, raw_factor, mini_key, about)


TARGETS: dict[str, Target] = {row[0]: _row(index, *row) for index, row in enumerate(_ROWS)}


#: Name of the electronic energy, which is no target, among further labels.
ENERGY = "energy"


def auxiliary_of(name: str) -> Auxiliary:
    """A target, or the electronic energy, as a further label without values.

    Example:
        >>> auxiliary_of("zpve").pooling, auxiliary_of("gap").pooling, auxiliary_of("energy").label.errors
        ('sum', 'mean', 'meV')
    """
    target = TARGETS["U0" if name == ENERGY else name]
    pooling = "sum" if target.extensive else "mean"
    return Auxiliary.of(name, pooling, target.unit, thousandth=target.report_factor == 1e3)


#: Unit of a property without a unit in the configuration.
NO_UNIT = "unit of the file"


def own_target(name: str, unit: str, extensive: bool) -> Target:
    """The target of a property in the user's file; its values are not converted.

    Example:
        >>> own_target("gap", "eV", extensive=False).report_unit
        'eV'
    """
    about = "label of the molecules"
    return Target(name, unit, unit, 1.0, extensive, -1, unit, 1.0, None, about)


def get_target(name: str) -> Target:
    """Look up a target by name.

    Args:
        name: One of the keys of `TARGETS`.

    Returns:
        The row of the table.

    Raises:
        ConfigError: For an unknown name; the message lists the known ones.

    Example:
        >>> get_target("U0").unit, get_target("U0").report_unit, get_target("U0").extensive
        ('eV', 'meV', True)
    """
    return TARGETS[check_choice("target", name, TARGETS)]


def check_target(target: Any) -> Target:
    """Return ``target`` if it is a row of the table, else raise ConfigError."""
    return check_type("target", target, Target, "a Target", "Take one from get_target(name).")
