"""The rows of `eqlayers bench networks`: which ways there are to run a network, and why one cannot be made."""

from typing import Any

import pytest
import torch

from eqlayers.bench.networks.entrants import (
    COMPRESSED,
    EXACT,
    LIMITS_OF_SYMMETRIX,
    LIVE,
    NATIVE,
    PEER,
    Entrant,
    Maker,
    Tables,
    copied,
    enter,
    makers,
    of_models,
)
from eqlayers.bench.peers.atoms import clusters
from eqlayers.bench.peers.networks import Subject
from tests.bench.networks.test_check import Toy, evaluate

CPU, TABLES = torch.device("cpu"), Tables(50, 1e-3)


def test_training_wants_gradients_of_what_was_trained() -> None:
    network = Toy(1.0)
    network.second.requires_grad_(False)
    one = Entrant("", PEER, network, evaluate)
    one.prepare(False)
    assert not network.first.requires_grad
    one.prepare(True)
    assert network.first.requires_grad
    assert not network.second.requires_grad


def subject(peer: str = "mace-torch", **more: Any) -> Subject:
    return Subject("toy", clusters((2,)), lambda dtype: Toy(1.0).to(dtype), evaluate, peer, **more)


def test_the_reference_comes_first_and_symmetrix_is_beside_mace_alone() -> None:
    assert list(makers(subject(""), ("compiled", "symmetrix"))) == [NATIVE, LIVE, COMPRESSED]
    names = list(makers(subject("nequip"), ("compiled", "symmetrix")))
    assert names[:2] == ["nequip, eager", "nequip, compiled"]
    assert names[2:] == ["eqlayers, accelerate", "eqlayers, accelerate, tables", NATIVE, LIVE, COMPRESSED]
    assert list(makers(subject(), ())) == ["mace-torch, eager", *names[2:]]
    rows = makers(subject(), ("symmetrix",))
    more = [name for name in rows if name not in makers(subject(), ())]
    assert more == ["symmetrix-xl, prepared", "symmetrix-xl, by ASE", f"{COMPRESSED}, by ASE"]
    assert [rows[name].limits for name in more] == [LIMITS_OF_SYMMETRIX, LIMITS_OF_SYMMETRIX, None]


def test_a_row_that_cannot_be_made_says_why() -> None:
    rows = makers(subject(), ("compiled",))
    for name, reason in {
        "mace-torch, compiled": "mace-torch has no compiled form of this network",
        NATIVE: "there is no conversion of this network of mace-torch",
    }.items():
        assert enter(name, rows[name], subject(), TABLES, CPU) == reason

    def broken(*args: Any) -> torch.nn.Module:
        raise ValueError("no such option")

    assert enter("peer", Maker(PEER, broken), subject(), TABLES, CPU) == "ValueError: no such option"
    with pytest.raises(ValueError, match="no such option"):  # a fault of this package is no reason
        enter("ours", Maker(EXACT, broken), subject(), TABLES, CPU)


def test_networks_of_this_package_have_the_same_numbers_in_every_dtype() -> None:
    options = {"hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1}
    one = of_models("TFN", options, sample=clusters((2,)), scale=3.0, shift=0.25)
    single, double = (one.make(dtype).state_dict() for dtype in (torch.float32, torch.float64))
    assert all(torch.equal(single[name].double(), double[name].double()) for name in single)
    potential = one.make(torch.float64)
    assert potential.shifts.tolist() == [0.25 - 1 - number for number in range(len(potential.shifts))]
    other = copied(potential)
    with torch.no_grad():
        other.scales.add_(1)
    assert set(potential.scales.tolist()) == {3.0}
