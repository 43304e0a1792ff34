"""Errors of the Triton kernels; the backends' adapters translate them."""

from __future__ import annotations


class KernelError(RuntimeError):
    """A kernel of a request does not compile or cannot be loaded, with fewer registers either."""
