"""A configuration of `eqlayers fit` from a file of structures: look at the file, choose, write with the reasons."""

from .command import run, with_structures

__all__ = ["run", "with_structures"]
