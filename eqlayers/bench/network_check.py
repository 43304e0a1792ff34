"""Whether two implementations of a network agree: energies, forces and gradients of all weights, before any timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .accelerate import ROUNDINGS, outcome
from .network_entrants import EXACT, LIMITS, PEER, TABLES, Entrant, Tables, enter, makers
from .subject import Subject

IN_FLOAT64 = 1e-6  # of the allowance of float32: roundings are 2e-9 of its
EPS = torch.finfo(torch.float32).eps
DIRECTIONS = 8
SAMPLES = 8  # moved copies of the atoms on which the rounding of an energy is measured
STEP = 0.1  # of a central difference, which is exact for maps of weights of second order

Outcome = dict[str, Tensor]
Errors = dict[str, float]


def run(entrant: Entrant, training: bool) -> Outcome:
    """Energy, forces, and for training the gradient of a force loss by all weights, sorted by name, in float64."""
    entrant.prepare(training)
    if training:
        found = outcome(entrant, entrant.network)
    else:
        energy, forces = entrant.evaluate(entrant.network, False)
        found = {"energy": energy.detach().double(), "forces": forces.detach().double()}
    return {key: value.cpu() for key, value in found.items()}


@dataclass(frozen=True)
class Directions:
    """Directions in the space of weights, as another package has it and as this one has it.

    A converted network has weights of its own, so that gradients cannot be compared one by one. Derivatives of the loss
    along directions can: the conversion turns a direction there into one here.

    Attributes:
        theirs: ``[D, P]`` of the peer's parameters, sorted by name.
        ours: ``[D, Q]`` of the potential's.
    """

    theirs: Tensor
    ours: Tensor


def _flat(network: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for _, p in sorted(network.named_parameters()) if p.requires_grad])


def directions(subject: Subject, count: int = DIRECTIONS) -> Directions:
    """Random directions, in proportion to each parameter, and what the conversion makes of them.

    A conversion multiplies weights by constants, or by other weights: it is of second order at most, and a central
    difference of it is its derivative but for rounding.
    """
    assert subject.native is not None
    network = subject.make(torch.float64)
    named = [p for _, p in sorted(network.named_parameters()) if p.requires_grad]
    start = [p.detach().clone() for p in named]
    generator = torch.Generator().manual_seed(0)
    theirs, ours = [], []
    for _ in range(count):
        steps = [p.std(correction=0) * torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in start]
        ends = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                for parameter, place, step in zip(named, start, steps, strict=True):
                    parameter.copy_(place + sign * STEP * step)
            ends.append(_flat(subject.native(network)))
        theirs.append(torch.cat([step.flatten() for step in steps]))
        ours.append((ends[0] - ends[1]) / (2 * STEP))
    return Directions(torch.stack(theirs), torch.stack(ours))


def gap(found: Outcome, reference: Outcome, along: Directions | None = None) -> Errors:
    """Largest differences: of energies in eV per atom, of forces in eV/Angstrom, of gradients relative to the largest.

    Args:
        found: Of one implementation.
        reference: Of the peer, with the same keys.
        along: To compare derivatives along directions, where the weights are others.
    """
    atoms = len(reference["forces"]) / len(reference["energy"])
    errors = {
        "energy": float((found["energy"] - reference["energy"]).abs().max()) / atoms,
        "forces": float((found["forces"] - reference["forces"]).abs().max()),
    }
    if "gradient" in reference:
        mine, right = found["gradient"], reference["gradient"]
        if along is not None:
            mine, right = along.ours @ mine, along.theirs @ right
        same = mine.shape == right.shape
        errors["gradients"] = float((mine - right).abs().max() / right.abs().max()) if same else float("inf")
    return errors


@dataclass(frozen=True)
class Bounds:
    """Bounds of rounding: of the eager network in float32, and of positions, beside itself in float64.

    Attributes:
        errors: Of all weights one by one.
        along: Of derivatives along directions; the same without directions.
        directions: For networks whose weights are others; None if there are none.
    """

    errors: Errors
    along: Errors
    directions: Directions | None

    def of(self, entrant: Entrant, reference: Outcome) -> Errors:
        """Largest differences allowed, for an implementation and the size of the compared values."""
        atoms = len(reference["forces"]) / len(reference["energy"])
        # The sum over atoms is in float32 in other packages; the rounding of a sum grows like the root of its terms.
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
        return {key: limits[key] + value for key, value in rounding.items()}  # the reference is rounded as well


def bounds(subject: Subject, moved: Sequence[Subject], device: torch.device) -> Bounds:
    """Measure the bounds with the peer's network.

    Forces and gradients have hundreds of entries, and the largest error of hundreds varies little. A structure has one
    energy, whose error in float32 is close to zero by chance on some atoms; on a GPU, where sums have no fixed order,
    the error also differs between two runs. So the error of an energy is measured on ``SAMPLES`` copies of the atoms,
    each moved by other rounding errors, and the largest error counts.

    Args:
        subject: The network and its atoms.
        moved: The same network on atoms moved by rounding errors. These errors count as well: a network in float32 may
            take positions in float64 or in float32. Forces and gradients are computed on the first.
        device: Where to run.
    """
    exact, single, near = (
        run(Entrant("", PEER, one.make(dtype).to(device), one.evaluate), True)
        for one, dtype in ((subject, torch.float64), (subject, torch.float32), (moved[0], torch.float64))
    )
    network = Entrant("", PEER, subject.make(torch.float32).to(device), subject.evaluate)
    energies = [run(replace(network, evaluate=one.evaluate), False)["energy"] for one in moved]
    atoms = len(exact["forces"]) / len(exact["energy"])
    energy = max(float((one - exact["energy"]).abs().max()) for one in energies) / atoms
    along = directions(subject) if subject.peer and subject.native is not None else None
    theirs = None if along is None else Directions(along.theirs, along.theirs)

    def largest(way: Directions | None) -> Errors:
        one, other = (gap(found, exact, way) for found in (single, near))
        most = {key: max(one[key], other[key]) for key in one}
        return most | {"energy": max(most["energy"], energy)}

    return Bounds(largest(None), largest(theirs), along)


def compare(entrant: Entrant, reference: Outcome, known: Bounds) -> tuple[Errors, bool]:
    """Errors beside the reference, and whether they are within the bounds."""
    found = run(entrant, "gradient" in reference)
    errors = gap(found, reference, known.directions if entrant.of_package else None)
    allowed = known.of(entrant, reference)
    return errors, all(error <= allowed[key] for key, error in errors.items())


def wrong_in_float64(subject: Subject, tables: Tables, known: Bounds, device: torch.device) -> set[str]:
    """Names of rows that must be equal to rounding, and are not in float64, where rounding hides nothing."""
    right = run(Entrant("", PEER, subject.make(torch.float64).to(device), subject.evaluate), True)
    found = set()
    for name, maker in makers(subject, ()).items():
        if maker.kind != EXACT:
            continue
        entrant = enter(name, maker, subject, tables, device, torch.float64)
        if isinstance(entrant, str):
            continue  # its reason is reported with the row
        errors = gap(run(entrant, True), right, known.directions if entrant.of_package else None)
        allowed = known.of(entrant, right)
        if not all(error <= IN_FLOAT64 * allowed[key] for key, error in errors.items()):
            found.add(name)
    return found
