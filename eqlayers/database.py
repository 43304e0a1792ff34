"""Databases of ASE, with labels and units as schnetpack keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from .errors import ConfigError, needs_packages
from .files import KEYS
from .units import DEFAULT_UNITS, read_units

with needs_packages("eqlayers.database", "train"):
    from ase import Atoms
    from ase.db import connect

__all__ = ["database_structures", "database_units"]


def database_structures(file: Path) -> Iterator[Atoms]:
    """Structures of a database, with the arrays beside them, in which schnetpack keeps all labels."""
    with connect(str(file), type="db") as database:
        for row in database.select():
            atoms = row.toatoms()
            for name, value in {**row.key_value_pairs, **row.data}.items():
                array = np.asarray(value)
                if array.ndim > 1 and array.shape[0] == 1 < len(atoms):  # schnetpack's batch of one
                    array = array[0]
                atoms.info[name] = array
            yield atoms


def database_units(file: Path, keys: Mapping[str, str | None], given: Mapping[str, str]) -> dict[str, str]:
    """Units by label: those that are given, and others where a database says them as schnetpack does.

    Args:
        file: The database; without one there are the given units.
        keys: Names of labels that are not the usual ones.
        given: Units, which come first.

    Raises:
        ConfigError: A unit in the metadata is not known.
    """
    try:
        with connect(str(file), type="db") as database:
            said = database.metadata
    except Exception:  # no database: the reader says so
        return dict(given)
    by_name = {**said.get("_property_unit_dict", {})}
    found = {"pos": said["_distance_unit"]} if said.get("_distance_unit") else {}
    for label, usual in KEYS.items():
        name = next((n for n in ((keys.get(label),) if keys.get(label) else usual) if by_name.get(n)), None)
        if name is not None and label in DEFAULT_UNITS:
            found[label] = by_name[name]
    try:
        return read_units({**found, **given})
    except ConfigError as error:
        raise ConfigError(f"units in the metadata of {file} must be known ones: {error}") from None
