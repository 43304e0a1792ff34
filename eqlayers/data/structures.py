"""Structures with energies, forces, stress and dipoles as flat arrays, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from ase.geometry import complete_cell
from numpy.typing import NDArray

from eqlayers.data.flat import FlatArrays

from ..core.checks import check_type

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Labels that structures can have.
LABELS = ("energy", "forces", "stress", "dipole", "polarizability")
_VACUUM = 1000.0  # Angstrom: length of lattice vectors where there is no period, beyond any structure


@dataclass(frozen=True)
class StructureArrays(FlatArrays):
    """Every structure of a data set, one after the other; a label that is missing is NaN.

    Attributes:
        source: Where they come from, for messages.
        n_atoms: Atoms of every structure, `[N]` int64.
        z: Atomic numbers, `[A]` int64.
        pos: Positions in Angstrom, `[A, 3]` float64.
        cell: A lattice vector in Angstrom in each row, `[N, 3, 3]` float64; 0 where there is none.
        pbc: Whether each lattice vector is a period, `[N, 3]` bool.
        energy: eV, `[N]` float64.
        forces: eV/Angstrom, `[A, 3]` float64.
        stress: eV/Angstrom^3, `[N, 3, 3]` float64, positive where the structure pulls inwards, as ASE has it.
        dipole: e Angstrom, `[N, 3]` float64.
        polarizability: Angstrom^3, `[N, 3, 3]` float64.
        config_type: Name of the group of every structure, `[N]`; empty without one.
        idx: Row of every structure in its source, `[N]` int64.

    Raises:
        DataError: If there is no structure, lengths disagree, positions are not finite, a structure has labels in
            part, or a periodic cell has no volume.

    Example:
        >>> pos = [[0, 0, 0], [0, 0, 0.74]]
        >>> structures = StructureArrays.of("a test", n_atoms=[2], z=[1, 1], pos=pos, energy=[-31])
        >>> structures.labels, structures.species, structures.has_cells
        (('energy',), (1,), False)
    """

    fields: ClassVar = {
        "n_atoms": ("iu", "N", ()),
        "z": ("iu", "A", ()),
        "pos": ("f", "A", (3,)),
        "cell": ("f", "N", (3, 3)),
        "pbc": ("b", "N", (3,)),
        "energy": ("f", "N", ()),
        "forces": ("f", "A", (3,)),
        "stress": ("f", "N", (3, 3)),
        "dipole": ("f", "N", (3,)),
        "polarizability": ("f", "N", (3, 3)),
        "config_type": ("U", "N", ()),
        "idx": ("iu", "N", ()),
    }
    source: str
    n_atoms: IntArray
    z: IntArray
    pos: FloatArray
    cell: FloatArray
    pbc: NDArray[np.bool_]
    energy: FloatArray
    forces: FloatArray
    stress: FloatArray
    dipole: FloatArray
    polarizability: FloatArray
    config_type: NDArray[Any]
    idx: IntArray

    @classmethod
    def of(cls, source: str, n_atoms: Any, z: Any, pos: Any, **others: Any) -> StructureArrays:
        """From lists or arrays; no cell, no label, no group and counted rows where nothing is given."""
        sizes = {"N": len(n_atoms), "A": len(z)}
        arrays: dict[str, Any] = {"n_atoms": n_atoms, "z": z, "pos": pos, "idx": np.arange(sizes["N"])} | others
        types = {"iu": np.int64, "f": np.float64, "b": np.bool_, "U": np.str_}
        for name, (kind, axis, trailing) in cls.fields.items():
            if name in arrays:
                arrays[name] = np.asarray(arrays[name], dtype=types[kind])
            else:
                missing = {"cell": 0.0, "pbc": False, "config_type": ""}.get(name, np.nan)
                arrays[name] = np.full((sizes[axis], *trailing), missing)
        return cls(source=source, **arrays)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse("finite cells", ~np.isfinite(self.cell).all(axis=(1, 2)))
        volume = np.abs(np.linalg.det(completed_cells(self.cell, self.pbc)))
        self._refuse("periodic cells with a volume", self.pbc.any(axis=1) & (volume < 1e-6))
        for name in LABELS:
            finite = np.isfinite(getattr(self, name)).reshape(len(getattr(self, name)), -1)
            absent = np.isnan(getattr(self, name)).all(axis=tuple(range(1, getattr(self, name).ndim)))
            self._refuse(f"finite labels, but {name} has NaN or infinite values in part", ~finite.all(axis=1) & ~absent)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that at least one structure has."""
        return tuple(name for name in LABELS if not np.isnan(getattr(self, name)).all())

    @property
    def has_cells(self) -> bool:
        """Whether one of the structures is periodic or has a stress, which is by volume."""
        return bool(self.pbc.any()) or "stress" in self.labels

    @classmethod
    def joined(cls, parts: list[StructureArrays]) -> StructureArrays:
        """Several sets, one after the other; ``idx`` keeps the row in the source of each."""
        whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.fields}
        return cls(source=", ".join(dict.fromkeys(part.source for part in parts)), **whole)


def completed_cells(cell: FloatArray, pbc: NDArray[np.bool_]) -> FloatArray:
    """Cells with a long lattice vector, perpendicular to the others, in place of each that is 0 and no period.

    Returns:
        `[N, 3, 3]`; of structures without cell, a cube.

    Example:
        >>> completed_cells(np.diag([4.0, 5.0, 0.0])[None], np.array([[True, True, False]]))[0].tolist()
        [[4.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 1000.0]]
    """
    full = cell.copy()
    empty: NDArray[np.bool_] = ~np.any(cell, axis=2)
    full[empty.all(axis=1) & ~pbc.any(axis=1)] = _VACUUM * np.eye(3)
    free = empty & ~pbc
    for row in np.flatnonzero(free.any(axis=1) & ~empty.all(axis=1)):
        unit = complete_cell(cell[row])  # of length 1
        full[row][free[row]] = _VACUUM * unit[free[row]]
    return full


def check_structures(structures: Any) -> StructureArrays:
    """Return ``structures`` if they are a data set, else raise ConfigError."""
    return check_type(
        "structures", structures, StructureArrays, "a data set (StructureArrays)", "Take what read_structures returns."
    )
