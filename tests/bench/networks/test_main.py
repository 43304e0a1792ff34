"""The main job of `eqlayers bench networks`: a network that differs from e3nn's layers is not timed."""

import pytest
import torch

from eqlayers.bench.networks import timing
from eqlayers.bench.networks.entrants import LIMITS, TRAINING, Entrant
from eqlayers.bench.networks.main import MAIN, ROWS, MainJob, measure_main
from eqlayers.bench.networks.timing import Series
from eqlayers.bench.results import quiet
from tests.bench.networks.test_check import Toy, evaluate
from tests.bench.test_step import molecules


def test_steps_of_networks_that_agree_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong one comes last, with its error; the others are compared with the first."""
    monkeypatch.setattr(timing, "refusal", lambda device: "not here")
    steps: list[str] = []

    def entrant(name: str, kind: str) -> Entrant:
        return Entrant(name, kind, Toy(1.0), evaluate, step=lambda: steps.append(name))

    names = list(ROWS)
    errors = [0.0, 2 * LIMITS["gradients"], 0.5 * LIMITS["gradients"]]
    job = MainJob([entrant(name, kind) for name, kind in ROWS.items()], errors, molecules())
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
