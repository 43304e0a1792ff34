"""Keep advertisements and other libraries' deprecation notes out of a run's output."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_lightning"]

MESSAGES = re.compile(r"litlogger|litmodels|TPU available|GPU available: False|to estimate number of stepping batches")
WARNINGS = (
    r".*isinstance\(treespec",  # a deprecation inside Lightning
    r"[\s\S]*(was deprecated in v|JsonargparseDeprec)",  # calls that Lightning makes
    r".*does not have many workers",  # graphs are small: batches are built faster than sent
    r"Checkpoint directory .* exists and is not empty",  # the command line says it in its own words
)


def _wanted(record: logging.LogRecord) -> bool:
    return not MESSAGES.search(record.getMessage())


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Hide what a user of this package can neither use nor mend; every other message and warning is left.

    Example:
        >>> with quiet_lightning():
        ...     warnings.warn("The Trainer does not have many workers")
    """
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(_wanted)
    try:
        with warnings.catch_warnings():
            for pattern in WARNINGS:
                warnings.filterwarnings("ignore", pattern)
            yield
    finally:
        logger.removeFilter(_wanted)
