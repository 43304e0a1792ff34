"""Calls of forms, seen by a test."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from eqlayers.core.backends.ahead import Results, instead


def watching(watch: Callable[[Any, Callable[[], Results]], Results]) -> AbstractContextManager[None]:
    """A block in which every call of a form is ``watch(request, run)``, which returns what ``run()`` does."""
    return instead(lambda request, find, *call: watch(request, lambda: find()(*call)))
