"""Errors of the C kernels; the backends' adapters translate them."""

from __future__ import annotations


class CompilerError(RuntimeError):
    """No shared object could be made or loaded: the compiler is missing, failed, was killed, or wrote nonsense."""
