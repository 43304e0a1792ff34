"""Symmetrix-XL, a package that generates C++ for a MACE model, as a peer."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..cases import Refusal
from ..peers.atoms import Sample
from ..peers.networks import Subject

PACKAGE = "symmetrix-xl"
MISSING = (
    f"the package {PACKAGE} is not installed. Install it beside mace-torch: pip install --no-deps {PACKAGE} matscipy; "
    "its C++ needs a compiler of C++20"
)
#: Environment variables from which its programs read the number of threads, once per process.
ENVIRONMENT = ("KOKKOS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def ase_atoms(sample: Sample) -> Any:
    """The only structure of a sample as ``ase.Atoms``."""
    from ase import Atoms

    (structure,) = sample.batch
    numbers = [list(sample.species)[index] for index in structure.species.tolist()]
    cell = None if structure.cell is None else structure.cell.numpy()
    return Atoms(numbers, structure.pos.numpy(), cell=cell, pbc=cell is not None)


class Symmetrix(torch.nn.Module):
    """A calculator compiled for a MACE network, after a first call on a structure.

    `about` is a text with the times of conversion, compilation and first call.
    """

    def __init__(self, network: torch.nn.Module, sample: Sample, dtype: torch.dtype) -> None:
        super().__init__()
        self.atoms = ase_atoms(sample)
        seconds = [time.perf_counter()]
        with _configured(torch.get_num_threads()), tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                from symmetrix import Symmetrix as Calculator
                from symmetrix.extract_mace_data import extract_mace_data
            except ModuleNotFoundError as error:
                raise Refusal(MISSING) from error
            model, file = Path(folder, "network.model"), Path(folder, "network.json")
            torch.save(network, model)
            file.write_text(json.dumps(extract_mace_data(model)))
            seconds.append(time.perf_counter())
            self.calculator = Calculator(file, str(dtype).removeprefix("torch."), execution_profile="speed")
            seconds.append(time.perf_counter())
            self.calculator.calculate(self.atoms, ["energy", "forces"])
            seconds.append(time.perf_counter())
        extracted, compiled, called = np.diff(seconds)
        how = "compiled" if self.calculator.jit_status == "built" else "found compiled"
        self.about = f"first result after {extracted:.0f} s of conversion, {compiled:.0f} s until {how}, {called:.1f} s"
        self._inputs = self.calculator._mace_inputs(self.atoms, native_geometry=True)
        self._graph = self.calculator._compute_mace(self._inputs, atoms=self.atoms)

    def whole(self: Any, training: bool = False) -> tuple[Tensor, Tensor]:
        """Energy ``[1]`` and forces ``[A, 3]`` through ASE's interface, with a cached neighbour list."""
        self.calculator.calculate(self.atoms, ["energy", "forces"], [])
        return results_of(self.calculator.results)

    def prepared(self: Any, training: bool = False) -> tuple[Tensor, Tensor]:
        """Energy and forces with a prepared graph."""
        evaluator, count = self.calculator.evaluator, self._inputs[0]
        evaluator._compute_prepared_factorized_positions(self._graph, self.atoms.positions.reshape(-1))
        energy = np.sum(evaluator.node_energies, dtype=np.float64)
        forces = evaluator._reduce_atom_forces(count, self._inputs[7], self._inputs[3], self._graph)
        return results_of({"energy": energy, "forces": np.reshape(forces, (count, 3))})


def results_of(results: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Energy ``[1]`` and forces ``[A, 3]`` from results of an ASE calculator."""
    return torch.tensor([float(results["energy"])]), torch.from_numpy(np.array(results["forces"], dtype=np.float64))


_last: list[tuple[Subject, torch.dtype, Symmetrix]] = []  # shared by both rows of one size


def symmetrix(subject: Subject, tables: Any, dtype: torch.dtype) -> torch.nn.Module:
    """Build, or reuse, the calculator of a MACE network."""
    if not _last or _last[0][0] is not subject or _last[0][1] != dtype:
        _last[:] = [(subject, dtype, Symmetrix(subject.make(torch.float64), subject.sample, dtype))]
    return _last[0][2]


@contextmanager
def _configured(threads: int) -> Iterator[None]:
    """Context manager: environment variables for a number of threads, and no log lines below errors."""
    settings = dict.fromkeys(ENVIRONMENT, str(threads)) | {"OMP_PROC_BIND": "false"}
    before, disabled = {name: os.environ.get(name) for name in settings}, logging.root.manager.disable
    os.environ.update(settings)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
