"""Backends: ways to run the sparse operations, and the one place where their order is decided."""

from __future__ import annotations

from . import cpu, reference, torch, triton
from .registry import BACKENDS, Backend, check_backend, find, register, select, verdicts

for _module in (triton, cpu, torch, reference):  # order of preference
    register(_module.BACKEND)

__all__ = ["BACKENDS", "Backend", "check_backend", "find", "register", "select", "verdicts"]
