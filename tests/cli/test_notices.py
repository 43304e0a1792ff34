"""Warnings of a command are lines, each once; long runs and compilation have bars; a first Ctrl-C is a request."""

from __future__ import annotations

import io
import signal
import sys
import threading
import warnings

import pytest
from lightning.fabric.utilities.warnings import PossibleUserWarning

from eqlayers.cli import notices
from eqlayers.cli.notices import shown, warnings_as_lines
from eqlayers.errors import EqlayersWarning
from eqlayers_kernels import waiting
from eqlayers_kernels.c.build import cache as disk
from tests.each import each


class Written(io.StringIO):
    """Standard error that can be waited for."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__()
        self.terminal, self.event = terminal, threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n"):
            self.event.set()
        return written


def while_compiling(monkeypatch: pytest.MonkeyPatch, written: Written) -> str:
    """The text written where a command compiles two kernels at a time, and one later."""
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", written)
    with shown():
        count = waiting._counts.get()[-1]
        count.lock.acquire()  # both before anything is said
        with waiting.compilation(disk.location), waiting.compilation(disk.location):
            count.lock.release()
            assert written.event.wait(60)
        with waiting.compilation(disk.location):
            pass
    return written.getvalue()


def test_one_line_says_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = while_compiling(monkeypatch, Written()).splitlines()
    assert line.startswith("compiling 2 kernels, once; kept in ")


def test_a_terminal_has_a_bar_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "IDLE", 3600.0)  # the end of the command ends the bar
    monkeypatch.setenv("TERM", "xterm")
    text = while_compiling(monkeypatch, Written(terminal=True))
    assert text.startswith("compiling 2 kernels, once; kept in ")
    assert "kernels" in text.split("\n", 1)[1]
    assert "\x1b[?25h" in text, "the cursor is shown again"


def test_commands_that_compile_nothing_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with shown():
        pass
    assert capsys.readouterr() == ("", "")


def test_warnings_are_lines_and_come_once(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with warnings_as_lines():
            for _ in range(2):
                warnings.warn("frames are\n in two parts", stacklevel=1)
            warnings.warn_explicit("of others", UserWarning, "/env/lib/site-packages/torch/nn/linear.py", 7)
            warnings.warn_explicit("ours", EqlayersWarning, "/env/lib/site-packages/lightning/trainer.py", 7)
            warnings.warn_explicit("theirs", PossibleUserWarning, "my_training.py", 7)
        with pytest.warns(UserWarning, match="afterwards as before"):
            warnings.warn("afterwards as before", stacklevel=1)
    lines = ["frames are in two parts", "torch: of others", "ours", "lightning: theirs"]
    assert capsys.readouterr().err.splitlines() == [f"warning: {line}" for line in lines]


@pytest.mark.parametrize("kernels", [0, 1])
def test_ctrl_c_tells_of_kernels_where_some_were_compiled(kernels: int) -> None:
    def command() -> None:
        with shown():
            for _ in range(kernels):
                with waiting.compilation(str):
                    pass
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as ended:
        command()
    assert ended.value.args == ("kernels that were compiled are kept",) * kernels


def test_the_first_ctrl_c_asks_and_the_second_breaks_off() -> None:
    before = signal.getsignal(signal.SIGINT)
    with notices.stop_asked() as asked:
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
        with notices.stop_asked() as asked:
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
    monkeypatch.setattr(notices, "_PATIENCE", 100.0)
    with notices.progress("relaxing", 3) as say:
        say(1, "soon")
        assert written.getvalue() == "", "a short run has none"
        monkeypatch.setattr(notices, "_PATIENCE", -1.0)
        say(2, "0.1 eV/A")
    text = written.getvalue()
    assert ("relaxing" in text, "0.1 eV/A" in text, "2/3" in text) == (terminal,) * 3
    assert ("\x1b[?25h" in text) is terminal, "the cursor is shown again"


def test_a_run_of_unknown_length_has_a_bar_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar with an end of 0 is full at once, and its clock stands still."""
    written = Written(terminal=True)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(notices, "_PATIENCE", -1.0)
    with notices.progress("predict") as say:
        say(2, "2 structures")
    assert "2/?" in written.getvalue()
