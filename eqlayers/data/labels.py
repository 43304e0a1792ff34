"""Names under which files hold labels, and the columns of numbers that are found under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ase.stress import voigt_6_to_full_3x3_stress
from numpy.typing import NDArray

from eqlayers.atoms.structure_files import is_asymmetric, remedy
from eqlayers.atoms.units import FREE, KEYS
from eqlayers.data.qm9 import NO_UNIT
from eqlayers.data.structures import LABELS, Auxiliary, refuse

from ..core.errors import DataError

_ROUNDED, _SMALL = 0.05, 1e-5  # difference of stress and -virial / volume by few digits: relative, in eV/Angstrom^3
_ONE_ENERGY = 1e-6  # of the unit of the file, per atom
_SHAPES: dict[str, tuple[int | str, ...]] = {"virial": (3, 3)}
_SHAPES |= {name: (*"A" * (label.axis == "A"), *label.shape) for name, label in LABELS.items()}


#: Of a structure: its number of atoms, values by name in the file, and its own name for messages.
Labelled = tuple[int, Mapping[str, Any], str]


class Column(NamedTuple):
    """One label of all structures, ``[N]`` or ``[A, 3]`` and so on, NaN where missing; its names; how many have it."""

    values: NDArray[Any]
    names: tuple[str, ...]
    number: int


def columns_of(
    source: str, frames: Sequence[Labelled], keys: Mapping[str, str | None]
) -> tuple[dict[str, Column], set[str]]:
    """Labels of structures by recognised names, or by the names in ``keys``; and names of values that are no label."""
    present = set().union(*(values for _, values, _ in frames))
    columns: dict[str, Column] = {}
    for label, usual in KEYS.items():
        requested = keys.get(label, "")
        if requested and requested not in present:
            what, fix = (f"keys of {label}", "") if label != "y" else ("target", ", and learn one property a run")
            raise DataError(
                f"{what} must be a name in {source}, got {requested!r}; it has {', '.join(sorted(present))}. "
                f"Correct the name{fix}."
            )
        searched = () if requested is None else (requested,) if requested else usual
        names = tuple(name for name in searched if name in present)
        if label == "energy" and requested == "" and not names and FREE in present:
            names = (FREE,)
        if names:
            columns[label] = _column(source, label, names, frames)
    return columns, present - {name for column in columns.values() for name in column.names}


def further_labels(
    source: str, frames: Sequence[Labelled], names: Sequence[str], of_atoms: Any, pooling: str
) -> dict[str, Auxiliary]:
    """Further labels by their names in the file, of those that it has.

    One number for each atom is of atoms, 3 numbers are a vector, and one number is of the structure, which ``pooling``
    makes. Of 3 numbers in molecules of 3 atoms, names in ``of_atoms`` are of atoms.
    """
    result = {}
    for name in names:
        arrays = {row: _numbers(held[name]) for row, (_, held, _) in enumerate(frames) if held.get(name) is not None}
        wrong = {
            "atom": [row for row, array in arrays.items() if array.shape != (frames[row][0],)],
            "vector": [row for row, array in arrays.items() if array.shape != (3,)],
            pooling: [row for row, array in arrays.items() if array.size != 1],
        }
        if not wrong["vector"] and name not in of_atoms:
            del wrong["atom"]
        how = min(wrong, key=lambda how: len(wrong[how]))
        if wrong[how]:
            row = wrong[how][0]
            raise DataError(
                f"{name!r} must be one number, 3 numbers, or one for each atom, and the same in all structures, got "
                f"the shape {list(arrays[row].shape)} in {frames[row][2]} of {source}. Repair the file, or leave "
                f"{name!r} out of data.auxiliary."
            )
        if arrays:
            shapes = [{"atom": (frame[0],), "vector": (1, 3)}.get(how, (1,)) for frame in frames]
            rows = [arrays.get(row, np.full(1, np.nan)).reshape(-1) for row in range(len(frames))]
            filled = [np.broadcast_to(array, shape) for array, shape in zip(rows, shapes, strict=True)]
            result[name] = Auxiliary.of(name, how, NO_UNIT, np.concatenate(filled))
    return result


def _numbers(value: Any) -> NDArray[np.float64]:
    """A value as numbers, or an array without any, of a shape that no label has."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return np.empty((0, 0, 0))


def two_energies(frames: Sequence[Labelled], column: Column | None) -> list[str]:
    """A line where energies and free energies differ, as forces are slopes of one of them alone."""
    if column is None or FREE in column.names:
        return []
    both = [(energy, values.get(FREE), atoms) for energy, (atoms, values, _) in zip(column.values, frames, strict=True)]
    pairs = [(energy, float(free), atoms) for energy, free, atoms in both if free is not None and np.size(free) == 1]
    off = max((abs(energy - free) / atoms for energy, free, atoms in pairs), default=0.0)
    if not off > _ONE_ENERGY:
        return []
    return [
        f"energy: differs from {FREE!r} by up to {off:.3g} per atom, in the unit of the file, of {len(pairs):,} "
        f"structures; forces are slopes of the free energy: set keys={{'energy': {FREE!r}}} to train on both alike"
    ]


