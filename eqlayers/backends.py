"""Backends: ways to run layers, and the one place where their order is decided."""

from .core.backends import BACKENDS, Backend, check_backend, find, register, select, verdicts
from .names import answer_names

__all__ = ["BACKENDS", "Backend", "check_backend", "find", "register", "select", "verdicts"]

answer_names(__name__)
