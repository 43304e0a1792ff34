"""The rows of `eqlayers bench networks`: one network as its package runs it, and in every way that this package has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ... import models
from ...integrations import accelerate
from ...models import Potential, compress
from ...models.compression import set_knots
from ..cases import Refusal, why_refused
from ..measure import Call
from ..peers.atoms import Place
from ..peers.networks import Evaluate, Subject, kind_of
from ..results import OURS
from .symmetrix import PACKAGE, Symmetrix, ase_atoms, results_of, symmetrix

FORCES, TRAINING = "energy and forces", "training step"
MODES = (FORCES, TRAINING)
#: What a row can be: another package's; the same numbers to rounding; or radial networks read from tables.
PEER, EXACT, TABLES = "peer", "exact", "tables"
EAGER, COMPILED, SYMMETRIX = "eager", "compiled", "symmetrix"
#: The largest errors of tables: eV per atom, eV/Angstrom, and of gradients relative to the largest.
LIMITS = {"energy": 1e-5, "forces": 1e-4, "gradients": 1e-3}
#: Of Symmetrix-XL, which reads tables as well; its energies in float32 carry a constant error of each species.
LIMITS_OF_SYMMETRIX = LIMITS | {"energy": 1e-3}
NATIVE, LIVE, COMPRESSED = (f"{OURS}, native{rest}" for rest in ("", ", live tables", ", compressed"))


def evaluate_potential(place: Place) -> Evaluate:
    """Energies and forces of these atoms by a potential of this package."""
    structures = lru_cache(maxsize=2)(place.structures)

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        results = network(structures(*kind_of(network)), ("energy", "forces"), create_graph=training)
        return results["energy"], results["forces"]

    return evaluate


def of_models(
    kind: str, options: Mapping[str, Any], *, place: Place, scale: float = 1.0, shift: float = 0.0
) -> Subject:
    """A network of :mod:`eqlayers.models` by the name of its class, in a potential."""
    species = list(place.species)

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            potential = Potential(getattr(models, kind)(species, **{"cutoff": place.cutoff, **options}), species)
        shifts = {z: shift - 1.0 - number for number, z in enumerate(species)}
        potential.set_statistics(shifts, scale, place.mean_neighbors)
        return potential.to(torch.float32).to(dtype)  # the same numbers in every dtype

    about = ", ".join(f"{key} {value}" for key, value in options.items())
    return Subject(f"{kind} of this package, {about}", place, make, evaluate_potential(place), native=copied)


def copied(network: torch.nn.Module) -> Potential:
    """A copy of a network that is a potential of this package already."""
    potential = copy.deepcopy(network)
    assert isinstance(potential, Potential)
    return potential


@dataclass(frozen=True)
class Tables:
    """Sizes of tables: knots of live ones, and the tolerance of compressed ones; see `eqlayers.models.compress`."""

    knots: int
    tolerance: float


@dataclass
class Entrant:
    """One implementation of a network, ready to run."""

    name: str
    kind: str  # PEER, EXACT or TABLES
    network: torch.nn.Module  # with its own copy of the weights
    evaluate: Evaluate
    of_package: bool = False  # whether its parameters belong to a potential of this package
    limits: Mapping[str, float] | None = None  # of errors beyond rounding; None: LIMITS of tables, else rounding alone
    threads: int = 0  # the only number of threads that it runs on; 0 for any
    step: Call | None = None  # its training step, unless it is the step of a force loss

    def __post_init__(self) -> None:
        """Remember what is trained."""
        self._trained = [p for p in self.network.parameters() if p.requires_grad]

    def prepare(self, training: bool) -> None:
        """Set the mode, and want gradients of weights for training alone, as calculators of all packages do."""
        self.network.train(training)
        for parameter in self._trained:
            parameter.requires_grad_(training)


def eager(subject: Subject, tables: Tables, dtype: torch.dtype) -> torch.nn.Module:
    """The network as its package makes it."""
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


@dataclass(frozen=True)
class Maker:
    """How an entrant is made."""

    kind: str  # PEER, EXACT or TABLES
    make: Callable[[Subject, Tables, torch.dtype], torch.nn.Module]
    modes: tuple[str, ...] = MODES  # that it is timed in
    of_package: bool = False  # whether it becomes a potential of this package
    call: Callable[[Subject], Evaluate] | None = None  # how it is called; None for a call with tensors
    limits: Mapping[str, float] | None = None  # as of an entrant
    fixed: bool = False  # whether it keeps the number of threads that it was made with


#: The ways to run a network of another package, beside itself.
OWN = {
    # without a check of its layers, as whole networks are compared
    f"{OURS}, accelerate": Maker(EXACT, lambda one, tables, dtype: accelerate(one.make(dtype), check=False).model),
    f"{OURS}, accelerate, tables": Maker(TABLES, _accelerated_tables),
    NATIVE: Maker(EXACT, _native, of_package=True),
    LIVE: Maker(TABLES, _live, (TRAINING,), of_package=True),
    COMPRESSED: Maker(TABLES, _compressed, (FORCES,), of_package=True),
}


def _by_ase(subject: Subject) -> Evaluate:
    """A potential of this package by ASE's interface, which keeps the neighbour list."""
    from ...integrations.ase import Calculator

    atoms = ase_atoms(subject.place)
    made = lru_cache(maxsize=1)(Calculator)

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        calculator = made(network)
        calculator.calculate(atoms, ["energy", "forces"], [])
        return results_of(calculator.results)

    return evaluate


_symmetrix = Maker(PEER, symmetrix, (FORCES,), limits=LIMITS_OF_SYMMETRIX, fixed=True)
#: The strongest peer of MACE, called with the graph prepared and by ASE's interface; and ours by the same interface.
BESIDE_SYMMETRIX = {
    f"{PACKAGE}, prepared": replace(_symmetrix, call=lambda subject: Symmetrix.prepared),
    f"{PACKAGE}, by ASE": replace(_symmetrix, call=lambda subject: Symmetrix.whole),
    f"{COMPRESSED}, by ASE": Maker(TABLES, _compressed, (FORCES,), of_package=True, call=_by_ase),
}


def makers(subject: Subject, peers: tuple[str, ...]) -> dict[str, Maker]:
    """Rows of a network by name, the reference first: its own package, eager; a network of this one is its own."""
    if not subject.peer:
        return {name: maker for name, maker in OWN.items() if maker.of_package}
    kinds = {EAGER: Maker(PEER, eager), COMPILED: Maker(PEER, _compiled)}
    chosen = [EAGER, *(name for name in peers if name == COMPILED)]  # the reference is always there
    beside = BESIDE_SYMMETRIX if SYMMETRIX in peers and subject.peer == "mace-torch" else {}
    return {f"{subject.peer}, {name}": kinds[name] for name in chosen} | OWN | beside


def enter(
    name: str, maker: Maker, subject: Subject, tables: Tables, device: torch.device, dtype: torch.dtype = torch.float32
) -> Entrant | str:
    """The entrant, or why there is none; an error that this package did not mean is raised."""
    try:
        network = maker.make(subject, tables, dtype).to(device)
    except Exception as error:
        return why_refused(name if maker.kind == PEER else OURS, error)
    evaluate = evaluate_potential(subject.place) if maker.of_package else subject.evaluate
    evaluate = maker.call(subject) if maker.call is not None else evaluate
    count = torch.get_num_threads() if maker.fixed else 0
    return Entrant(name, maker.kind, network, evaluate, maker.of_package, maker.limits, count)
