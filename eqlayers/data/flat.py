"""Shared code of flat arrays of atoms: refusing rows by name, and sums over the atoms of each structure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eqlayers.errors import DataError

__all__ = ["refuse", "rows_of_atoms", "sum_atoms"]

IntArray = NDArray[np.int64]


def rows_of_atoms(n_atoms: IntArray) -> IntArray:
    """Row of the structure of every atom, `[A]`.

    Example:
        >>> rows_of_atoms(np.array([2, 1])).tolist()
        [0, 0, 1]
    """
    return np.repeat(np.arange(len(n_atoms)), n_atoms)


def sum_atoms(n_atoms: IntArray, mask: NDArray[np.bool_]) -> IntArray:
    """Number of marked atoms of every structure, `[N]`.

    Example:
        >>> sum_atoms(np.array([2, 1]), np.array([True, True, False])).tolist()
        [2, 0]
    """
    return np.bincount(rows_of_atoms(n_atoms)[mask], minlength=len(n_atoms)).astype(np.int64)


def refuse(
    source: str,
    idx: IntArray,
    expected: str,
    rows: IntArray,
    what: str,
    fix: str = "repair or remove these rows in the source",
) -> None:
    """Raise a DataError that counts and names rows, if there are any.

    Args:
        source: Of the data.
        idx: Row of every structure in its source, `[N]`.
        expected: What every one must have.
        rows: Those that do not.
        what: The structures of this source, as "molecules".
        fix: What mends it.
    """
    if len(rows):
        named = ", ".join(str(row) for row in idx[rows[:8]]) + (", ..." if len(rows) > 8 else "")
        raise DataError(
            f"{source}: expected {expected}; {len(rows)} of {len(idx)} {what} do not have that, rows {named}; {fix}"
        )
