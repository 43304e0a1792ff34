"""Long runs have a bar once they are long, and a first Ctrl-C asks them to stop at the end of a step."""

from __future__ import annotations

import io
import signal
import sys
import threading

import pytest

from eqlayers.simulate import watch
from tests.each import each


def test_the_first_ctrl_c_asks_and_the_second_breaks_off() -> None:
    before = signal.getsignal(signal.SIGINT)
    with watch.stop_asked() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert asked()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_beside_the_main_one_is_never_asked() -> None:
    """Signals are handled in the main thread alone."""
    answers: list[bool] = []

    def work() -> None:
        with watch.stop_asked() as asked:
            answers.append(asked())

    before, thread = signal.getsignal(signal.SIGINT), threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
    assert signal.getsignal(signal.SIGINT) is before


@each("terminal", [False, True])
def test_a_bar_is_shown_on_a_terminal_alone(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(watch, "_PATIENCE", 100.0)
    with watch.progress("relaxing", 3) as say:
        say(1, "soon")
        assert written.getvalue() == "", "a short run has none"
        monkeypatch.setattr(watch, "_PATIENCE", -1.0)
        say(2, "0.1 eV/A")
    text = written.getvalue()
    assert ("relaxing" in text, "0.1 eV/A" in text, "2/3" in text) == (terminal,) * 3
    assert ("\x1b[?25h" in text) is terminal, "the cursor is shown again"
