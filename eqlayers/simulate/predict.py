"""The command `eqlayers predict`: energies, forces and stress of structures in a file, compared with its labels."""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import ase.io
import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress
from numpy.typing import NDArray

from ..atoms.constraints import free_directions, held_atoms
from ..atoms.database import database_units, size_of_unit
from ..atoms.labels import FREE, KEYS, LABEL_NAMES, LABEL_UNITS
from ..atoms.structure_files import is_asymmetric
from ..atoms.units import unit_of, unit_size
from ..core.files.read_write import atomic_write, check_output
from ..integrations.ase import as_potential, predict
from ..models import read_potential
from ..models.committee import DEVIATION, committee_files
from ..models.molecule_property import load_property
from .committee import Compared, chosen
from .describe import lines
from .frames import check_different, frames, with_results
from .options import DTYPES, add_common, compile_for
from .predict_property import predict_property
from .watch import progress

#: Quantity that is compared with labels -> printed unit (1000 times smaller than the unit of results).
_UNITS = {"energy": "meV/atom", "forces": "meV/A", "stress": "meV/A^3", "dipole": "me A"}
_PREDICTED = "predicted_by"  # key in `info` of structures written by `predict`


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
    dtype = None if options.dtype is None else DTYPES[options.dtype]
    files = committee_files(options.model)
    if len(files) == 1 and (learned := load_property(files[0], dtype, options.device, options.classes)) is not None:
        return predict_property(learned, options, output)
    potential = as_potential(chosen(options.model), dtype, options.device, options.classes)
    for atoms in islice(frames(options.structures), 1):
        compile_for(potential, atoms)
    pending: list[Any] = []

    def read_frames() -> Any:
        for atoms in frames(options.structures):
            pending.append(atoms)
            yield atoms

    facts = read_potential(files[0]).facts
    trained = {label: facts.get(LABEL_NAMES, {}).get(label, "") for label in KEYS}
    trained_units = facts.get(LABEL_UNITS, {})
    source = Path(options.structures)
    units = database_units(source) if source.suffix == ".db" else {}
    quantities = _compared()
    groups: dict[str, dict[str, Compared]] = {}
    used: set[str] = set()
    differ: set[str] = set()
    left_out: set[str] = set()
    count = 0
    with atomic_write(output) as file, progress("predict", 0) as say:
        text = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
        for result in predict(potential, read_frames(), options.batch_size):
            atoms = pending.pop(0)
            known = _references(atoms, trained)
            left_out |= {label.name for name, label in known.items() if name not in result}
            config_type = str(atoms.info.get("config_type", ""))
            group = groups.setdefault(config_type, _compared())
            for name, quantity in quantities.items():
                error = None
                if name in known and name in result:
                    label, unit = known[name].label, units.get(known[name].name)
                    if unit is None:
                        size = unit_size(label, unit_of(trained_units, label, config_type, bool(atoms.pbc.any())))
                    else:
                        size = size_of_unit(source, label, unit)
                    error = np.ravel(np.asarray(result[name]) - known[name].value * size)
                    if np.isfinite(error).any():
                        used.add(known[name].name)
                        differ |= known[name].differ
                for total in (quantity, group[name]):
                    total.add(error, result.get(DEVIATION.format(name)), len(atoms) if name == "energy" else 1)
            predicted = with_results(atoms, result)
            predicted.info[_PREDICTED] = " ".join(options.model)
            ase.io.write(text, predicted, format="extxyz")
            count += 1
            say(count, f"{count} structures")
        text.detach()
    rows = [("structures", f"{count} of {options.structures}"), ("output", str(output))]
    rows += [row for quantity in quantities.values() for row in quantity.error_rows()]
    rows += [row for quantity in quantities.values() for row in quantity.deviation_rows()]
    if len(groups) > 1:
        for name, group in sorted(groups.items()):
            means = {quantity: quantity.mean_error() for quantity in group.values()}
            errors = [f"{item.name} {mean:.4g} {item.unit}" for item, mean in means.items() if mean is not None]
            rows.append((f"config_type {name or '(none)'}", f"mean error of {', '.join(errors) or 'nothing'}"))
    compared = f"compared with {', '.join(sorted(used))}" if used else "no labels were found to compare with"
    compared += f"; not compared: {', '.join(sorted(left_out))}" if left_out else ""
    rows.insert(1, ("labels", f"{compared}; others differ: {', '.join(sorted(differ))}" if differ else compared))
    print(lines(rows))
    return 0


def _compared() -> dict[str, Compared]:
    return {name: Compared(name, unit) for name, unit in _UNITS.items()}


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
