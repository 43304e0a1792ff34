"""The command `eqlayers predict`: energies, forces and stress of structures in a file, compared with its labels.

With the checkpoint of a property of molecules, the command predicts the property of each molecule instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ase.io
import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress
from numpy.typing import NDArray

from ..atoms.constraints import free_directions, held_atoms
from ..atoms.database import database_units, size_of_unit
from ..atoms.structure_files import is_asymmetric
from ..atoms.units import FREE, KEYS, LABEL_NAMES, LABEL_UNITS, unit_of, unit_size
from ..cli.notices import lines
from ..core.errors import DataError
from ..core.files.read_write import check_output
from ..models import read_potential
from ..models.committee import DEVIATION, Array, calibration, committee_files
from ..models.molecule import MoleculeProperty, load_property
from .frames import check_different, frames, new_file, set_aside, with_results
from .options import DTYPES, add_common, loaded, predictions

#: Quantity that is compared with labels -> printed unit (1000 times smaller than the unit of results).
_UNITS = {"energy": "meV/atom", "forces": "meV/A", "stress": "meV/A^3", "dipole": "me A"}
_PREDICTED = "predicted_by"  # key in `info` of structures written by `predict`
Rows = list[tuple[str, str]]


def predict_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument("structures", metavar="STRUCTURES", help="a file of structures")
    add_common(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="a new .xyz with all predictions")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it is there")
    parser.add_argument("--batch-size", type=int, default=32, help="structures at once; 32 by default")


def run_predict(options: argparse.Namespace) -> int:
    """Write predictions for all structures, print errors with respect to labels of the file, return the exit status."""
    new = None if options.overwrite else "Name another, or pass --overwrite."
    check_different(("STRUCTURES", options.structures), ("--output", options.output))
    output = check_output(options.output, "--output", (".xyz", ".extxyz"), new=new)
    files, dtype = committee_files(options.model), DTYPES.get(options.dtype)
    native = files[0].suffix == ".so"  # a program has no facts of its training
    learned = None if files[1:] or native else load_property(files[0], dtype, options.device, options.classes)
    model = loaded(options) if learned is None else learned
    facts = {} if native or learned is not None else read_potential(files[0]).facts
    compared = _Energies(facts, options) if learned is None else _Property(learned, options)
    structures, count = (frames if learned is None else _molecules)(options.structures), 0
    with new_file(output) as write:
        for atoms, result in predictions(model, structures, options.batch_size):
            write(compared.compare(atoms, result))
            count += 1
    labels, further = compared.rows()
    heads = [("structures", f"{count} of {options.structures}"), ("labels", labels), ("output", str(output))]
    print(lines(heads + further))
    return 0


class _Energies:
    """Errors of a potential or committee on a file of structures, by config_type."""

    def __init__(self, facts: Mapping[str, Any], options: argparse.Namespace) -> None:
        self.options = options
        self.trained = {label: facts.get(LABEL_NAMES, {}).get(label, "") for label in KEYS}
        self.trained_units = facts.get(LABEL_UNITS, {})
        self.source = Path(options.structures)
        self.units = database_units(self.source) if self.source.suffix == ".db" else {}
        self.quantities = {name: Compared(name, unit) for name, unit in _UNITS.items()}
        self.groups: set[str] = set()
        self.used: set[str] = set()
        self.differ: set[str] = set()
        self.left_out: set[str] = set()

    def compare(self, atoms: ase.Atoms, result: dict[str, Any]) -> ase.Atoms:
        """Note errors with respect to the labels of a structure, and deviations of a committee; add the results."""
        known = _references(atoms, self.trained)
        self.left_out |= {label.name for name, label in known.items() if name not in result}
        config_type = str(atoms.info.get("config_type", ""))
        self.groups.add(config_type)
        for name, quantity in self.quantities.items():
            error = None
            if name in known and name in result:
                label, unit = known[name].label, self.units.get(known[name].name)
                if unit is None:
                    size = unit_size(label, unit_of(self.trained_units, label, config_type, bool(atoms.pbc.any())))
                else:
                    size = size_of_unit(self.source, label, unit)
                error = np.ravel(np.asarray(result[name]) - known[name].value * size)
                if np.isfinite(error).any():
                    self.used.add(known[name].name)
                    self.differ |= known[name].differ
            quantity.add(error, result.get(DEVIATION.format(name)), len(atoms) if name == "energy" else 1, config_type)
        predicted = with_results(atoms, result)
        predicted.info[_PREDICTED] = " ".join(self.options.model)
        return predicted

    def rows(self) -> tuple[str, Rows]:
        """A line that names the compared labels, and the printed rows of errors and deviations."""
        rows = [row for quantity in self.quantities.values() for row in quantity.error_rows()]
        rows += [row for quantity in self.quantities.values() for row in quantity.deviation_rows()]
        for name in sorted(self.groups) if len(self.groups) > 1 else ():
            sizes = {quantity: np.abs(quantity.errors(name)) for quantity in self.quantities.values()}
            means = [f"{item.name} {size.mean():.4g} {item.unit}" for item, size in sizes.items() if size.size]
            rows.append((f"config_type {name or '(none)'}", f"mean error of {', '.join(means) or 'nothing'}"))
        used, left_out, differ = (", ".join(sorted(names)) for names in (self.used, self.left_out, self.differ))
        compared = f"compared with {used}" if used else "no labels were found to compare with"
        compared += f"; not compared: {left_out}" if left_out else ""
        return f"{compared}; others differ: {differ}" if differ else compared, rows


def _numbers(value: Any, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """A value as a float64 array of a shape, or None; a symmetric 3x3 matrix becomes ASE's six Voigt components."""
    try:
        array = np.asarray(value, dtype=np.float64)
        if shape == (6,) and array.size == 9:
            matrix = array.reshape(3, 3)
            return None if is_asymmetric(matrix) else full_3x3_to_voigt_6_stress(matrix)
        return array.reshape(shape)
    except (TypeError, ValueError):
        return None


