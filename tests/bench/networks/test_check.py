"""Atoms of networks that are measured, the comparison of two networks, and the parts of the time."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from eqlayers.bench.networks.atoms import crystal, rounded
from eqlayers.bench.networks.check import SAMPLES, Bounds, bounds, compare, directions, gap, run
from eqlayers.bench.networks.entrants import EXACT, PEER, TABLES, Entrant
from eqlayers.bench.networks.packages import Subject
from eqlayers.models import Potential


class Toy(torch.nn.Module):
    """Energy and forces of points, by weights times a factor."""

    def __init__(self, factor: float, bent: float = 0.0) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor([0.7, -1.1, 0.4]) / factor)
        self.second = torch.nn.Parameter(torch.tensor([1.3, 0.2]))
        self.factor, self.bent = factor, bent

    def forward(self, pos: Tensor) -> Tensor:
        weight = self.factor * self.first
        weight = weight + self.bent * (weight - weight.detach())  # the same value, another gradient
        energy: Tensor = ((pos * weight).sin().sum() * self.second[0] + (pos**3).sum() * self.second[1]).sum()
        return energy


def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
    pos = torch.linspace(-1, 1, 12, dtype=next(network.parameters()).dtype).view(4, 3).requires_grad_()
    energy = network(pos)
    (gradient,) = torch.autograd.grad(energy, pos, create_graph=training)
    return energy[None], -gradient


def toy(bent: float = 0.0) -> Subject:
    def native(network: torch.nn.Module) -> Potential:
        assert isinstance(network, Toy)
        converted = Toy(4.0, bent).double()
        with torch.no_grad():
            converted.first.copy_(network.first / 4 * network.second[0] / 1.3)  # of second order
            converted.second.copy_(network.second)
        return converted  # type: ignore[return-value]

    return Subject("toy", crystal(4, 3.0), lambda dtype: Toy(1.0).to(dtype), evaluate, "theirs", None, native)


def test_gradients_of_other_weights_are_compared_along_directions() -> None:
    subject = toy()
    known = bounds(subject, [subject], torch.device("cpu"))
    reference = run(Entrant("", PEER, subject.make(torch.float32), evaluate), True)
    assert subject.native is not None
    plain = subject.make(torch.float64)
    jacobian = directions(subject)
    # d first / d theirs = second[0] / (4 * 1.3), and d first / d second[0] = theirs / (4 * 1.3)
    wanted = jacobian.theirs.clone()
    first, second = (p.detach() for _, p in sorted(plain.named_parameters()))
    wanted[:, :3] = (jacobian.theirs[:, :3] * second[0] + jacobian.theirs[:, 3:4] * first) / 4 / 1.3
    torch.testing.assert_close(jacobian.ours, wanted, rtol=0, atol=1e-14)
    assert len(jacobian.theirs) > jacobian.theirs.shape[1], "enough directions to see every weight"
    for bent, fits in ((0.0, True), (1e-3, False)):
        mine = Toy(4.0, bent)
        # a conversion that is linear in all weights, whose gradients follow from theirs
        linear = Subject("", subject.sample, subject.make, evaluate, "theirs", None, lambda n: scaled(n))
        aware = Bounds(known.errors, known.along, directions(linear))
        errors, right = compare(Entrant("", EXACT, mine, evaluate, of_package=True), reference, aware)
        assert right is fits, errors
        assert errors["forces"] < 1e-6


def scaled(network: torch.nn.Module) -> Potential:
    assert isinstance(network, Toy)
    converted = Toy(4.0).double()
    with torch.no_grad():
        converted.first.copy_(network.first / 4)
        converted.second.copy_(network.second)
    return converted  # type: ignore[return-value]


def test_bounds_of_exact_networks_and_of_tables() -> None:
    known = bounds(toy(), [toy()], torch.device("cpu"))
    network = Toy(1.0)
    reference = run(Entrant("", PEER, network, evaluate), True)
    allowed = {kind: known.of(Entrant("", kind, network, evaluate), reference) for kind in (PEER, EXACT, TABLES)}
    assert allowed[PEER] == allowed[EXACT]
    assert allowed[EXACT]["forces"] < 1e-5 < 1e-4 < allowed[TABLES]["forces"] < 1.1e-4
    assert allowed[TABLES]["energy"] < 1.1e-5
    off = {**reference, "forces": reference["forces"] + torch.nan}
    assert not gap(off, reference)["forces"] <= allowed[TABLES]["forces"], "not a number is wrong"
    assert gap({**reference, "gradient": torch.ones(2).double()}, reference)["gradients"] == math.inf


class Cancelling(torch.nn.Module):
    """Energies with two large parts, a share and the rest, that are taken away again; their rounding stays."""

    def __init__(self, share: float, error: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.0))
        self.share, self.error = share, error

    def forward(self, pos: Tensor) -> Tensor:
        large = 1024 * self.weight * pos
        left: Tensor = (self.share * large - large + (1 - self.share) * large + self.weight * pos + self.error).sum()
        return left


def lucky(seed: int | None = None) -> Subject:
    """Atoms on whole numbers, of which eighths have no rounding; or the atoms moved by rounding errors."""
    sample = crystal(4, 3.0)
    (one,) = sample.batch
    sample = replace(sample, batch=[replace(one, pos=torch.arange(12.0).double().view(4, 3))], neighbors=1.0)
    sample = sample if seed is None else rounded(sample, seed)

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        dtype = next(network.parameters()).dtype
        pos = sample.batch[0].pos.to(dtype, copy=True).requires_grad_()
        energy = network(pos)
        (gradient,) = torch.autograd.grad(energy, pos, create_graph=training)
        return energy[None], -gradient

    return Subject("cancelling", sample, lambda dtype: Cancelling(0.375).to(dtype), evaluate, "theirs")


def test_an_energy_without_rounding_by_chance_leaves_room_for_rounding() -> None:
    """The peer's own error on these atoms is zero. A network that adds in another order has the error of any atoms."""
    subject = lucky()
    known = bounds(subject, [lucky(seed) for seed in range(SAMPLES)], torch.device("cpu"))
    reference = run(Entrant("", PEER, subject.make(torch.float32), subject.evaluate), False)
    exact = run(Entrant("", PEER, subject.make(torch.float64), subject.evaluate), False)
    assert gap(reference, exact)["energy"] == 0
    for error, fits in ((0.0, True), (0.01, False)):
        network = Cancelling(round(0.9 * 2**23) / 2**23, error)  # exact in float32, and so are its forces
        errors, right = compare(Entrant("", EXACT, network, subject.evaluate), reference, known)
        assert right is fits, (errors, known)
