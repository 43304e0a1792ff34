"""`eqlayers predict -m` of a learned property: its value for each molecule of a file, beside the file's label."""

from __future__ import annotations

import argparse
import io
from itertools import islice
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch

from ..core.checks import check_integer
from ..core.errors import DataError
from ..core.files.read_write import atomic_write
from ..models.atoms import NeighborLists, check_atoms, collate
from ..models.molecule_property import MoleculeProperty
from .committee import Compared
from .describe import lines
from .frames import frames, set_aside
from .watch import progress


def predict_property(learned: MoleculeProperty, options: argparse.Namespace, output: Path) -> int:
    """Write each molecule with its value under the property's name, a label of that name as REF_name."""
    name, size = learned.name, check_integer("--batch-size", options.batch_size, 1)
    by = f"{name}_predicted_by"  # in files that this function wrote
    errors = Compared(name, learned.unit, factor=1.0)
    count = labelled = 0
    with atomic_write(output) as file, progress("predict", 0) as say, torch.inference_mode():
        text = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
        read = frames(options.structures)
        while molecules := list(islice(read, size)):
            neighbors = []
            for number, atoms in enumerate(molecules, count):
                check_atoms(atoms, learned.species, f"structures[{number}]")
                if atoms.pbc.any():
                    raise DataError(
                        f"structures[{number}] must have no period for a property of molecules, got pbc "
                        f'{atoms.pbc.tolist()}. Set pbc="F F F" in the file where a molecule is in a box.'
                    )
                neighbors.append(NeighborLists(learned.cutoff)(atoms, f"structures[{number}]"))
            values = learned(collate(learned, molecules, neighbors)).tolist()
            for atoms, value in zip(molecules, values, strict=True):
                results: dict[str, Any] = {} if atoms.calc is None else atoms.calc.results
                if name in results:  # such as an energy
                    atoms.info[name] = results.pop(name)
                if atoms.info.pop(by, None) is not None:
                    atoms.info.pop(name, None)
                    label = atoms.info.get(f"REF_{name}")
                elif (label := atoms.info.get(name)) is not None:
                    set_aside(atoms.info, name)
                if isinstance(label, (int, float, np.number)):
                    errors.add(np.array([value - float(label)]), None)
                    labelled += int(np.isfinite(label))
                atoms.info |= {name: value, by: " ".join(options.model)}
                ase.io.write(text, atoms, format="extxyz")
            count += len(molecules)
            say(count, f"{count} structures")
        text.detach()
    about = f"{labelled} of {name}, taken as {learned.unit}" if labelled else "none were found to compare with"
    rows = [("structures", f"{count} of {options.structures}"), ("labels", about), ("output", str(output))]
    print(lines(rows + errors.error_rows()))
    return 0