class _Reference(NamedTuple):
    """A label of a structure: name in the file, value, other recognised names with other values, and quantity."""

    name: str
    value: Any
    differ: set[str]
    label: str


def _references(atoms: ase.Atoms, trained: Mapping[str, str | None]) -> dict[str, _Reference]:
    """Labels of a structure by quantity, in units of the file, without results of `predict` and forces of held atoms.

    ``trained`` maps a quantity to its name in training files: '' for any recognised name, None for a quantity that was
    left out. Without a stress, a virial is converted to a stress, as in training.
    """
    results = {} if atoms.calc is None or _PREDICTED in atoms.info else atoms.calc.results
    values = {**atoms.arrays, **atoms.info, **results}
    shapes = {"energy": (), "forces": (len(atoms), 3), "stress": (6,), "virial": (6,), "dipole": (3,)}
    references: dict[str, _Reference] = {}
    for label, shape in shapes.items():
        trained_name = trained[label]
        usual = () if trained_name is None else (trained_name, *KEYS[label]) if trained_name else KEYS[label]
        usual = (*usual, FREE) if label == "energy" and trained_name == "" else usual
        read = {name: _numbers(values[name], shape) for name in usual if name in values}
        numbers = {name: value for name, value in read.items() if value is not None}
        if numbers:
            name, value = next(iter(numbers.items()))
            differ = {other for other in numbers if not np.array_equal(value, numbers[other], equal_nan=True)}
            references[label] = _Reference(name, value, set() if trained_name else differ, label)
    virial = references.pop("virial", None)
    if virial is not None and "stress" not in references:
        volume = atoms.cell.volume or np.nan
        references["stress"] = virial._replace(value=-virial.value / volume)
    if "forces" in references:
        forces = references["forces"].value
        held = held_atoms(forces, free_directions(atoms))
        references["forces"] = references["forces"]._replace(value=np.where(held[:, None], np.nan, forces))
    return references


