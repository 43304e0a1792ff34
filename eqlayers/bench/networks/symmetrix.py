"""Symmetrix-XL, which writes C++ for one MACE model: the calculator of a network, and the two ways to call it."""

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
from ..peers.atoms import Place
from ..peers.networks import Subject

PACKAGE = "symmetrix-xl"
MISSING = (
    f"the package {PACKAGE} is not installed. Install it beside mace-torch: pip install --no-deps {PACKAGE} matscipy; "
    "its C++ needs a compiler of C++20"
)
#: Its programs take threads from the environment, once in a process.
ENVIRONMENT = ("KOKKOS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def ase_atoms(place: Place) -> Any:
    """The one structure of a place as ``ase.Atoms``."""
    from ase import Atoms

    (one,) = place.batch
    numbers = [list(place.species)[kind] for kind in one.species.tolist()]
    return Atoms(
        numbers, one.pos.numpy(), cell=None if one.cell is None else one.cell.numpy(), pbc=one.cell is not None
    )


class Symmetrix(torch.nn.Module):
    """The calculator of a network of MACE, compiled for it, with its first call done on a structure.

    `about` says how long the way to the first result took.
    """

    def __init__(self, network: torch.nn.Module, place: Place, dtype: torch.dtype) -> None:
        super().__init__()
        self.atoms = ase_atoms(place)
        seconds = [time.perf_counter()]
        with _alone(torch.get_num_threads()), tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
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
        extracted, made, called = np.diff(seconds)
        how = "compiled" if self.calculator.jit_status == "built" else "found compiled"
        self.about = f"first result after {extracted:.0f} s of conversion, {made:.0f} s until {how}, {called:.1f} s"
        self._inputs = self.calculator._mace_inputs(self.atoms, native_geometry=True)
        self._graph = self.calculator._compute_mace(self._inputs, atoms=self.atoms)

    def whole(self: Any, training: bool = False) -> tuple[Tensor, Tensor]:
        """Energy ``[1]`` and forces ``[A, 3]`` by a call of ASE's interface, which keeps the neighbour list."""
        self.calculator.calculate(self.atoms, ["energy", "forces"], [])
        return results_of(self.calculator.results)

    def prepared(self: Any, training: bool = False) -> tuple[Tensor, Tensor]:
        """Energy and forces from positions alone, with the graph prepared."""
        evaluator, count = self.calculator.evaluator, self._inputs[0]
        evaluator._compute_prepared_factorized_positions(self._graph, self.atoms.positions.reshape(-1))
        energy = np.sum(evaluator.node_energies, dtype=np.float64)
        forces = evaluator._reduce_atom_forces(count, self._inputs[7], self._inputs[3], self._graph)
        return results_of({"energy": energy, "forces": np.reshape(forces, (count, 3))})


def results_of(results: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Energy ``[1]`` and forces ``[A, 3]`` of an ASE calculator."""
    return torch.tensor([float(results["energy"])]), torch.from_numpy(np.array(results["forces"], dtype=np.float64))


_last: list[tuple[Subject, torch.dtype, Symmetrix]] = []  # two rows of one size have one calculator


def symmetrix(subject: Subject, tables: Any, dtype: torch.dtype) -> torch.nn.Module:
    """The calculator of a network of MACE."""
    if not _last or _last[0][0] is not subject or _last[0][1] != dtype:
        _last[:] = [(subject, dtype, Symmetrix(subject.make(torch.float64), subject.place, dtype))]
    return _last[0][2]


@contextmanager
def _alone(threads: int) -> Iterator[None]:
    """A block with some threads for a package that reads the environment when it is loaded, without its log lines."""
    wanted = dict.fromkeys(ENVIRONMENT, str(threads)) | {"OMP_PROC_BIND": "false"}
    before, disabled = {name: os.environ.get(name) for name in wanted}, logging.root.manager.disable
    os.environ.update(wanted)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
