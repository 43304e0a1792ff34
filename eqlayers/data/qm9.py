"""QM9 (B3LYP/6-31G(2df,p), 130,831 molecules) through `torch_geometric.datasets.QM9`, and its raw files.

What that class leaves open is closed here: nothing is downloaded where processed data exist or `offline` is set, a
download or a processing step that is cut off leaves nothing behind that a next one would take for complete, truncated
raw files are noticed, and labels are float64: in float32 a total energy of -11,000 eV has steps of 1 meV. Labels are
therefore read again from the table `gdb9.sdf.csv`; where that is missing, total energies are rebuilt from atomisation
energies (small numbers, right to about 0.006 meV in float32) and the energies of the free atoms.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.datasets import QM9

from eqlayers.core.files.archives import check_whole
from eqlayers.core.files.read_write import atomic_write
from eqlayers.data.cache import cached_arrays, content_key
from eqlayers.data.structures import StructureArrays
from eqlayers.data.targets import HARTREE_TO_EV, TARGETS, Target, check_target

from ..core.checks import check_flag, check_path
from ..core.errors import DataError, EqlayersWarning


def load_qm9(
    root: str | Path, target: Target, cache: str | Path | None = None, offline: bool = False
) -> StructureArrays:
    """Read QM9, processing or downloading what is missing.

    In order: `processed/data_v3.pt`; the raw files that torch-geometric asks for, processed by it; the three `gdb9`
    files without RDKit, read here; a download. Another data set never takes QM9's place.

    Args:
        root: Folder with `raw/` and `processed/`, as torch-geometric lays them out.
        target: Which labels to read.
        cache: Folder for geometries that were read here; None for no cache.
        offline: Raise instead of downloading.

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
    dataset, unreadable = None, False
    if (root / "processed" / "data_v3.pt").exists():
        try:
            with (root / "processed" / "data_v3.pt").open("rb") as file:
                check_whole(file)
            with warnings.catch_warnings():  # torch-geometric warns before it would run the code of a hostile file
                warnings.filterwarnings("error", "Weights only load failed")
                dataset = _AtomicQM9(root, offline=True)
        except Exception as error:  # torch.load raises many kinds for a file that was cut off
            reason = f"data_v3.pt that cannot be read ({type(error).__name__}: {error})"
            if not (has_raw(raw) or (not _has_rdkit() and (raw / "qm9_v3.pt").exists())):
                _refuse(root, reason, error)
            warnings.warn(
                f"QM9 in {root} is processed again from raw/: found a {reason}", EqlayersWarning, stacklevel=2
            )
            unreadable = True
    pyg_y: NDArray[np.float32] | None = None
    if dataset is None and has_raw(raw) and not _has_rdkit() and not (raw / "qm9_v3.pt").exists():
        arrays = _read_without_rdkit(raw, cache)
    else:
        dataset = dataset or _process(root, offline, force_reload=unreadable)
        arrays, pyg_y = _flatten(dataset, root)
    labels = read_labels(raw, target, arrays["idx"], pyg_y, _count(arrays))
    molecules = StructureArrays.of(f"QM9 in {root}, target {target.name}", **arrays, y=labels)
    molecules.refuse("finite labels", np.flatnonzero(np.isnan(labels)))
    return molecules


def _has_rdkit() -> bool:
    return importlib.util.find_spec("rdkit") is not None


