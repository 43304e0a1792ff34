"""The history of a run: the time that a fit has to go by the pace of its epochs, and files that are damaged."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.callbacks.timer import Timer

from eqlayers.errors import DataError
from eqlayers.train import history
from eqlayers.train.history import Bar, Pace, in_words, read_history
from tests.each import each


def paced(
    monkeypatch: pytest.MonkeyPatch, epochs: list[float], now: float, total: float = 100, timers: tuple[Any, ...] = ()
) -> tuple[Pace, Any]:
    """The pace of epochs of ten steps that ended at some seconds, and the trainer."""
    plan = SimpleNamespace(plan=SimpleNamespace(steps=total))
    pace, trainer = Pace(), SimpleNamespace(lightning_module=plan, callbacks=timers)
    for number, second in enumerate([0.0, *epochs]):
        monkeypatch.setattr(history.time, "perf_counter", lambda second=second: second)
        trainer.global_step = 10 * number
        if number:
            pace.mark(trainer)
        else:
            pace.start(trainer)
    monkeypatch.setattr(history.time, "perf_counter", lambda: now)
    return pace, trainer


@pytest.mark.parametrize(
    ("epochs", "now", "total", "left"),
    [
        ([], 5.0, 100, None),
        ([30.0], 30.0, 100, 270.0),
        ([30.0], 35.0, 100, 265.0),
        ([30.0, 32.0, 34.0], 34.0, 100, 14.0),  # the first epoch compiled
        ([30.0, 32.0], 32.0, 20, 0.0),
        ([30.0], 30.0, math.inf, None),
    ],
)
def test_the_time_to_go(epochs: list[float], now: float, total: float, left: float | None, monkeypatch) -> None:
    pace, trainer = paced(monkeypatch, epochs, now, total)
    assert pace.left(trainer) == left


def test_a_time_limit_ends_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(duration="00:00:01:00")
    monkeypatch.setattr(timer, "time_remaining", lambda: 12.0)
    pace, trainer = paced(monkeypatch, [30.0], 30.0, timers=(timer,))
    assert pace.left(trainer) == 12.0


def test_the_bar_of_a_terminal_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RichProgressBar, "get_metrics", lambda *_: {"v_num": 0, "val/mae": 1.0})
    assert Bar(Pace()).get_metrics(*paced(monkeypatch, [], 0.0)[::-1]) == {"val/mae": 1.0}
    pace, trainer = paced(monkeypatch, [300.0], 300.0)
    assert list(Bar(pace).get_metrics(trainer, None).items()) == [("to go", "about 45 min"), ("val/mae", 1.0)]
    pace, trainer = paced(monkeypatch, [300.0], 300.0, total=10)
    assert Bar(pace).get_metrics(trainer, None) == {"val/mae": 1.0}


def test_damaged_history_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text("[{")
    with pytest.raises(DataError, match=r"the history of a run must .*got in .*history.json, line 1: .*"):
        read_history(tmp_path)


@each(
    "seconds, words",
    [(0.2, "1 s"), (59.4, "59 s"), (59.6, "1 min"), (3569.0, "59 min"), (3571.0, "1 h 0 min"), (35_970.0, "10 h")],
)
def test_times_are_in_the_unit_that_they_are_rounded_to(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
