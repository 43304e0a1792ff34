"""Times of `eqlayers bench networks`: which rows are timed on how many threads, and what would not fit into memory."""

import pytest
import torch

from eqlayers.bench.networks import timing
from eqlayers.bench.networks.entrants import FORCES, PEER, TRAINING, Entrant
from eqlayers.bench.networks.timing import Series, timed_rows, training_step
from eqlayers.bench.results import quiet
from tests.bench.networks.test_check import Toy, evaluate

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
