"""Structures as flat arrays, one structure after the other: their checks, counts and parts."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.splits import check_rows

from ..core.checks import got
from ..core.errors import DataError

IntArray = NDArray[np.int64]
_KINDS = {"f": "numbers", "iu": "integers", "b": "truth values", "U": "texts"}


def refuse(
    source: str,
    idx: IntArray,
    expected: str,
    rows: IntArray,
    what: str,
    fix: str = "repair or remove these rows in the source",
) -> None:
    """Raise a DataError that counts and names rows, if there are any."""
    if len(rows):
        named = ", ".join(str(row) for row in idx[rows[:8]]) + (", ..." if len(rows) > 8 else "")
        raise DataError(
            f"{source}: expected {expected}; {len(rows)} of {len(idx)} {what} do not have that, rows {named}; {fix}"
        )


class FlatArrays:
    """Arrays of all structures of a data set, checked once. A frozen dataclass derives from it.

    Attributes:
        fields: Kinds of numpy's dtypes, axis (N structures or A atoms) and trailing axes of each array, by name.
        one: A structure in a word; an ``s`` makes the plural.
    """

    fields: ClassVar[dict[str, tuple[str, str, tuple[int, ...]]]]
    one: ClassVar[str] = "structure"
    source: str
    n_atoms: IntArray
    z: IntArray
    pos: NDArray[Any]
    idx: IntArray

    def __post_init__(self) -> None:
        for name, (kinds, _, _) in self.fields.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in kinds:
                raise DataError(
                    f"{name} of {self.source} must be an array of {_KINDS[kinds]}, got {got(array)}. Convert it."
                )
        sizes = {"N": len(self.n_atoms), "A": int(self.n_atoms.sum())}
        if sizes["N"] == 0:
            raise DataError(f"{self.source} must hold at least one {self.one}, got none. Check that it is complete.")
        for name, (_, axis, trailing) in self.fields.items():
            if getattr(self, name).shape != (sizes[axis], *trailing):
                raise DataError(
                    f"{name} of {self.source} must be {[sizes[axis], *trailing]} for {sizes['N']} {self.one}s, got "
                    f"{list(getattr(self, name).shape)}. The file is incomplete or corrupt: fetch or make it again."
                )
        self._refuse(f"at least one atom in every {self.one}", self.n_atoms < 1)
        self._refuse("atomic numbers from 1 to 118", (self.z < 1) | (self.z > 118))
        self._refuse("finite positions", ~np.isfinite(self.pos).all(axis=1))

    def _refuse(self, expected: str, failing: Any) -> None:
        """Raise a DataError that names the structures of which one row fails, of structures `[N]` or atoms `[A]`."""
        bad: NDArray[np.bool_] = np.asarray(failing)
        if bad.any():
            of_atoms = len(bad) != len(self.n_atoms)
            rows = np.unique(self.row_of_atom[bad]) if of_atoms else np.flatnonzero(bad)
            refuse(self.source, self.idx, expected, rows, f"{self.one}s")

    def __len__(self) -> int:
        return len(self.n_atoms)

    @cached_property
    def starts(self) -> IntArray:
        """The first atom of every structure, `[N]`."""
        return np.cumsum(self.n_atoms) - self.n_atoms

    @cached_property
    def row_of_atom(self) -> IntArray:
        """Row of the structure of every atom, `[A]`."""
        return np.repeat(np.arange(len(self)), self.n_atoms)

    def atoms(self, row: int) -> slice:
        """The atoms of a structure."""
        return slice(self.starts[row], self.starts[row] + self.n_atoms[row])

    @property
    def species(self) -> tuple[int, ...]:
        """Atomic numbers that occur, ascending."""
        return tuple(np.unique(self.z).tolist())

    def counts(self, species: tuple[int, ...]) -> IntArray:
        """Number of atoms of every species in every structure, `[N, S]`."""
        return np.stack([self.count(self.z == number) for number in species], axis=1)

    def count(self, mask: NDArray[np.bool_]) -> IntArray:
        """Number of marked atoms of every structure, `[N]`."""
        return np.bincount(self.row_of_atom[mask], minlength=len(self)).astype(np.int64)

    def take(self, rows: IntArray) -> Any:
        """Some of the structures, in the order of ``rows``."""
        rows = check_rows("rows", rows, len(self))
        first = self.starts
        atoms = np.concatenate([np.arange(first[row], first[row] + self.n_atoms[row]) for row in rows])
        chosen = {
            name: getattr(self, name)[rows if axis == "N" else atoms] for name, (_, axis, _) in self.fields.items()
        }
        return type(self)(source=self.source, **chosen)  # type: ignore[call-arg]
