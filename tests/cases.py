"""Settings and problems that tests of several folders use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import e3nn

from eqlayers.testing.defaults import default_dtype

__all__ = ["default_dtype", "e3nn_defaults", "quiet_warnings"]


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Other packages warn when their networks are made, and warnings are errors in tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def e3nn_defaults(**options: Any) -> Iterator[None]:
    """Layers of e3nn that are made inside have these options."""
    before = e3nn.get_optimization_defaults()
    e3nn.set_optimization_defaults(**options)
    try:
        yield
    finally:
        e3nn.set_optimization_defaults(**before)
