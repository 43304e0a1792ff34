"""Settings and problems that tests of several folders use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """e3nn rounds its constants to the default dtype of the moment when a layer is made."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Other packages warn when their networks are made, and warnings are errors in tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
