"""Compare implementations of a network before timing: energies, forces and gradients of all weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .entrants import EXACT, LIMITS, PEER, TABLES, Entrant, Maker, Tables, enter
from .packages import Subject

#: Allowed difference in rounding errors of the eager network; the largest error varies with the order of sums.
ROUNDINGS = 10
IN_FLOAT64 = 1e-6  # allowed differences in float64, relative to float32
EPS = torch.finfo(torch.float32).eps
DIRECTIONS = 8
SAMPLES = 8  # perturbed copies of the atoms, on which the rounding of energies is measured
STEP = 0.1  # step of a central difference, exact for maps of second order
CPU = torch.device("cpu")
Outcome = dict[str, Tensor]
Errors = dict[str, float]


def force_loss(forces: Tensor) -> Tensor:
    """Mean squared error of forces ``[A, 3]`` with respect to fixed labels."""
    labels = torch.sin(torch.arange(forces.numel(), dtype=torch.float64)).view_as(forces)
    return (forces - labels.to(forces)).square().mean()


def _trained(network: torch.nn.Module) -> list[Tensor]:
    return [p for _, p in sorted(network.named_parameters()) if p.requires_grad]


def run(entrant: Entrant, training: bool) -> Outcome:
    """Evaluate ``energy [G]``, ``forces [A, 3]`` and, for training, ``gradient [P]`` of a force loss; all in float64.

    The gradient is sorted by names of parameters, whose ``grad`` is not changed.
    """
    entrant.prepare(training)
    energy, forces = entrant.evaluate(entrant.network, training)
    results = {"energy": energy.detach().double(), "forces": forces.detach().double()}
    if training:
        weights = _trained(entrant.network)
        gradients = torch.autograd.grad(force_loss(forces), weights, allow_unused=True, materialize_grads=True)
        results["gradient"] = torch.cat([gradient.flatten().double() for gradient in gradients])
    return {key: value.cpu() for key, value in results.items()}


@dataclass(frozen=True)
class Directions:
    """Equal directions in the weights of another package, ``[D, P]``, and of the converted network, ``[D, Q]``.

    Weights of a converted network differ in number and shape, so derivatives of the loss along directions are compared
    instead of gradients.
    """

    theirs: Tensor
    ours: Tensor


def directions(subject: Subject, count: int = DIRECTIONS) -> Directions:
    """Random directions scaled with each parameter, and their images under the conversion.

    A conversion is of second order in the weights at most, so that a central difference is its exact derivative.
    """
    assert subject.native is not None
    network = subject.make(torch.float64)
    named = _trained(network)
    start = [p.detach().clone() for p in named]
    generator = torch.Generator().manual_seed(0)
    theirs, ours = [], []
    for _ in range(count):
        steps = [p.std(correction=0) * torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in start]
        shifted = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                for parameter, value, step in zip(named, start, steps, strict=True):
                    parameter.copy_(value + sign * STEP * step)
            shifted.append(torch.cat([p.detach().double().flatten() for p in _trained(subject.native(network))]))
        theirs.append(torch.cat([step.flatten() for step in steps]))
        ours.append((shifted[0] - shifted[1]) / (2 * STEP))
    return Directions(torch.stack(theirs), torch.stack(ours))


def gap(results: Outcome, reference: Outcome, along: Directions | None = None) -> Errors:
    """Largest differences of energies (eV per atom), forces (eV/Angstrom), and gradients (relative to the largest).

    With ``along``, derivatives along directions are compared instead of gradients.
    """
    atoms = len(reference["forces"]) / len(reference["energy"])
    errors = {
        "energy": float((results["energy"] - reference["energy"]).abs().max()) / atoms,
        "forces": float((results["forces"] - reference["forces"]).abs().max()),
    }
    if "gradient" in reference:
        mine, right = results["gradient"], reference["gradient"]
        if along is not None:
            mine, right = along.ours @ mine, along.theirs @ right
        same = mine.shape == right.shape
        errors["gradients"] = float((mine - right).abs().max() / right.abs().max()) if same else float("inf")
    return errors


@dataclass(frozen=True)
class Bounds:
    """Rounding errors of the eager network in float32, and by rounded positions, with respect to float64."""

    errors: Errors  # with gradients of all weights
    along: Errors  # with derivatives along directions, if there are any
    directions: Directions | None  # for converted networks

    def of(self, entrant: Entrant, reference: Outcome) -> Errors:
        """Allowed differences of an implementation from the reference."""
        atoms = len(reference["forces"]) / len(reference["energy"])
        # Other packages sum over atoms in float32, whose rounding grows like the square root of the number of terms.
        least = {
            "energy": EPS * atoms**0.5 * float(reference["energy"].abs().max()) / atoms,
            "forces": EPS * float(reference["forces"].abs().max()),
            "gradients": EPS,
        }
        known = self.along if entrant.of_package else self.errors
        rounding = {key: max(known[key], least[key]) for key in known}
        limits = LIMITS if entrant.limits is None and entrant.kind == TABLES else entrant.limits
        if limits is None:
            return {key: ROUNDINGS * value for key, value in rounding.items()}
        return {key: limits[key] + value for key, value in rounding.items()}  # plus rounding of the reference

    def fit(self, entrant: Entrant, results: Outcome, reference: Outcome, factor: float = 1.0) -> tuple[Errors, bool]:
        """Errors with respect to the reference, and whether they are within ``factor`` times the bounds."""
        errors = gap(results, reference, self.directions if entrant.of_package else None)
        allowed = self.of(entrant, reference)
        return errors, all(error <= factor * allowed[key] for key, error in errors.items())


def bounds(subject: Subject, moved: Sequence[Subject], device: torch.device) -> Bounds:
    """Measure rounding errors of the peer's network.

    The error of a single energy can be small by chance, so it is measured on all copies in ``moved``, whose positions
    differ by rounding, and the largest counts. Errors of forces and gradients are measured on the first copy. The
    effect of rounded positions is included, as a network in float32 may take positions in either dtype.
    """
    exact, single, near = (
        run(Entrant("", PEER, case.make(dtype).to(device), case.evaluate), True)
        for case, dtype in ((subject, torch.float64), (subject, torch.float32), (moved[0], torch.float64))
    )
    network = Entrant("", PEER, subject.make(torch.float32).to(device), subject.evaluate)
    energies = [run(replace(network, evaluate=copy.evaluate), False)["energy"] for copy in moved]
    atoms = len(exact["forces"]) / len(exact["energy"])
    energy = max(float((value - exact["energy"]).abs().max()) for value in energies) / atoms
    along = directions(subject) if subject.peer and subject.native is not None else None
    theirs = None if along is None else Directions(along.theirs, along.theirs)

    def largest(way: Directions | None) -> Errors:
        first, second = (gap(results, exact, way) for results in (single, near))
        most = {key: max(first[key], second[key]) for key in first}
        return most | {"energy": max(most["energy"], energy)}

    return Bounds(largest(None), largest(theirs), along)


def compare(entrant: Entrant, reference: Outcome, known: Bounds) -> tuple[Errors, bool]:
    """Errors with respect to the reference, and whether they are within the bounds."""
    return known.fit(entrant, run(entrant, "gradient" in reference), reference)


def wrong_in_float64(
    subject: Subject, rows: Mapping[str, Maker], tables: Tables, known: Bounds, device: torch.device
) -> set[str]:
    """Names of rows of exact implementations that differ from the reference in float64."""
    right = run(Entrant("", PEER, subject.make(torch.float64).to(device), subject.evaluate), True)
    exact = {name: maker for name, maker in rows.items() if maker.kind == EXACT}
    entrants = {name: enter(name, maker, subject, tables, device, torch.float64) for name, maker in exact.items()}
    return {
        name
        for name, entrant in entrants.items()  # a reason (str) is reported with its row
        if isinstance(entrant, Entrant) and not known.fit(entrant, run(entrant, True), right, IN_FLOAT64)[1]
    }