def _column(source: str, label: str, names: tuple[str, ...], frames: Sequence[Labelled]) -> Column:
    if label == "config_type":
        texts = [str(next((values[name] for name in names if name in values), "")) for _, values, _ in frames]
        return Column(np.array(texts, dtype=np.str_), names, sum(bool(text) for text in texts))
    values_of_rows: list[NDArray[np.float64]] = []
    wrong: list[int] = []
    number = 0
    for row, (atoms, values, frame) in enumerate(frames):
        shape = tuple(atoms if axis == "A" else int(axis) for axis in _SHAPES[label])
        named = {name: _value(source, frame, name, values[name], label, shape) for name in names if name in values}
        if not named:
            values_of_rows.append(np.full(shape, np.nan))
            continue
        first, *others = named.values()
        if any(not np.array_equal(first, other, equal_nan=True) for other in others):
            raise DataError(
                f"{label} of {source} must be under one name, got different values under {' and '.join(named)} in "
                f"{frame}. Say which with keys={{{label!r}: {next(iter(named))!r}}}."
            )
        if label == "forces":  # NaN leaves an atom out
            first = np.where(np.isnan(first).any(axis=1, keepdims=True), np.nan, first)
        if not (np.isfinite(first) | (np.isnan(first) & (label == "forces"))).all():
            wrong.append(row)
        values_of_rows.append(first)
        number += 1
    if wrong:
        name = next(name for name in names if name in frames[wrong[0]][1])
        fix = f"leave {name!r} out of these structures"
        if label != "y":
            fix += ", which are trained on their other labels"
        if len(wrong) == number and label != "y":
            fix = f"train without {label} with keys={{{label!r}: None}}"
        refuse(source, [frame for *_, frame in frames], f"finite {label}", wrong, fix=f"repair the values, or {fix}")
    return Column(np.concatenate(values_of_rows) if label == "forces" else np.stack(values_of_rows), names, number)


def _value(source: str, frame: str, name: str, value: Any, label: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A value as numbers of a shape; six numbers of Voigt, or nine in a row, become a symmetric matrix."""
    array = _numbers(value)
    if shape == () and array.size == 1:
        array = array.reshape(())
    if label in ("stress", "virial", "polarizability"):
        if array.shape == (6,) and label != "polarizability":  # of which programs print six numbers in any order
            array = voigt_6_to_full_3x3_stress(array)
        elif array.shape in ((9,), (3, 3)):
            array = array.reshape(3, 3)
            if is_asymmetric(array):
                raise DataError(
                    f"{name!r} in {frame} of {source} must be a symmetric matrix, got {array.tolist()}. Store both "
                    "halves, name another with keys, or leave such frames out with --data.skip_bad true."
                )
            array = 0.5 * (array + array.T)
    if array.shape != shape:
        other = "learn another property" if label == "y" else "name another with keys"
        what, text = f"numbers {list(shape)}" if shape else "one number", " ".join(repr(value).split())
        raise DataError(
            f"{name!r} in {frame} of {source} must be {what}, got {text:.60}. {remedy(text) or 'Repair the file'}, "
            f"{other}, or leave such frames out with --data.skip_bad true."
        )
    return array


def stress_of(
    source: str, names: Sequence[str], labels: Mapping[str, NDArray[np.float64]], cell: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
    """Labels with -virial / volume where there is no stress, without virials; and lines that say what was done.

    Zeros of structures without a cell, where a stress means nothing, stand for a label that is missing.
    """
    result, notes = dict(labels), []
    volume = np.abs(np.linalg.det(cell))
    for name in sorted({"stress", "virial"} & set(result)):
        absent = (volume == 0) & (result[name] == 0).all(axis=(1, 2))
        flat = (volume == 0) & ~np.isnan(result[name][:, 0, 0]) & ~absent
        refuse(source, names, f"a cell with a volume for {name}", np.flatnonzero(flat))
        if absent.any():
            result[name] = np.where(absent[:, None, None], np.nan, result[name])
            notes.append(f"{name}: left out of {int(absent.sum()):,} structures without a cell, where it is 0")
    virial = result.pop("virial", None)
    if virial is None:
        return result, notes
    derived = -virial / np.where(volume > 0, volume, 1.0)[:, None, None]
    stress = result.get("stress", np.full_like(derived, np.nan))
    size = np.abs(stress).max(axis=(1, 2))
    differ = np.flatnonzero(np.abs(stress - derived).max(axis=(1, 2)) > _ROUNDED * size + _SMALL)  # NaN is not above
    if len(differ):
        row = int(differ[0])
        raise DataError(
            f"stress and virial of {source} must agree, stress = -virial / volume, got a mean stress of "
            f"{np.trace(stress[row]) / 3:.4g} and {np.trace(derived[row]) / 3:.4g} eV/Angstrom^3 in {names[row]}, and "
            f"others in {len(differ)} structures. Set units, or leave one out with keys={{'virial': None}}."
        )
    missing = np.isnan(stress[:, 0, 0]) & ~np.isnan(derived[:, 0, 0])
    result["stress"] = np.where(missing[:, None, None], derived, stress)
    if missing.any():
        notes.append(f"stress: -virial / volume, of {int(missing.sum()):,} structures")
    return result, notes
