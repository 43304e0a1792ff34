"""QM9's raw files (`gdb9.sdf`, `gdb9.sdf.csv`, `uncharacterized.txt`) and labels in float64.

`torch_geometric.datasets.QM9` converts labels in float32, where a total energy of -11,000 eV has steps of 1 meV. Labels
are therefore read again from the table in float64; where the table is missing, total energies are rebuilt from
atomisation energies (small numbers, right to about 0.006 meV in float32) and the energies of the free atoms.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.targets import HARTREE_TO_EV, TARGETS, Target, check_target

from ..core.errors import DataError

SDF, CSV, SKIP = "gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"
RAW_SIZE, RAW_SKIPPED = 133_885, 3_054  # records of the full set, and how many are left out

_SPECIES = (1, 6, 7, 8, 9)
# Energies of the free atoms in Hartree at B3LYP/6-31G(2df,p), from QM9's own `atomref.txt` (Ramakrishnan et al., 2014).
_ATOMREF: dict[str, tuple[float, ...]] = {
    "U0": (-0.500273, -37.846772, -54.583861, -75.064579, -99.718730),
    "U": (-0.498857, -37.845355, -54.582445, -75.063163, -99.717314),
    "H": (-0.497912, -37.844411, -54.581501, -75.062219, -99.716370),
    "G": (-0.510927, -37.861317, -54.598897, -75.079532, -99.733544),
}
# The factors by which torch-geometric has multiplied its float32 labels, as float32 holds them.
_PYG_FACTOR = {"Hartree": float(np.float32(27.211386246)), "kcal/mol": float(np.float32(0.04336414))}
_SYMBOLS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}


def thermochemical_atomref(target: Target) -> Mapping[int, float] | None:
    """Energies of the free atoms by atomic number, in eV and float64, or None where QM9 gives none.

    Example:
        >>> {z: round(energy, 3) for z, energy in thermochemical_atomref(TARGETS["U0"]).items()}
        {1: -13.613, 6: -1029.863, 7: -1485.303, 8: -2042.611, 9: -2713.485}
    """
    if check_target(target).name not in _ATOMREF:
        return None
    return {z: value * HARTREE_TO_EV for z, value in zip(_SPECIES, _ATOMREF[target.name], strict=True)}


def has_raw(raw: Path) -> bool:
    """Whether the three raw files are there."""
    return all((raw / name).exists() for name in (SDF, CSV, SKIP))


def _corrupt(path: Path, expected: str, received: str) -> DataError:
    return DataError(
        f"{path}: expected {expected}; got {received}; the file is incomplete or corrupt: delete it and fetch it again"
    )


def _kind(error: Exception) -> str:
    """Why a file was refused; the texts of ValueError and KeyError would repeat the file's content."""
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
    """Compare the numbers of records in the three raw files.

    torch-geometric reads a truncated file as a smaller data set without a word.
    """
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
    """Read geometries from the raw files without RDKit.

    Returns:
        `n_atoms` `[N]`, `z` `[A]`, `pos` `[A, 3]` (Angstrom) and `idx` `[N]` (row in the table), without the records of
        `uncharacterized.txt`.
    """
    check_raw(raw)
    skipped = set(read_skipped(raw))
    n_atoms: list[int] = []
    z: list[int] = []
    pos: list[tuple[float, float, float]] = []
    idx: list[int] = []
    record: list[str] = []
    row = 0
    path = raw / SDF
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
    return {
        "n_atoms": np.array(n_atoms, dtype=np.int64),
        "z": np.array(z, dtype=np.int64),
        "pos": np.array(pos, dtype=np.float32).reshape(-1, 3),
        "idx": np.array(idx, dtype=np.int64),
    }


def read_labels(
    raw: Path, target: Target, idx: NDArray[np.int64], pyg_y: NDArray[np.float32] | None, counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Labels of one target in its unit, in float64.

    ``pyg_y`` `[N, 19]` are all labels as torch-geometric has converted them, None if they come from raw files alone;
    ``counts`` `[N, 5]` are atoms of H, C, N, O and F.

    Returns:
        `[N]`: from the table if it is there; else U0, U, H and G from atomisation energies and the energies of free
        atoms, and the other targets from float32, whose rounding is far below any error of a model.
    """
    path = raw / CSV
    if path.exists():
        table = _read_table(path, (target.raw_column,))[:, 0] * target.raw_factor
        if len(table) <= idx.max(initial=-1):
            raise _corrupt(path, f"at least {idx.max() + 1} rows, as the processed molecules need", f"{len(table)}")
        labels = table[idx]
        if pyg_y is not None:
            here = pyg_y[:, target.qm9_index].astype(np.float64)
            apart = np.abs(labels - here) > 1e-5 * np.maximum(1.0, np.abs(labels))
            if apart.any():
                raise DataError(
                    f"{path}: expected the {target.name} of the processed molecules; {int(apart.sum())} of {len(idx)} "
                    "differ; raw/ and processed/ belong to different data: delete processed/ and let it be made again"
                )
        return labels
    assert pyg_y is not None, "without a table, labels come from torch-geometric"
    source = TARGETS[f"{target.name}_atom"] if target.name in _ATOMREF else target
    labels = pyg_y[:, source.qm9_index].astype(np.float64)
    if source.raw_unit in _PYG_FACTOR:
        labels *= source.raw_factor / _PYG_FACTOR[source.raw_unit]
    atomref = thermochemical_atomref(target)
    if atomref is not None:
        labels += counts @ np.array([atomref[z] for z in _SPECIES])
    return labels
