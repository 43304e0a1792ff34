"""Structures with their labels, such as energies, forces or one property, as flat arrays that are checked once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from ase.geometry import complete_cell
from numpy.typing import NDArray

from eqlayers.atoms.periodic import BoolArray, FloatArray, IntArray
from eqlayers.data.splits import check_rows

from ..core.checks import check_choice, check_items, check_type, got
from ..core.errors import DataError


class Label(NamedTuple):
    """A label of structures: its axis and shape, units of values and of errors, factor from values to errors.

    Attributes:
        name: Name in reports and metrics.
        axis: "N" of structures, "A" of atoms.
        shape: Of the label of one structure or atom.
        values: Unit of values.
        errors: Unit of errors in reports.
        unit: Unit of errors in names of metrics.
        factor: Multiplies values to give errors.
    """

    name: str
    axis: str
    shape: tuple[int, ...]
    values: str
    errors: str
    unit: str
    factor: float = 1e3


#: Labels that structures can have. ``y`` is one property of the user or of QM9, whose unit its ``Target`` has.
LABELS = {
    label.name: label
    for label in (
        Label("energy", "N", (), "eV", "meV", "meV"),
        Label("forces", "A", (3,), "eV/A", "meV/A", "meV_A"),
        Label("stress", "N", (3, 3), "eV/A^3", "meV/A^3", "meV_A3"),
        Label("dipole", "N", (3,), "e A", "me A", "me_A"),
        Label("polarizability", "N", (3, 3), "A^3", "A^3", "A3", 1.0),
        Label("y", "N", (), "", "", "", 1.0),
    )
}
#: How a network makes a label -> its axis, of structures or of atoms, and its shape.
POOLINGS: dict[str, tuple[str, tuple[int, ...]]] = {
    "atom": ("A", ()),
    "sum": ("N", ()),
    "mean": ("N", ()),
    "vector": ("N", (3,)),
}
_VACUUM = 1000.0  # Angstrom: length of lattice vectors where there is no period, beyond any structure
_DTYPES = {"f": "numbers", "iu": "integers", "b": "truth values", "U": "texts"}


class Auxiliary(NamedTuple):
    """A further label, which a network learns beside its target.

    Attributes:
        label: Name and units, axis and shape.
        pooling: One of ``POOLINGS``: a number of an atom, a sum or mean over atoms, or a vector of the structure.
        values: ``[N]``, ``[N, 3]`` or ``[A]`` float64, NaN where a structure lacks it.
    """

    label: Label
    pooling: str
    values: FloatArray = np.empty(0)

    @classmethod
    def of(cls, name: str, pooling: str, unit: str, values: Any = (), thousandth: bool = False) -> Auxiliary:
        """A label in a unit, with errors in the same unit, or in thousandths of it.

        Example:
            >>> Auxiliary.of("charges", "atom", "e", [-0.7, 0.35, 0.35]).label
            Label(name='charges', axis='A', shape=(), values='e', errors='e', unit='e', factor=1.0)
        """
        errors, (axis, shape) = f"{'m' * thousandth}{unit}", POOLINGS[pooling]
        label = Label(name, axis, shape, unit, errors, plain(errors), 1e3 if thousandth else 1.0)
        return cls(label, pooling, np.asarray(values, np.float64))


def plain(text: str) -> str:
    """A name or unit with letters, digits and underscores alone, as names of metrics have them."""
    return re.sub("[^A-Za-z0-9]+", "_", text).strip("_")


def refuse(source: str, names: Any, expected: str, rows: Any, fix: str = "") -> None:
    """Raise a DataError that counts and names rows, if there are any; ``names`` are numbers of rows, or texts."""
    if len(rows):
        chosen = np.asarray(names)[np.asarray(rows)[:8]]
        named = ", ".join(map(str, chosen)) + (", ..." if len(rows) > 8 else "")
        raise DataError(
            f"{source}: expected {expected}; {len(rows)} of {len(names)} structures do not have that, "
            f"{'rows ' * (chosen.dtype.kind in 'iu')}{named}; {fix or 'repair or remove these rows in the source'}"
        )


def _of(dtypes: str, axis: str, *trailing: int) -> dict[str, Any]:
    """Metadata of an array: kinds of numpy's dtypes, N structures or A atoms, and further axes."""
    return {"layout": (dtypes, axis, trailing)}


