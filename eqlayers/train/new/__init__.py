"""From a file of structures to a configuration of `eqlayers fit`: look at the file, choose, write with the reasons."""

from .command import for_structures, run

__all__ = ["for_structures", "run"]
