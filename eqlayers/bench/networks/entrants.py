"""Implementations of a network in `eqlayers bench networks`: its package, Symmetrix-XL, variants of this package."""

from __future__ import annotations

import copy
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import models
from ...integrations import accelerate
from ...models import Potential, compress
from ...models.compression import set_knots
from ..cases import Refusal, why_refused
from ..measure import Call
from ..results import OURS
from .atoms import Sample
from .packages import Evaluate, Subject, dtype_and_device

FORCES, TRAINING = "energy and forces", "training step"
MODES = (FORCES, TRAINING)
#: Class of a row: another package; equal up to rounding; or with tables of radial networks.
PEER, EXACT, TABLES = "peer", "exact", "tables"
EAGER, COMPILED, SYMMETRIX = "eager", "compiled", "symmetrix"
#: Largest errors with tables: eV per atom, eV/Angstrom, and relative to the largest gradient.
LIMITS = {"energy": 1e-5, "forces": 1e-4, "gradients": 1e-3}
#: Largest errors of Symmetrix-XL, which uses tables; its float32 energies have a constant error for each species.
LIMITS_OF_SYMMETRIX = LIMITS | {"energy": 1e-3}
NATIVE, LIVE, COMPRESSED = (f"{OURS}, native{rest}" for rest in ("", ", live tables", ", compressed"))


def evaluate_potential(sample: Sample) -> Evaluate:
    """Function that evaluates a potential of this package on a sample."""
    structures = lru_cache(maxsize=2)(sample.structures)

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        results = network(structures(*dtype_and_device(network)), ("energy", "forces"), create_graph=training)
        return results["energy"], results["forces"]

    return evaluate


def of_models(
    class_name: str, options: Mapping[str, Any], *, sample: Sample, scale: float = 1.0, shift: float = 0.0
) -> Subject:
    """The subject of a potential with a network of :mod:`eqlayers.models`, by name of its class."""
    species = list(sample.species)

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            potential = Potential(getattr(models, class_name)(species, **{"cutoff": sample.cutoff, **options}), species)
        shifts = {z: shift - 1.0 - number for number, z in enumerate(species)}
        potential.set_statistics(shifts, scale, sample.mean_neighbors)
        return potential.to(torch.float32).to(dtype)  # the same numbers in every dtype

    about = ", ".join(f"{key} {value}" for key, value in options.items())
    return Subject(f"{class_name} of this package, {about}", sample, make, evaluate_potential(sample), native=copied)


def copied(network: torch.nn.Module) -> Potential:
    """A copy of a potential of this package, which needs no conversion."""
    potential = copy.deepcopy(network)
    assert isinstance(potential, Potential)
    return potential


@dataclass(frozen=True)
class Tables:
    """Settings of tables of `eqlayers.models.compress`: knots of trainable ones, tolerance of frozen ones."""

    knots: int
    tolerance: float


@dataclass
class Entrant:
    """One implementation of a network, ready to run."""

    name: str
    kind: str  # PEER, EXACT or TABLES
    network: torch.nn.Module
    evaluate: Evaluate
    of_package: bool = False  # whether its parameters belong to a potential of this package
    limits: Mapping[str, float] | None = None  # largest errors beyond rounding; None: LIMITS for TABLES, 0 otherwise
    threads: int = 0  # number of threads that it supports; 0 for any
    step: Call | None = None  # its training step; None for a step of the force loss

    def __post_init__(self) -> None:
        """Collect trainable parameters."""
        self._trained = [p for p in self.network.parameters() if p.requires_grad]

    def prepare(self, training: bool) -> None:
        """Set training or evaluation mode, and enable gradients of weights only for training."""
        self.network.train(training)
        for parameter in self._trained:
            parameter.requires_grad_(training)


