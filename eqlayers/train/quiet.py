"""Keep advertisements and other libraries' deprecation notes out of a run's output."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_lightning"]

MESSAGES = re.compile(
    r"litlogger|litmodels|TPU available|GPU available: False|to estimate number of stepping batches|Seed set to"
    r"|^Restor(ing|ed all) states from|^Loaded model weights from"  # the command names the file that it reads
)
LOGGERS = ("pytorch.utilities.rank_zero", "fabric.utilities.seed")
WARNINGS = (
    r".*isinstance\(treespec",  # a deprecation inside Lightning
    r"[\s\S]*(was deprecated in v|JsonargparseDeprec)",  # calls that Lightning makes
    r"The number of training batches .* is smaller than the logging interval",  # epochs are shown, not steps
    r".*does not have many workers",  # graphs are small: batches are built faster than sent
    r"Checkpoint directory .* exists and is not empty",  # the command line says it in its own words
)


def _wanted(record: logging.LogRecord) -> bool:
    return not MESSAGES.search(record.getMessage())


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide messages that a user of this package cannot act on; every other message and warning is shown.

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
