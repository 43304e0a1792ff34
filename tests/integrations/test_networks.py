"""Whole networks before and after `accelerate`: e3nn's, stand-ins, NequIP's or MACE's where one is installed."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.contracter import AcceleratedContracter
from eqlayers.integrations.kinds.gate import AcceleratedGate
from eqlayers.integrations.kinds.product import AcceleratedTensorProduct
from eqlayers.integrations.replacement import Replacement
from tests.cases import default_dtype
from tests.integrations import guests
from tests.integrations.conftest import Inputs, Network, copies
from tests.integrations.guests import Guest

SIZES = (9, 1, 5)  # molecules of different sizes; an atom without neighbours


def standin(sizes: tuple[int, ...] = ()) -> Guest:
    """A network with the blocks of NequIP and of MACE on six atoms, the last of which has no neighbours."""

    def make(dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(1)
        with default_dtype(torch.float64):
            network = Network()
        for parameter in network.parameters():
            parameter.data = parameter.data.float().double()
        return network.to(dtype)

    def evaluate(network: nn.Module, training: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return Inputs(next(network.parameters()).dtype).energy_and_forces(network)

    return Guest("stand-ins", (), make, evaluate, "stand-ins")  # type: ignore[arg-type]


MAKE = {
    "stand-ins": standin,
    "gate_points_2101": lambda sizes: guests.gate_points_2101(channels=3, layers=1, lmax=1, sizes=sizes),
    "simple_network_2106": lambda sizes: guests.simple_network_2106(channels=3, layers=2, lmax=1, sizes=sizes),
    "nequip": lambda sizes: guests.nequip(layers=3, channels=4, sizes=sizes),
    "mace": lambda sizes: guests.mace(hidden="4x0e + 4x1o", correlation=2, sizes=sizes),
    "allegro": lambda sizes: guests.allegro(channels=3, scalars=8, sizes=sizes),
    "sevennet": lambda sizes: guests.sevennet(layers=3, channels=4, lmax=1, sizes=sizes),
}
PACKAGES = {"nequip": "nequip", "allegro": "allegro", "mace": "mace", "sevennet": "sevenn"}
GUESTS = [name for name, package in PACKAGES.items() if find_spec(package)]
# beside another package only its networks: e3nn's have been tested elsewhere
HERE = GUESTS or ["simple_network_2106", pytest.param("gate_points_2101", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=[*HERE, *([] if GUESTS else ["stand-ins"])])
def subject(request: pytest.FixtureRequest) -> Guest:
    return MAKE[request.param](SIZES)


def same(outcome: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(outcome[key], reference[key]) for key in guests.QUANTITIES)


def close(subject: Guest, outcome: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> bool:
    """Within the roundings of float64 that a changed network may have."""
    exact, single = (guests.outcome(subject, subject.make(dtype)) for dtype in (torch.float64, torch.float32))
    bounds = guests.allowed(guests.errors(single, exact), torch.float64)
    errors = guests.errors(outcome, reference)
    return all(errors[key] <= bounds[key] for key in guests.QUANTITIES)


def replaced(network: nn.Module) -> int:
    return sum(isinstance(module, Replacement) for module in network.modules())


def test_energies_forces_and_gradients_are_equal_to_rounding(subject: Guest) -> None:
    reports = []
    errors = guests.compare(subject, lambda network: reports.append(accelerate(network)))
    assert all(share <= 1 for share in errors["of the bound"].values()), errors
    assert errors["float64"]["gradient"] > 0, "nothing was replaced"
    for report in reports:
        assert report.worst is not None
        assert report.worst <= 1
        assert all(row.reason for row in report.skipped)
        kinds = {"e3nn": {"convolution", "gate"}, "allegro": {"contraction"}}.get(
            subject.peer, {"product", "convolution"}
        )
        assert {row.target for row in report.replaced} >= kinds


def test_a_wrong_layer_is_seen(subject: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the test above: a small error of one kind of layer in the first place is larger than the bounds."""
    kinds: dict[str, type[nn.Module]] = {"allegro": AcceleratedContracter, "e3nn": AcceleratedGate}
    kind = kinds.get(subject.peer, AcceleratedTensorProduct)
    right = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args: right(self, *args) * (1 + 1e-4))
    differences = guests.compare(subject, lambda network: accelerate(network, check=False))
    assert max(differences["of the bound"].values()) > 1


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3)], ids=["no edges", "few atoms"])
@pytest.mark.parametrize("name", HERE)
def test_other_batches(name: str, sizes: tuple[int, ...]) -> None:
    subject = MAKE[name](sizes)
    plain, fast = (subject.make(torch.float64) for _ in range(2))
    accelerate(fast, check=False)
    expected = guests.outcome(subject, plain)
    outcome = guests.outcome(subject, fast)
    for key in guests.QUANTITIES:
        scale = max(1.0, float(expected[key].abs().max()))
        assert (outcome[key] - expected[key]).abs().max() <= 1e4 * torch.finfo(torch.float64).eps * scale, key


