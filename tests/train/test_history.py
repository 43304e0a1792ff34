"""The history of a run: the time that a fit has to go by the pace of its epochs, and files that are damaged."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.callbacks.timer import Timer

from eqlayers.errors import DataError
from eqlayers.train import history
from eqlayers.train.history import Bar, in_words, read_history, seconds_left
from tests.each import each


def paced(
    monkeypatch: pytest.MonkeyPatch, epochs: list[float], now: float, total: float = 100, timers: tuple[Any, ...] = ()
) -> tuple[Any, list[tuple[int, float]]]:
    """A trainer, and the marks of epochs of ten steps that ended at some seconds."""
    plan = SimpleNamespace(plan=SimpleNamespace(steps=total))
    monkeypatch.setattr(history.time, "perf_counter", lambda: now)
    marks = [(10 * number, second) for number, second in enumerate([0.0, *epochs])]
    return SimpleNamespace(lightning_module=plan, callbacks=timers), marks


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
    assert seconds_left(*paced(monkeypatch, epochs, now, total)) == left


def test_a_time_limit_ends_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(duration="00:00:01:00")
    monkeypatch.setattr(timer, "time_remaining", lambda: 12.0)
    assert seconds_left(*paced(monkeypatch, [30.0], 30.0, timers=(timer,))) == 12.0


def test_the_bar_of_a_terminal_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RichProgressBar, "get_metrics", lambda *_: {"v_num": 0, "val/mae": 1.0})
    trainer, marks = paced(monkeypatch, [], 0.0)
    assert Bar([]).get_metrics(trainer, None) == Bar(marks).get_metrics(trainer, None) == {"val/mae": 1.0}
    trainer, marks = paced(monkeypatch, [300.0], 300.0)
    assert list(Bar(marks).get_metrics(trainer, None).items()) == [("to go", "about 45 min"), ("val/mae", 1.0)]
    trainer, marks = paced(monkeypatch, [300.0], 300.0, total=10)
    assert Bar(marks).get_metrics(trainer, None) == {"val/mae": 1.0}


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
