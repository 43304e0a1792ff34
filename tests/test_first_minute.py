"""The first minute of a training: the network in a line, and its end in plain words."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import pytest

from eqlayers.models import MoleculeNetwork
from eqlayers.train import LayerSummary, page, quiet_lightning


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