def test_a_step_of_an_optimizer_that_was_there_before(subject: Guest) -> None:
    plain, fast = (subject.make(torch.float64) for _ in range(2))
    gradient = guests.outcome(subject, plain)["gradient"].abs().max()
    # not Adam: its first step divides each gradient by itself, and rounding errors of zeros with it
    optimizers = [torch.optim.SGD(network.parameters(), lr=float(0.1 / gradient)) for network in (plain, fast)]
    before = copy.deepcopy(dict(fast.named_parameters()))
    accelerate(fast)
    for network, optimizer in zip((plain, fast), optimizers, strict=True):
        guests.force_loss(subject.evaluate(network, True)[1]).backward()
        optimizer.step()
    assert any(not torch.equal(p, before[name]) for name, p in fast.named_parameters())
    theirs = dict(plain.named_parameters())
    for name, parameter in fast.named_parameters():
        # steps of at most 0.1 have the relative errors of the gradients, and one rounding of the sum
        assert torch.allclose(parameter, theirs[name], rtol=4 * torch.finfo(torch.float64).eps, atol=1e-13), name
    assert close(subject, guests.outcome(subject, fast), guests.outcome(subject, plain))


def test_state_dicts_load_strictly_in_both_directions(subject: Guest) -> None:
    plain, fast = (subject.make(torch.float64) for _ in range(2))
    accelerate(fast)
    assert list(plain.state_dict()) == list(fast.state_dict())
    other = subject.make(torch.float64)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.01)
    fast.load_state_dict(other.state_dict())
    expected = guests.outcome(subject, other)
    assert close(subject, guests.outcome(subject, fast), expected)
    plain.load_state_dict(fast.state_dict())
    assert same(guests.outcome(subject, plain), expected)


def test_saved_and_copied_networks(subject: Guest) -> None:
    fast = subject.make(torch.float64)
    accelerate(fast)
    expected = guests.outcome(subject, fast)
    loaded, *others = reversed(copies(fast))
    for network in (loaded, *others):
        assert replaced(network) == replaced(fast) > 0
        assert same(guests.outcome(subject, network), expected)
        assert not {id(p) for p in network.parameters()} & {id(p) for p in fast.parameters()}
    plain = guests.outcome(subject, subject.make(torch.float64))
    assert same(guests.outcome(subject, deaccelerate(loaded)), plain)
    assert replaced(loaded) == 0


def test_back_to_the_original(subject: Guest) -> None:
    plain, fast = (subject.make(torch.float64) for _ in range(2))
    kinds = {name: type(module) for name, module in fast.named_modules()}
    accelerate(fast)
    with torch.no_grad():
        for network in (plain, fast):
            for parameter in network.parameters():
                parameter.mul_(0.99)
    assert deaccelerate(fast) is fast
    assert {name: type(module) for name, module in fast.named_modules()} == kinds
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert same(guests.outcome(subject, fast), guests.outcome(subject, plain))
