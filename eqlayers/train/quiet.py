"""Keep out of a run's output what no user can act on, and say the rest of Lightning's lines in plain words."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

MESSAGES = re.compile(
    r"litlogger|litmodels|TPU available|to estimate number of stepping batches|Seed set to"
    r"|^Restor(ing|ed all) states from|^Loaded model weights from"  # the command names the file that it reads
    r"|^Found current_model_state in the checkpoint"
    r"|^GPU available|^LOCAL_RANK: |that has Tensor Cores"  # the line of the network names the device
    r"|`max_epochs=\d+` reached"  # the lines of the epochs show it
    r"|^\s*Detected KeyboardInterrupt|Received SIGTERM"  # the command says how to go on
)
#: Lines of Lightning, and the lines that are printed in their place.
PLAIN = (
    (re.compile(r"^`Trainer.fit` stopped: `max_steps=(\d+)` reached"), r"training ends: trainer.max_steps is \1"),
    (re.compile(r"^`Trainer.fit` stopped: No training batches"), "training ends: there are no batches to train on"),
    (re.compile(r"^Time limit reached. Elapsed time is (\S+)\. "), r"training ends: trainer.max_time ended at \1"),
)
LOGGERS = (
    *("pytorch.utilities.rank_zero", "pytorch.accelerators.cuda", "pytorch.trainer.connectors.signal_connector"),
    *("fabric.utilities.rank_zero", "fabric.utilities.seed"),
)
WARNINGS = (
    r".*isinstance\(treespec",  # a deprecation inside Lightning
    r"[\s\S]*(was deprecated in v|JsonargparseDeprec)",  # calls that Lightning makes
    r"The number of training batches .* is smaller than the logging interval",  # epochs are shown, not steps
    r".*does not have many workers",  # graphs are small: batches are built faster than sent
    r"The dirpath has changed",  # a run that begins with the checkpoint of another one has a best of its own
    r"Checkpoint directory .* exists and is not empty",  # the command line says it in its own words
)


def _wanted(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    for pattern, plain in PLAIN:
        if match := pattern.search(text):
            record.msg, record.args = match.expand(plain), ()
            return True
    return not MESSAGES.search(text)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide messages that a user of this package cannot act on, and say how a training ended in plain words.

    Every other message and warning is shown.

    Example:
        >>> with quiet_lightning():
        ...     warnings.warn("The Trainer does not have many workers")
    """
    loggers = [logging.getLogger(f"lightning.{name}") for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(_wanted)
    try:
        with warnings.catch_warnings():
            for pattern in WARNINGS:
                warnings.filterwarnings("ignore", pattern)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_wanted)