def _count(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    molecule = np.repeat(np.arange(len(arrays["n_atoms"])), arrays["n_atoms"])
    columns = [np.bincount(molecule[arrays["z"] == z], minlength=len(arrays["n_atoms"])) for z in (1, 6, 7, 8, 9)]
    return np.stack(columns, axis=1)


class _AtomicQM9(QM9):
    """torch-geometric's QM9 with a safe download, a check of the raw files, and an atomic write."""

    def __init__(self, root: Path, offline: bool, force_reload: bool = False) -> None:
        self.offline = offline
        super().__init__(str(root), force_reload=force_reload)

    def _download(self) -> None:
        # torch-geometric downloads raw files also where the processed file, which is all that is needed, exists.
        if self.force_reload or not Path(self.processed_paths[0]).exists():
            super()._download()

    def download(self) -> None:
        if self.offline:
            _refuse(Path(self.root), "no download, as offline is set")
        wanted: dict[str, tuple[str, ...]] = {self.processed_url: ("qm9_v3.pt",)}
        if _has_rdkit():
            wanted = {self.raw_url: (SDF, CSV), self.raw_url2: (SKIP,)}
        for url, names in wanted.items():
            if not all((Path(self.raw_dir) / name).exists() for name in names):
                try:
                    _fetch(url, names, Path(self.raw_dir))
                except (OSError, http.client.HTTPException, zipfile.BadZipFile, KeyError, EOFError) as error:
                    _refuse(Path(self.root), f"{type(error).__name__} from {url}: {error}", error)

    def process(self) -> None:
        raw = Path(self.raw_dir)
        if _has_rdkit():
            check_raw(raw)
        super().process()

    @classmethod
    def save(cls, data_list: Sequence[Data], path: str) -> None:
        data, slices = cls.collate(data_list)
        with atomic_write(Path(path)) as file:
            torch.save((data.to_dict(), slices, data.__class__), file)


def _refuse(root: Path, received: str, cause: Exception | None = None) -> NoReturn:
    raise DataError(
        f"QM9: expected {SDF}, {CSV} and {SKIP} (or qm9_v3.pt) in {root / 'raw'}, or data_v3.pt in "
        f"{root / 'processed'}; got {received}; fetch {QM9.raw_url} (unzip) and {QM9.raw_url2} (rename to {SKIP}) "
        f"into {root / 'raw'} on a machine with a connection, or use the embedded set: --data.dataset mini"
    ) from cause


def _fetch(url: str, names: Sequence[str], raw: Path) -> None:
    """Download a file, or an archive of files, and give them their places when all of them are complete.

    Unlike torch-geometric's own download this one verifies the server's certificate.
    """
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


def _process(root: Path, offline: bool, force_reload: bool) -> QM9:
    """Let torch-geometric process the raw files, after a download if they are missing."""
    try:
        return _AtomicQM9(root, offline, force_reload)
    except DataError:
        raise
    except Exception as error:  # whatever RDKit and torch-geometric raise on files that are not what they should be
        _refuse(root, f"raw files that cannot be processed ({type(error).__name__}: {error}): delete them", error)


def _flatten(dataset: QM9, root: Path) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
    """Geometries and labels of a dataset, molecule after molecule."""
    data = dataset._data  # the collated storage, which torch-geometric names as the way past its per-sample copies
    if len(dataset) == 1:  # collated data of one molecule have no slices
        n_atoms, idx = np.array([data.num_nodes]), data.get("idx")
    else:
        n_atoms, idx = dataset.slices["z"].diff().numpy(), data.get("idx")
    if idx is None:  # "gdb_1" is row 0
        idx = [int(name.rpartition("_")[2]) - 1 for name in ([data.name] if isinstance(data.name, str) else data.name)]
    if tuple(data.y.shape) != (len(n_atoms), 19):
        _refuse(root, f"labels of shape {list(data.y.shape)} in data_v3.pt for {len(n_atoms)} molecules with 19 each")
    arrays = {
        "n_atoms": n_atoms.astype(np.int64),
        "z": data.z.numpy().astype(np.int64),
        "pos": data.pos.numpy().astype(np.float32),
        "idx": np.asarray(idx, dtype=np.int64).reshape(-1),
    }
    return arrays, data.y.numpy()


def _read_without_rdkit(raw: Path, cache: Path | None) -> dict[str, NDArray[Any]]:
    if cache is None:
        return read_sdf(raw)
    stats = [(name, (raw / name).stat().st_size, (raw / name).stat().st_mtime_ns) for name in (SDF, CSV, SKIP)]

    def problem(arrays: Mapping[str, NDArray[Any]]) -> str | None:
        fits = (
            len(arrays["idx"]) == len(arrays["n_atoms"])
            and len(arrays["z"]) == len(arrays["pos"]) == arrays["n_atoms"].sum()
        )
        return None if fits else "its arrays do not fit each other"

    return cached_arrays(cache / "geometries.npz", content_key("geometries-1", stats), lambda: read_sdf(raw), problem)


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
