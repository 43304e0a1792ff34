"""Settings of a learned property of molecules: name, unit, and whether it is extensive."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...atoms.database import database_units
from ...data.targets import NO_UNIT
from .facts import Facts

_BETTER = 0.5  # ratio of errors below which the extensive fit is better


class Setting(NamedTuple):
    """A value of the configuration and its comment."""

    value: Any
    about: str


def choose_property(facts: Facts, unit: str) -> dict[str, Setting]:
    """Settings of the data of a property; its unit may be in the metadata of a database."""
    number, target = facts.file.columns["y"].number, str(facts.target)
    if unit == NO_UNIT and facts.path.endswith(".db"):
        unit = database_units(Path(facts.path)).get(target, unit)
    about = "set it: the file says none" if unit == NO_UNIT else "which reports name"
    return {
        "data.target": Setting(target, f"name in the file, of {number:,} structures"),
        "data.unit": Setting(unit, f"{about}; numbers stay as they are"),
        "data.extensive": _extensive(facts),
    }


def _extensive(facts: Facts) -> Setting:
    """Setting whether a property is extensive: a linear fit by atom counts is much better than by fractions."""
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
