"""A configuration of `eqlayers fit` from a file of structures: look at the file, choose, write with the reasons."""

from .command import for_structures, run

__all__ = ["for_structures", "run"]