def _molecules(path: str) -> Iterator[ase.Atoms]:
    """The molecules of a file; raise for a structure with a period."""
    for number, atoms in enumerate(frames(path)):
        if atoms.pbc.any():
            raise DataError(
                f"structures[{number}] must have no period for a property of molecules, got pbc "
                f'{atoms.pbc.tolist()}. Set pbc="F F F" in the file where a molecule is in a box.'
            )
        yield atoms


class _Property:
    """Errors of a learned property on a file of molecules."""

    def __init__(self, learned: MoleculeProperty, options: argparse.Namespace) -> None:
        self.learned, self.options = learned, options
        self.errors, self.labelled = Compared(learned.name, learned.unit, factor=1.0), 0

    def compare(self, atoms: ase.Atoms, result: dict[str, Any]) -> ase.Atoms:
        """Add the value under the property's name, a label of that name as REF_name, and note the error."""
        name = self.learned.name
        by = f"{name}_predicted_by"  # in files that this command wrote
        results: dict[str, Any] = {} if atoms.calc is None else atoms.calc.results
        if name in results:  # such as an energy
            atoms.info[name] = results.pop(name)
        if atoms.info.pop(by, None) is not None:
            atoms.info.pop(name, None)
            label = atoms.info.get(f"REF_{name}")
        elif (label := atoms.info.get(name)) is not None:
            set_aside(atoms.info, name)
        if isinstance(label, (int, float, np.number)):
            self.errors.add(np.array([result[name] - float(label)]), None)
            self.labelled += int(np.isfinite(label))
        atoms.info |= {**result, by: " ".join(self.options.model)}
        return atoms

    def rows(self) -> tuple[str, Rows]:
        """How many labels were compared, and a printed row of their errors."""
        about = f"{self.labelled} of {self.learned.name}, taken as {self.learned.unit}"
        return about if self.labelled else "none were found to compare with", self.errors.error_rows()


class Compared:
    """Errors of a quantity where there are labels, and deviations of a committee, over many structures."""

    def __init__(self, name: str, unit: str, factor: float = 1000.0) -> None:
        self.name, self.unit, self.factor = name, unit, factor
        self._errors: list[tuple[str, Array]] = []  # by group of structures
        self._pairs: list[Array] = []  # deviations, and the norms of their errors, NaN without a label

    def add(self, error: Array | None, deviation: Any, per: int = 1, group: str = "") -> None:
        """Add errors of a structure, NaN without a label, and deviations of a committee, both divided by ``per``."""
        if error is not None:
            self._errors.append((group, error[np.isfinite(error)] / per))
        if deviation is not None:
            rows = np.atleast_1d(np.asarray(deviation, dtype=np.float64))
            norms = np.nan if error is None else np.linalg.norm(error.reshape(len(rows), -1), axis=1)
            self._pairs.append(np.stack(np.broadcast_arrays(rows, norms)) / per)

    def errors(self, group: str | None = None) -> Array:
        """All errors in ``unit``, or the errors of a group of structures."""
        return self.factor * np.hstack([np.empty(0), *(e for of, e in self._errors if group in (None, of))])

    def error_rows(self) -> list[tuple[str, str]]:
        """The printed row of errors, in a list; an empty list without labels."""
        if not (errors := self.errors()).size:
            return []
        mean, root = np.abs(errors).mean(), np.sqrt(np.square(errors).mean())
        return [(f"error of {self.name}", f"mean {mean:.4g}, root mean square {root:.4g} {self.unit}")]

    def deviation_rows(self) -> list[tuple[str, str]]:
        """The printed row of deviations, in a list; an empty list for a single potential."""
        if not self._pairs:
            return []
        pairs = np.hstack(self._pairs)
        values = self.factor * pairs[0]
        text = f"mean {values.mean():.4g}, largest {values.max():.4g} {self.unit}"
        if fit := calibration(*pairs[:, np.isfinite(pairs).all(0)]):
            correlation, larger = fit
            text += f"; its correlation with the error is {correlation:.2f}, errors are {larger:.1f} times as large"
        return [(f"deviation of {self.name}", text)]
