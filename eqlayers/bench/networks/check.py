"""Whether two implementations of a network agree: energies, forces and gradients of all weights, before any timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..peers.networks import Subject
from .entrants import EXACT, LIMITS, PEER, TABLES, Entrant, Maker, Tables, enter

#: How far two ways to compute the same numbers may be apart, in rounding errors of the plain network: the largest of
#: some hundred thousand errors varies by a few times from one order of sums to another.
ROUNDINGS = 10
IN_FLOAT64 = 1e-6  # of the allowance of float32: roundings are 2e-9 of its
EPS = torch.finfo(torch.float32).eps
DIRECTIONS = 8
SAMPLES = 8  # moved copies of the atoms on which the rounding of an energy is measured
STEP = 0.1  # of a central difference, which is exact for maps of weights of second order
CPU = torch.device("cpu")
Outcome = dict[str, Tensor]
Errors = dict[str, float]


def force_loss(forces: Tensor) -> Tensor:
    """Mean squared error of forces ``[A, 3]`` beside fixed labels."""
    labels = torch.sin(torch.arange(forces.numel(), dtype=torch.float64)).view_as(forces)
    return (forces - labels.to(forces)).square().mean()


def _trained(network: torch.nn.Module) -> list[Tensor]:
    return [p for _, p in sorted(network.named_parameters()) if p.requires_grad]


def run(entrant: Entrant, training: bool) -> Outcome:
    """``energy [G]``, ``forces [A, 3]``, and for training ``gradient [P]``, of a force loss by all weights, in float64.

    Gradients are sorted by the names of the parameters, whose own gradients are not touched.
    """
    entrant.prepare(training)
    energy, forces = entrant.evaluate(entrant.network, training)
    results = {"energy": energy.detach().double(), "forces": forces.detach().double()}
    if training:
        wanted = _trained(entrant.network)
        gradients = torch.autograd.grad(force_loss(forces), wanted, allow_unused=True, materialize_grads=True)
        results["gradient"] = torch.cat([gradient.flatten().double() for gradient in gradients])
    return {key: value.cpu() for key, value in results.items()}


@dataclass(frozen=True)
class Directions:
    """Directions in the space of weights, ``[D, P]`` as another package has it and ``[D, Q]`` as this one has it.

    A converted network has weights of its own, so that gradients cannot be compared one by one. Derivatives of the loss
    along directions can: the conversion turns a direction there into one here.
    """

    theirs: Tensor
    ours: Tensor


def directions(subject: Subject, count: int = DIRECTIONS) -> Directions:
    """Random directions, in proportion to each parameter, and what the conversion makes of them.

    A conversion multiplies weights by constants, or by other weights: it is of second order at most, and a central
    difference of it is its derivative but for rounding.
    """
    assert subject.native is not None
    network = subject.make(torch.float64)
    named = _trained(network)
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
            ends.append(torch.cat([p.detach().double().flatten() for p in _trained(subject.native(network))]))
        theirs.append(torch.cat([step.flatten() for step in steps]))
        ours.append((ends[0] - ends[1]) / (2 * STEP))
    return Directions(torch.stack(theirs), torch.stack(ours))


def gap(results: Outcome, reference: Outcome, along: Directions | None = None) -> Errors:
    """Largest differences: of energies in eV per atom, of forces in eV/Angstrom, of gradients relative to the largest.

    Directions compare derivatives along them, where the weights are others.
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
    """Bounds of rounding: of the eager network in float32, and of positions, beside itself in float64."""

    errors: Errors  # of all weights one by one
    along: Errors  # of derivatives along directions; the same without directions
    directions: Directions | None  # for networks whose weights are others

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

    def fit(self, entrant: Entrant, results: Outcome, reference: Outcome, factor: float = 1.0) -> tuple[Errors, bool]:
        """Errors beside the reference, and whether they are within a part of the bounds."""
        errors = gap(results, reference, self.directions if entrant.of_package else None)
        allowed = self.of(entrant, reference)
        return errors, all(error <= factor * allowed[key] for key, error in errors.items())


def bounds(subject: Subject, moved: Sequence[Subject], device: torch.device) -> Bounds:
    """Measure the bounds with the peer's network.

    Forces and gradients have hundreds of entries, and the largest error of hundreds varies little. A structure has one
    energy, whose error in float32 is close to zero by chance on some atoms; on a GPU, where sums have no fixed order,
    the error also differs between two runs. So the error of an energy is measured on ``SAMPLES`` copies of the atoms,
    each moved by other rounding errors, and the largest error counts.
    The errors of the moved atoms count as well: a network in float32 may take positions in float64 or in float32.
    Forces and gradients are computed on the first copy.
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
        one, other = (gap(results, exact, way) for results in (single, near))
        most = {key: max(one[key], other[key]) for key in one}
        return most | {"energy": max(most["energy"], energy)}

    return Bounds(largest(None), largest(theirs), along)


def compare(entrant: Entrant, reference: Outcome, known: Bounds) -> tuple[Errors, bool]:
    """Errors beside the reference, and whether they are within the bounds."""
    return known.fit(entrant, run(entrant, "gradient" in reference), reference)


def wrong_in_float64(
    subject: Subject, rows: Mapping[str, Maker], tables: Tables, known: Bounds, device: torch.device
) -> set[str]:
    """Names of rows that must be equal to rounding, and are not in float64, where rounding hides nothing."""
    right = run(Entrant("", PEER, subject.make(torch.float64).to(device), subject.evaluate), True)
    exact = {name: maker for name, maker in rows.items() if maker.kind == EXACT}
    entrants = {name: enter(name, maker, subject, tables, device, torch.float64) for name, maker in exact.items()}
    return {
        name
        for name, one in entrants.items()  # the reason of a row that cannot be made is reported with it
        if isinstance(one, Entrant) and not known.fit(one, run(one, True), right, IN_FLOAT64)[1]
    }
