"""Backends: ways to run layers, registered in order of preference."""

from __future__ import annotations

from . import cpu, triton, whole
from .registry import BACKENDS, Backend, check_backend, find, register, select, verdicts

_TRITON = Backend("triton", triton.refuse, only_named=triton.only_named, kernels=triton.make_runner)
_CPU = Backend("cpu", cpu.refuse, kernels=cpu.make_runner)
for _backend in (_TRITON, _CPU, whole.TORCH, whole.SPARSE, whole.REFERENCE):  # order of preference
    register(_backend)

__all__ = ["BACKENDS", "Backend", "check_backend", "find", "register", "select", "verdicts"]
