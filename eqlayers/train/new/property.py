"""Settings of the property of own molecules: its name, its unit, and whether it grows with the molecule."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...atoms.database import database_units
from ...data.targets import NO_UNIT
from .look import Look

_BETTER = 0.5  # of the other fit's errors: less decides


class Setting(NamedTuple):
    """A value of the configuration and the comment beside it."""

    value: Any
    about: str


def choose_property(facts: Look, unit: str) -> dict[str, Setting]:
    """Settings of the data of a property; a database may say its unit."""
    number, target = facts.file.columns["y"].number, str(facts.target)
    said = (
        database_units(Path(facts.path)).get(target, unit) if unit == NO_UNIT and facts.path.endswith(".db") else unit
    )
    about = "which reports name; numbers stay as they are"
    return {
        "data.target": Setting(target, f"name in the file, of {number:,} structures"),
        "data.unit": Setting(
            said, "set it: the file says none; numbers stay as they are" if said == NO_UNIT else about
        ),
        "data.extensive": _grows(facts),
    }


def _grows(facts: Look) -> Setting:
    """Whether sums over atoms fit the labels much better than means over atoms."""
    known = np.flatnonzero(~np.isnan(facts.structures.y))
    part = facts.structures.take(known)
    counts = part.counts(part.species).astype(np.float64)
    sizes = np.unique(part.n_atoms)
    errors = []
    for columns in (counts, counts / part.n_atoms[:, None]):
        fit = np.linalg.lstsq(columns, part.y, rcond=None)[0]
        errors.append(float(np.sqrt(np.square(part.y - columns @ fit).mean())))
    added, averaged = errors
    if len(sizes) > 1 and added < _BETTER * averaged:
        return Setting(True, f"it grows with the molecule: sums over atoms fit to {added:.3g}, means to {averaged:.3g}")
    about = f"means over atoms fit to {averaged:.3g}, sums to {added:.3g}" if len(sizes) > 1 else "all have one size"
    return Setting(False, f"it does not grow with the molecule: {about}")