def _label(name: str) -> dict[str, Any]:
    """Metadata of the array of a label."""
    return _of("f", LABELS[name].axis, *LABELS[name].shape)


@dataclass(frozen=True)
class StructureArrays:
    """Every structure of a data set, one after the other, checked once; a label that is missing is NaN.

    Attributes:
        source: Where they come from, for messages.
        n_atoms: Atoms of every structure, `[N]` int64.
        z: Atomic numbers, `[A]` int64.
        pos: Positions in Angstrom, `[A, 3]` float64; float32 where the source has no more digits.
        cell: A lattice vector in Angstrom in each row, `[N, 3, 3]` float64; 0 where there is none.
        pbc: Whether each lattice vector is a period, `[N, 3]` bool.
        energy: eV, `[N]` float64.
        forces: eV/Angstrom, `[A, 3]` float64.
        stress: eV/Angstrom^3, `[N, 3, 3]` float64, positive where the structure pulls inwards, as ASE has it.
        dipole: e Angstrom, `[N, 3]` float64.
        polarizability: Angstrom^3, `[N, 3, 3]` float64.
        y: Property of QM9 or of the user's choice, in its own unit, `[N]` float64.
        config_type: Name of the group of every structure, `[N]`; empty without one.
        idx: Row of every structure in its source, `[N]` int64.
        file: That source, `[N]`; of one set, ``source`` for all.
        auxiliary: Further labels by name.

    Raises:
        DataError: If there is no structure, lengths disagree, positions are not finite, a structure has labels in
            part, or a periodic cell has no volume.

    Example:
        >>> pos = [[0, 0, 0], [0, 0, 0.74]]
        >>> structures = StructureArrays.of("a test", n_atoms=[2], z=[1, 1], pos=pos, energy=[-31])
        >>> structures.labels, structures.species, structures.has_cells
        (('energy',), (1,), False)
    """

    source: str
    n_atoms: IntArray = field(metadata=_of("iu", "N"))
    z: IntArray = field(metadata=_of("iu", "A"))
    pos: NDArray[Any] = field(metadata=_of("f", "A", 3))
    cell: FloatArray = field(metadata=_of("f", "N", 3, 3))
    pbc: BoolArray = field(metadata=_of("b", "N", 3))
    energy: FloatArray = field(metadata=_label("energy"))
    forces: FloatArray = field(metadata=_label("forces"))
    stress: FloatArray = field(metadata=_label("stress"))
    dipole: FloatArray = field(metadata=_label("dipole"))
    polarizability: FloatArray = field(metadata=_label("polarizability"))
    y: FloatArray = field(metadata=_label("y"))
    config_type: NDArray[Any] = field(metadata=_of("U", "N"))
    idx: IntArray = field(metadata=_of("iu", "N"))
    file: NDArray[Any] = field(metadata=_of("U", "N"))
    auxiliary: Mapping[str, Auxiliary] = field(default_factory=dict)

    @classmethod
    def layout(cls) -> dict[str, tuple[str, str, tuple[int, ...]]]:
        """Kinds of numpy's dtypes, axis (N structures or A atoms) and trailing axes of each array, by name."""
        return {each.name: each.metadata["layout"] for each in fields(cls) if each.metadata}

    @classmethod
    def of(cls, source: str, n_atoms: Any, z: Any, pos: Any, **others: Any) -> StructureArrays:
        """Structures from lists or arrays; by default, no cell, no label, no group and counted rows.

        Positions in an array of float32 stay so.
        """
        sizes = {"N": len(n_atoms), "A": len(z)}
        arrays: dict[str, Any] = {"n_atoms": n_atoms, "z": z, "pos": pos, "idx": np.arange(sizes["N"])} | others
        arrays.setdefault("file", np.full(sizes["N"], source))
        types = {"iu": np.int64, "f": np.float64, "b": np.bool_, "U": np.str_}
        for name, (dtypes, axis, trailing) in cls.layout().items():
            if name in arrays:
                single = name == "pos" and getattr(pos, "dtype", None) == np.float32
                arrays[name] = np.asarray(arrays[name], dtype=np.float32 if single else types[dtypes])
            else:
                missing = {"cell": 0.0, "pbc": False, "config_type": ""}.get(name, np.nan)
                arrays[name] = np.full((sizes[axis], *trailing), missing)
        return cls(source=source, **arrays)

    def __post_init__(self) -> None:
        for name, (dtypes, _, _) in self.layout().items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in dtypes:
                raise DataError(
                    f"{name} of {self.source} must be an array of {_DTYPES[dtypes]}, got {got(array)}. Convert it."
                )
        sizes = {"N": len(self.n_atoms), "A": int(self.n_atoms.sum())}
        if sizes["N"] == 0:
            raise DataError(f"{self.source} must hold at least one structure, got none. Check that it is complete.")
        for name, (_, axis, trailing) in self.layout().items():
            if getattr(self, name).shape != (sizes[axis], *trailing):
                raise DataError(
                    f"{name} of {self.source} must be {[sizes[axis], *trailing]} for {sizes['N']} structures, got "
                    f"{list(getattr(self, name).shape)}. The file is incomplete or corrupt: fetch or make it again."
                )
        self._refuse("at least one atom in every structure", self.n_atoms < 1)
        self._refuse("atomic numbers from 1 to 118", (self.z < 1) | (self.z > 118))
        self._refuse("finite positions", ~np.isfinite(self.pos).all(axis=1))
        self._refuse("finite cells", ~np.isfinite(self.cell).all(axis=(1, 2)))
        volume = np.abs(np.linalg.det(completed_cells(self.cell, self.pbc)))
        self._refuse("periodic cells with a volume", self.pbc.any(axis=1) & (volume < 1e-6))
        for name in LABELS:
            rows = getattr(self, name).reshape(len(getattr(self, name)), -1)
            partly = ~np.isfinite(rows).all(axis=1) & ~np.isnan(rows).all(axis=1)
            self._refuse(f"finite labels, but {name} has NaN or infinite values in part", partly)
        for name, (label, _, values) in self.auxiliary.items():
            shape = (sizes[label.axis], *label.shape)
            if values.shape != shape:
                raise DataError(
                    f"{name} of {self.source} must be {list(shape)} for {sizes['N']} structures, got "
                    f"{list(values.shape)}. Give a number, or a vector, for each of these rows."
                )
            row = self.row_of_atom if label.axis == "A" else np.arange(sizes["N"])
            rows, each = values.reshape(len(values), -1), np.bincount(row)
            counts = (np.bincount(row, test(rows).sum(axis=1), sizes["N"]) for test in (np.isfinite, np.isnan))
            lacking, known = (count < each * rows.shape[1] for count in counts)
            self._refuse(f"finite labels, but {name} has NaN or infinite values in part", lacking & known)

    def _refuse(self, expected: str, failing: Any) -> None:
        """Raise a DataError that names the structures of which one row fails, of structures `[N]` or atoms `[A]`."""
        bad: BoolArray = np.asarray(failing)
        if bad.any():
            of_atoms = len(bad) != len(self.n_atoms)
            self.refuse(expected, np.unique(self.row_of_atom[bad]) if of_atoms else np.flatnonzero(bad))

    def refuse(self, expected: str, rows: Any, fix: str = "") -> None:
        """Raise a DataError that names rows, if there are any; where there are several files, also these."""
        several = len(rows) and len(np.unique(self.file)) > 1
        names = [f"row {row} of {file}" for row, file in zip(self.idx, self.file, strict=True)] if several else self.idx
        refuse(self.source, names, expected, rows, fix)

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

    def count(self, mask: BoolArray) -> IntArray:
        """Number of marked atoms of every structure, `[N]`."""
        return np.bincount(self.row_of_atom[mask], minlength=len(self)).astype(np.int64)

    @property
    def heavy(self) -> IntArray:
        """Number of non-hydrogen atoms of every structure, `[N]`."""
        return self.count(self.z > 1)

    @cached_property
    def identities(self) -> IntArray:
        """A hash of species, positions and cell of every structure, `[N]`, which copies share to 0.0001 Angstrom."""
        pos, cell = (np.round(array, 4) + 0.0 for array in (self.pos, self.cell))  # no -0.0
        hashes = np.empty(len(self), dtype=np.int64)
        for row in range(len(self)):
            atoms = self.atoms(row)
            content = b"".join(np.ascontiguousarray(part).tobytes() for part in (self.z[atoms], pos[atoms], cell[row]))
            hashes[row] = int.from_bytes(hashlib.sha256(content).digest()[:8], "little", signed=True)
        return hashes

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that at least one structure has."""
        return tuple(name for name in (*LABELS, *self.auxiliaries) if not np.isnan(self.labelled(name)[1]).all())

    @cached_property
    def auxiliaries(self) -> dict[str, Auxiliary]:
        """The further labels by their names in samples, such as "auxiliary_0"."""
        return {auxiliary_key(number): each for number, each in enumerate(self.auxiliary.values())}

    def labelled(self, name: str) -> tuple[Label, FloatArray]:
        """A label and its values by its name in samples."""
        if name in LABELS:
            return LABELS[name], getattr(self, name)
        label, _, values = self.auxiliaries[name]
        return label, values

    def label_rows(self) -> dict[str, IntArray]:
        """Rows of each of `labels` in every structure, `[N]`: its atoms for a label of atoms, 0 where it is missing."""
        counts: dict[str, IntArray] = {}
        for name in self.labels:
            label, values = self.labelled(name)
            whole = np.asarray(np.isfinite(values.reshape(len(values), -1)).all(axis=1))
            counts[name] = self.count(whole) if label.axis == "A" else whole.astype(np.int64)
        return counts

    @property
    def has_cells(self) -> bool:
        """Whether one of the structures is periodic or has a stress, which is by volume."""
        return bool(self.pbc.any()) or "stress" in self.labels

    def take(self, rows: IntArray) -> StructureArrays:
        """Some of the structures, in the order of ``rows``."""
        rows = check_rows("rows", rows, len(self))
        sizes = self.n_atoms[rows]
        atoms = np.repeat(self.starts[rows] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        of = {"N": rows, "A": atoms}
        chosen = {name: getattr(self, name)[of[axis]] for name, (_, axis, _) in self.layout().items()}
        further = {name: one._replace(values=one.values[of[one.label.axis]]) for name, one in self.auxiliary.items()}
        return type(self)(source=self.source, auxiliary=further, **chosen)

    @classmethod
    def joined(cls, parts: list[StructureArrays]) -> StructureArrays:
        """Several sets, one after the other; ``idx`` keeps the row in its source; NaN where a set lacks a label."""
        whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.layout()}
        further: dict[str, Auxiliary] = {}
        for part in parts:
            further |= {name: each for name, each in part.auxiliary.items() if name not in further}
        for name, each in further.items():
            label, of_parts = each.label, [part.auxiliary.get(name) for part in parts]
            sizes = [len(part) if label.axis == "N" else len(part.z) for part in parts]
            pairs = zip(sizes, of_parts, strict=True)
            arrays = [np.full((size, *label.shape), np.nan) if part is None else part.values for size, part in pairs]
            further[name] = each._replace(values=np.concatenate(arrays))
        return cls(source=", ".join(dict.fromkeys(part.source for part in parts)), auxiliary=further, **whole)


def check_names(name: str, names: Any, known: Any) -> list[str]:
    """Names of further labels as a list, if they are known; else raise ConfigError."""
    listed = check_items(name, names, "names of further labels", "Pass ['zpve'].")
    return [check_choice(name, each, known) for each in listed]


def auxiliary_key(number: int) -> str:
    """Name of a further label in samples, which may not be any text, as torch-geometric adds up some of them."""
    return f"auxiliary_{number}"


def completed_cells(cell: FloatArray, pbc: BoolArray) -> FloatArray:
    """Cells `[N, 3, 3]` whose zero vectors along directions without periods are long ones, perpendicular to the others.

    Structures without a cell get a cube.
    """
    full = cell.copy()
    empty: BoolArray = ~np.any(cell, axis=2)
    full[empty.all(axis=1) & ~pbc.any(axis=1)] = _VACUUM * np.eye(3)
    free = empty & ~pbc
    for row in np.flatnonzero(free.any(axis=1) & ~empty.all(axis=1)):
        unit = complete_cell(cell[row])  # of length 1
        full[row][free[row]] = _VACUUM * unit[free[row]]
    return full


def check_structures(structures: Any) -> StructureArrays:
    """Return ``structures`` if they are a data set, else raise ConfigError."""
    what, fix = "a data set (StructureArrays)", "Take what read_structures, load_mini or load_qm9 returns."
    return check_type("structures", structures, StructureArrays, what, fix)
