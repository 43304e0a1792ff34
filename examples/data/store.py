"""Writing the data sets: atomic npz files and the manifest with their SHA-256; comparing arrays for `--verify`."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

HERE = Path(__file__).resolve().parent
MANIFEST = "manifest.json"


def progress_bar() -> Progress:
    """A progress bar with a count and the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn())


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a temporary file beside `path` and rename it: `path` is the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            write(file)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def save_set(path: Path, arrays: Mapping[str, NDArray[Any]], rows: int, made_with: str) -> None:
    """Write a compressed npz file and its entry in the manifest of the same folder."""
    _write(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    versions = {name: version(name) for name in ("numpy", "rdkit", "tblite")}
    update_manifest(path, rows, made_with, versions)


def update_manifest(path: Path, rows: int, made_with: str, versions: Mapping[str, str]) -> None:
    """Write size, SHA-256 and origin of a file into `manifest.json` beside it."""
    manifest = path.parent / MANIFEST
    content = json.loads(manifest.read_text()) if manifest.exists() else {"files": {}}
    data = path.read_bytes()
    content["files"][path.name] = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "rows": rows,
        "made_with": made_with,
        "versions": dict(versions),
    }
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    _write(manifest, lambda file: file.write(text.encode()))


class Deviations:
    """Largest absolute deviation per key between stored and recomputed values."""

    def __init__(self) -> None:
        self.largest: dict[str, tuple[float, float, str]] = {}

    def add(self, key: str, stored: Any, computed: Any, where: str) -> None:
        """Compare one value; `where` names the row."""
        stored, computed = np.asarray(stored, dtype=float), np.asarray(computed, dtype=float)
        deviation = float(np.abs(stored - computed).max()) if stored.shape == computed.shape else float("inf")
        if key not in self.largest or deviation > self.largest[key][0]:
            self.largest[key] = (deviation, float(np.abs(stored).max()), where)

    def report(self, tolerances: Mapping[str, tuple[float, str]]) -> bool:
        """Print a table; True if every key is within its tolerance."""
        table = Table("key", "unit", "largest deviation", "size there", "tolerance", "row", "")
        good = True
        for key, (deviation, size, where) in self.largest.items():
            tolerance, unit = tolerances[key]
            good &= deviation <= tolerance
            verdict = "ok" if deviation <= tolerance else "[red]too large[/red]"
            table.add_row(key, unit, f"{deviation:.1e}", f"{size:.4g}", f"{tolerance:.0e}", where, verdict)
        Console().print(table)
        return good
