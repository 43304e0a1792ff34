"""Errors of the Triton kernels; the backends' adapters translate them."""

from __future__ import annotations


class KernelError(RuntimeError):
    """A kernel does not compile or cannot be loaded, also when planned for fewer registers."""
