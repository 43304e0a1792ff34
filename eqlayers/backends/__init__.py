"""Backends: ways to run layers, and the one place where their order is decided."""

from __future__ import annotations

from . import cpu, triton, whole
from .registry import BACKENDS, Backend, check_backend, find, register, select, verdicts

for _backend in (triton.BACKEND, cpu.BACKEND, whole.TORCH, whole.SPARSE, whole.REFERENCE):  # order of preference
    register(_backend)

__all__ = ["BACKENDS", "Backend", "check_backend", "find", "register", "select", "verdicts"]