def eager(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
    """The network as its package builds it, in a dtype."""
    return subject.make(dtype)


def _compiled(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
    if subject.compiled is None:
        raise Refusal(f"{subject.peer or OURS} has no compiled form of this network")
    return subject.compiled(dtype)


def _accelerated_tables(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
    report = accelerate(subject.make(dtype), radial="table", tolerance=tables.tolerance, check=False)
    if not any(row.target == "radial" for row in report.replaced):
        reasons = [row.reason for row in report.skipped if row.target == "radial"]
        raise Refusal(f"accelerate makes no tables of this network: it {'; '.join(reasons)}")
    return report.model


def _native(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
    if subject.native is None:
        raise Refusal(f"there is no conversion of this network of {subject.peer}")
    return subject.native(subject.make(dtype))


def _live(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
    potential = _native(subject, tables, dtype)
    set_knots(potential, tables.knots)
    return potential


def _compressed(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
    potential = _native(subject, tables, dtype).eval().requires_grad_(False)
    compress(potential, tables.tolerance)
    return potential


# -- Symmetrix-XL, which generates C++ for a MACE model ----------------------------------------------------------------


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


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Maker:
    """How an entrant is built."""

    kind: str  # PEER, EXACT or TABLES
    make: Callable[[Subject, Tables, torch.dtype], torch.nn.Module]
    modes: tuple[str, ...] = MODES  # modes in which it is timed
    of_package: bool = False  # whether the result is a potential of this package
    call: Callable[[Subject], Evaluate] | None = None  # its evaluation; None for the usual one
    limits: Mapping[str, float] | None = None  # see Entrant
    fixed: bool = False  # whether its number of threads cannot change


#: Variants of this package for a network of another package.
OWN = {
    # without a check of its layers, as whole networks are compared
    f"{OURS}, accelerate": Maker(EXACT, lambda one, tables, dtype: accelerate(one.make(dtype), check=False).model),
    f"{OURS}, accelerate, tables": Maker(TABLES, _accelerated_tables),
    NATIVE: Maker(EXACT, _native, of_package=True),
    LIVE: Maker(TABLES, _live, (TRAINING,), of_package=True),
    COMPRESSED: Maker(TABLES, _compressed, (FORCES,), of_package=True),
}


def _by_ase(subject: Subject) -> Evaluate:
    """Evaluation through ASE's calculator interface, with a cached neighbour list."""
    from ...integrations.ase import Calculator

    atoms = ase_atoms(subject.sample)
    cached = lru_cache(maxsize=1)(Calculator)

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        calculator = cached(network)
        calculator.calculate(atoms, ["energy", "forces"], [])
        return results_of(calculator.results)

    return evaluate


_symmetrix = Maker(PEER, symmetrix, (FORCES,), limits=LIMITS_OF_SYMMETRIX, fixed=True)
#: Rows of Symmetrix-XL with a prepared graph and by ASE's interface, and of this package by the same interface.
BESIDE_SYMMETRIX = {
    f"{PACKAGE}, prepared": replace(_symmetrix, call=lambda subject: Symmetrix.prepared),
    f"{PACKAGE}, by ASE": replace(_symmetrix, call=lambda subject: Symmetrix.whole),
    f"{COMPRESSED}, by ASE": Maker(TABLES, _compressed, (FORCES,), of_package=True, call=_by_ase),
}


def makers(subject: Subject, peers: tuple[str, ...]) -> dict[str, Maker]:
    """Name -> implementation of a network, the reference first: the eager network of its package."""
    if not subject.peer:
        return {name: maker for name, maker in OWN.items() if maker.of_package}
    variants = {EAGER: Maker(PEER, eager), COMPILED: Maker(PEER, _compiled)}
    chosen = [EAGER, *(name for name in peers if name == COMPILED)]  # the reference is always there
    beside = BESIDE_SYMMETRIX if SYMMETRIX in peers and subject.peer == "mace-torch" else {}
    return {f"{subject.peer}, {name}": variants[name] for name in chosen} | OWN | beside


def enter(
    name: str, maker: Maker, subject: Subject, tables: Tables, device: torch.device, dtype: torch.dtype = torch.float32
) -> Entrant | str:
    """Build an entrant; the reason as text if it is not supported."""
    try:
        network = maker.make(subject, tables, dtype).to(device)
    except Exception as error:
        return why_refused(name if maker.kind == PEER else OURS, error)
    evaluate = evaluate_potential(subject.sample) if maker.of_package else subject.evaluate
    evaluate = maker.call(subject) if maker.call is not None else evaluate
    count = torch.get_num_threads() if maker.fixed else 0
    return Entrant(name, maker.kind, network, evaluate, maker.of_package, maker.limits, count)
