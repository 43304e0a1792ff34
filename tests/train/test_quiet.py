"""Lines of Lightning that no user can act on are not printed, and the end of a training is told in plain words."""

import logging
import warnings

import pytest

from eqlayers.train import quiet_lightning
from eqlayers.train.run import LOGGERS


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


def test_warnings_about_small_data_are_hidden_and_others_are_not() -> None:
    """Inside alone: the filters go with the block, also where it ends with an error."""

    def command() -> None:
        with quiet_lightning():
            warnings.warn("The 'train_dataloader' does not have many workers", stacklevel=1)
            warnings.warn("Checkpoint directory runs/a exists and is not empty.", stacklevel=1)
            warnings.warn("the loss is negative", stacklevel=1)
            raise KeyError

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(KeyError):
            command()
        warnings.warn("The 'val_dataloader' does not have many workers", stacklevel=1)
    assert [str(one.message)[:18] for one in shown] == ["the loss is negati", "The 'val_dataloade"]
    assert not any(logging.getLogger(f"lightning.{name}").filters for name in LOGGERS)
