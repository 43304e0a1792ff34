"""Few frames of the embedded trajectory of ethanol, for fits by commands: each reads and checks a whole file."""

from pathlib import Path
from typing import Any

import numpy as np

from eqlayers.data.embedded import embedded_trajectory

#: The section of a configuration, with three structures in each step and part.
DATA: dict[str, Any] = {
    "path": "frames.npz",
    "units": {"energy": "eV", "forces": "eV/Angstrom"},
    "cutoff": 3.0,
    "batch_size": 3,
    "split": "time",
    "train": 6,
    "val": 3,
    "test": 3,
}


def write_frames(folder: Path) -> None:
    """Write the file that `DATA` names."""
    with np.load(embedded_trajectory("ethanol_md")) as stored:
        np.savez(folder / "frames.npz", z=stored["z"], **{name: stored[name][:40] for name in ("R", "E", "F")})
