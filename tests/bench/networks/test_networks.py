"""Rows of `eqlayers bench networks`: ways to run a network, the main job, times, and the parts of a time."""

from typing import Any

import pytest
import torch

from eqlayers import Graph, nn
from eqlayers.bench.measure import KERNELS, PRODUCTS, purpose_of_form, time_by_part
from eqlayers.bench.networks import timing
from eqlayers.bench.networks.atoms import clusters, crystal
from eqlayers.bench.networks.entrants import (
    COMPRESSED,
    EXACT,
    FORCES,
    LIMITS,
    LIMITS_OF_SYMMETRIX,
    LIVE,
    NATIVE,
    PEER,
    TRAINING,
    Entrant,
    Maker,
    Tables,
    copied,
    enter,
    makers,
    of_models,
)
from eqlayers.bench.networks.packages import Subject
from eqlayers.bench.networks.run import MAIN, MAIN_ROWS, MainJob, measure_main
from eqlayers.bench.networks.timing import Series, timed_rows, training_step
from eqlayers.bench.results import quiet
from eqlayers.models import MACE, Potential
from tests.bench.networks.test_check import Toy, evaluate
from tests.bench.test_step import molecules

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


def test_steps_of_networks_that_agree_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong one comes last, with its error; the others are compared with the first."""
    monkeypatch.setattr(timing, "refusal", lambda device: "not here")
    steps: list[str] = []

    def entrant(name: str, kind: str) -> Entrant:
        return Entrant(name, kind, Toy(1.0), evaluate, step=lambda: steps.append(name))

    names = list(MAIN_ROWS)
    errors = [0.0, 2 * LIMITS["gradients"], 0.5 * LIMITS["gradients"]]
    job = MainJob([entrant(name, kind) for name, kind in MAIN_ROWS.items()], errors, molecules())
    rows = list(measure_main(job, Series(MAIN, torch.device("cpu"), 2, [1], quiet)))
    assert [(row["implementation"], row["status"]) for row in rows] == [
        (names[0], "ok"),
        (names[2], "ok"),
        (names[1], "wrong"),
    ]
    assert set(steps) == {names[0], names[2]}
    assert [row["errors"] for row in rows] == [{"gradients": errors[place]} for place in (0, 2, 1)]
    assert {(row["network"], row["what"], row["atoms"], row["edges"], row["compared_at"]) for row in rows} == {
        (MAIN, TRAINING, 6, 12, 6)
    }
    assert [row["ratio"] is None for row in rows] == [True, False, True]
    assert rows[2]["reason"] == "differs from the reference by more than is allowed"


def test_kernels_are_told_by_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer alone, forward and backward: its kernels are of one kind."""
    seen: set[str] = set()

    def noted(key: str) -> str:
        seen.add(purpose_of_form(key))
        return purpose_of_form(key)

    monkeypatch.setattr("eqlayers.bench.measure.purpose_of_form", noted)
    vectors, pos = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    graph = Graph(torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]), 4)
    geometry = nn.EdgeGeometry("0e + 1o")
    gate = nn.GatedNonlinearity("4x0e + 4x1o")
    product = nn.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)], shared_weights=False)
    features = torch.randn(5, product.irreps_in1.dim, requires_grad=True)
    layers = {
        "harmonics": lambda: sum(part.sum() for part in geometry(pos, graph) if part is not None),
        "gates": lambda: gate(torch.randn(4, gate.irreps_in.dim, requires_grad=True)),
        "convolutions": lambda: product(features, vectors, torch.randn(5, product.weight_numel)),
    }
    for kind, call in layers.items():
        seen.clear()
        time_by_part(lambda call=call: call().square().sum().backward())
        assert seen == {kind}


def test_parts_of_a_whole_network() -> None:
    torch.manual_seed(0)
    network = Potential(MACE([7, 13], "4x0e + 4x1o", lmax=1, layers=1, correlation=2, knots=50), [7, 13]).float()
    structures = crystal(16, network.cutoff).structures(torch.float32)
    shares, operators = time_by_part(lambda: network(structures))
    assert operators > 20
    assert all(shares[part] > 0 for part in (*KERNELS[:4], PRODUCTS)), shares
    assert sum(shares.values()) == pytest.approx(1)


HEAD = {"network": "toy", "atoms": 4, "edges": 12, "what": FORCES}


def series(*threads: int) -> Series:
    return Series("toy", torch.device("cpu"), 2, threads, quiet)


def test_memory_that_would_not_fit_is_told_by_the_size_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten atoms took 1 GiB, so that forty need 4.4, of which four fifths of the free memory must be enough."""
    one = series(1)
    free: list[float | None] = [6.0]
    monkeypatch.setattr(timing, "free_memory", lambda device: None if free[0] is None else int(free[0] * 2**30))
    assert one.too_large("a", FORCES, 40) is None, "nothing is known of it yet"
    one.peaks["a", FORCES] = (10, 2**30)
    assert one.too_large("a", TRAINING, 40) is None
    assert one.too_large("a", FORCES, 40) is None
    free[0] = 5.0
    assert one.too_large("a", FORCES, 40) == "would need about 4.4 GiB, as 10 atoms took 1.0; 5.0 GiB are free"
    free[0] = None
    assert one.too_large("a", FORCES, 40) is None, "memory that cannot be asked for"


def test_a_step_lowers_the_loss_of_forces() -> None:
    """Adam moves each weight by its rate, against the gradient."""
    network = Toy(1.0).double()
    before = [p.detach().clone() for p in network.parameters()]
    step = training_step(Entrant("", PEER, network, evaluate))
    first, second = step(), step()
    assert float(second) < float(first)
    moves = torch.cat([(p.detach() - b).flatten() for p, b in zip(network.parameters(), before, strict=True)])
    assert moves.abs().max() <= 2.001e-5
    assert moves.abs().max() > 1e-5


def test_rows_of_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are measured once; an entrant that keeps its threads is timed on these alone, and has no operators."""
    monkeypatch.setattr(timing, "refusal", lambda device: "not here")
    entrants = [Entrant(name, PEER, Toy(1.0), evaluate, threads=t) for name, t in (("a", 0), ("b", 0), ("c", 2))]
    one = series(1, 2)
    one.checked["b", FORCES] = (4, {"forces": 1e-7}, True)
    rows = list(timed_rows(one, HEAD, entrants, "a"))
    assert [f"{row['threads']}{row['implementation']}" for row in rows] == ["1a", "1b", "2a", "2b", "2c"]
    assert [row["shares"] is None for row in rows] == [False, False, True, True, True]
    assert [row["ratio"] is None for row in rows] == [True, False, True, False, False]
    assert [row["errors"] for row in rows[:2]] == [None, {"forces": 1e-7}]
    assert all(HEAD.items() <= row.items() for row in rows)
    assert all(row["memory_bytes"] is None and row["status"] == "ok" for row in rows)
