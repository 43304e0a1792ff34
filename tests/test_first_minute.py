"""The first minute of a stranger: kernels that are compiled, the network in a line, warnings as lines."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest

from eqlayers import notices
from eqlayers.models import MoleculeNetwork
from eqlayers.notices import shown, warnings_as_lines
from eqlayers.train import LayerSummary, page, quiet_lightning
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
        with waiting.compilation(disk.kept), waiting.compilation(disk.kept):
            count.lock.release()
            assert written.event.wait(60)
        with waiting.compilation(disk.kept):
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
        with pytest.warns(UserWarning, match="afterwards as before"):
            warnings.warn("afterwards as before", stacklevel=1)
    assert capsys.readouterr().err == "warning: frames are in two parts\nwarning: torch: of others\n"


def test_a_fit_says_its_network_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    module = SimpleNamespace(model=MoleculeNetwork(hidden="4x0e + 4x1o", layers=1, radial_hidden=(8,)), device="cpu")
    trainer = SimpleNamespace(is_global_zero=True)
    LayerSummary().on_fit_start(trainer, module)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("network: MoleculeNetwork on cpu, ")
    assert re.search(r", \d+ equivariant layers with backend ", line)
    layers = page.network(module.model, "cpu", {}).blocks[0].rows["layers"]
    assert line.endswith(f" parameters, {layers}"), "the report counts otherwise"
    LayerSummary(whole=True).on_fit_start(trainer, module)
    assert "irreps in" in capsys.readouterr().out


def test_what_no_user_can_act_on_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    said = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    with caplog.at_level(logging.INFO, "lightning"), quiet_lightning():
        logging.getLogger("lightning.fabric.utilities.seed").info("[rank: 0] Seed set to 2026")
        said.info("Restoring states from the checkpoint path at a.ckpt")
        said.info("Loaded model weights from the checkpoint at a.ckpt")
        said.info("Found current_model_state in the checkpoint. This will be used to initialize the model.")
        said.info("`Trainer.fit` stopped: `max_epochs=2` reached.")
        said.info("GPU available: True (cuda), used: True")
        said.info("You are using a CUDA device ('NVIDIA H200') that has Tensor Cores. To properly utilize them, ...")
        logging.getLogger("lightning.pytorch.accelerators.cuda").info("LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0]")
        said.info("\nDetected KeyboardInterrupt, attempting graceful shutdown ...")
        signals = logging.getLogger("lightning.pytorch.trainer.connectors.signal_connector")
        signals.info("[rank: 0] Received SIGTERM: 15")
        said.warning("Bypassing `configure_model`")
    assert [record.getMessage() for record in caplog.records] == ["Bypassing `configure_model`"]


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ("`Trainer.fit` stopped: `max_steps=3` reached.", "training ends: trainer.max_steps is 3"),
        (
            "Time limit reached. Elapsed time is 0:00:02. Signaling Trainer to stop.",
            "training ends: trainer.max_time ended at 0:00:02",
        ),
        ("`Trainer.fit` stopped: No training batches.", "training ends: there are no batches to train on"),
    ],
)
def test_the_end_of_a_training_is_told_in_plain_words(said: str, plain: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lightning"), quiet_lightning():
        logging.getLogger("lightning.pytorch.utilities.rank_zero").info(said)
    assert [record.getMessage() for record in caplog.records] == [plain]


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
