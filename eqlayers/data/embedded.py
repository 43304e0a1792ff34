"""Data sets that a source checkout holds in `examples/data`: where they are, and whether they are whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ..core.errors import DataError

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
