"""Warnings of a command are lines, each once; a line and a bar tell of kernels that are compiled."""

from __future__ import annotations

import io
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
