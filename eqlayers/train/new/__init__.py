"""Generate a commented configuration of `eqlayers fit` from a file of structures."""

from .command import run, with_structures

__all__ = ["run", "with_structures"]
