"""Databases of ASE, with labels and units in the format of schnetpack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ConfigError, needs_packages
from .units import KEYS, unit_size

with needs_packages("eqlayers.atoms.database", "train"):
    from ase import Atoms
    from ase.db import connect

__all__ = ["database_structures", "database_units", "size_of_unit"]

#: Key of the unit of positions in the result of `database_units`.
POSITIONS = "positions"


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open an existing, non-empty database; ASE would create a missing one and fill an empty file."""
    if not file.is_file() or not file.stat().st_size:
        raise OSError(f"no database, but {'an empty file' if file.is_file() else 'nothing'}")
    with connect(str(file), type="db") as database:
        yield database


def database_structures(file: Path, index: int | None = None) -> Iterator[Atoms]:
    """Iterate over structures of a database, or only row ``index``, with key-value pairs and arrays in ``info``."""
    with _opened(file) as database:
        some = {} if index is None else {"offset": range(database.count())[index], "limit": 1}
        for row in database.select(**some):
            atoms = row.toatoms()
            for name, value in {**row.key_value_pairs, **row.data}.items():
                try:
                    array = np.asarray(value)
                except ValueError:  # lists of several lengths are no label
                    continue
                batch = array.ndim > (2 if name in KEYS["forces"] else 1) and array.shape[0] == 1
                atoms.info[name] = array[0] if batch else array  # schnetpack's batch of one
            yield atoms


def database_units(file: Path) -> dict[str, str]:
    """Units by name of an array, and of ``positions``, from metadata in the format of schnetpack; {} without."""
    try:
        with _opened(file) as database:
            metadata = database.metadata
    except Exception:  # no database: reading its structures raises an error
        return {}
    named = metadata.get("_property_unit_dict")
    units = {str(name): str(unit) for name, unit in named.items() if unit} if isinstance(named, dict) else {}
    return units | ({POSITIONS: str(metadata["_distance_unit"])} if metadata.get("_distance_unit") else {})


def size_of_unit(file: Path, quantity: str, unit: str) -> float:
    """Factor from a unit of a database to the unit of this package; see :func:`eqlayers.atoms.units.unit_size`."""
    try:
        return unit_size(quantity, unit)
    except ConfigError as error:
        raise ConfigError(f"units in the metadata of {file} must be known ones: {error}") from None
