"""Data sets that a source checkout holds in `examples/data`: where they are, whether they are whole, and molecules.

The set "mini" has 2,785 small molecules at GFN2-xTB level. It is not DFT: errors on it are not comparable with
published QM9 tables. See `examples/data/README.md`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from eqlayers.data.cache import UNREADABLE
from eqlayers.data.structures import StructureArrays
from eqlayers.data.targets import TARGETS, Target, check_target

from ..core.checks import check_path
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
    compare_with_manifest(
        path, "restore it from the repository (git checkout) or make it again with examples/data/make_forces.py"
    )
    return path


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


def load_mini(root: str | Path | None, target: Target) -> StructureArrays:
    """Read the embedded set.

    If a `manifest.json` beside it lists the file, its SHA-256 is compared.

    Args:
        root: Folder of `mini_qm9_xtb.npz`; the source checkout's `examples/data` if None.
        target: Which labels to read.

    Returns:
        The molecules, in the order of the file.

    Raises:
        ConfigError: If the set has no such target.
        DataError: If the file is missing, is not the listed one, cannot be read, or lacks something.
    """
    if check_target(target).mini_key is None:
        known = ", ".join(name for name, row in TARGETS.items() if row.mini_key)
        raise ConfigError(
            f'target: expected one that dataset="mini" has ({known}); got {target.name!r}; choose one of these'
        )
    path = (default_mini_root() if root is None else Path(check_path("root", root))) / MINI_FILE
    if not path.exists():
        raise DataError(f"root: expected a folder with {MINI_FILE}; {path} does not exist; {_REMEDY}, or correct root")
    compare_with_manifest(path, _REMEDY)
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("n_atoms", "z", "pos", target.mini_key)}
    except UNREADABLE as error:
        raise DataError(
            f"{path}: expected an npz archive with n_atoms, z, pos and {target.mini_key}; it cannot be read "
            f"({type(error).__name__}: {error}); {_REMEDY}"
        ) from error
    for key, array in arrays.items():
        if array.dtype.kind not in ("ui" if key in ("n_atoms", "z") else "f"):
            raise DataError(
                f"{path}: expected numbers of the right kind in {key!r}; got dtype {array.dtype}; {_REMEDY}"
            )
    molecules = StructureArrays.of(
        str(path),
        *(arrays["n_atoms"], arrays["z"], arrays["pos"].astype(np.float32)),
        y=arrays[target.mini_key].astype(np.float64) * target.raw_factor,
    )
    molecules.refuse("finite labels", np.flatnonzero(np.isnan(molecules.y)))
    return molecules
