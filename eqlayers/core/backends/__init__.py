"""Backends: ways to run layers, and the one place where their order is decided."""

from __future__ import annotations

from . import cpu, cpu_formulas, triton, triton_formulas, whole
from .registry import BACKENDS, Backend, check_backend, find, register, select, verdicts

_TRITON = Backend(
    "triton",
    triton.refuse,
    only_named=triton.only_named,
    kernels={"product": triton.make_runner, "formula": triton_formulas.make_runner},
)
_CPU = Backend("cpu", cpu.refuse, kernels={"product": cpu.make_runner, "formula": cpu_formulas.make_runner})
for _backend in (_TRITON, _CPU, whole.TORCH, whole.SPARSE, whole.REFERENCE):  # order of preference
    register(_backend)

__all__ = ["BACKENDS", "Backend", "check_backend", "find", "register", "select", "verdicts"]
