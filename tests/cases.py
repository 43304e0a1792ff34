"""Settings and problems that tests of several folders use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from eqlayers.testing.defaults import default_dtype

__all__ = ["default_dtype", "quiet_warnings"]


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Other packages warn when their networks are made, and warnings are errors in tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
