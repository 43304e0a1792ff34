"""From a file of structures to a configuration of `eqlayers fit`: look at the file, choose, write with the reasons."""

from .choose import Choices, choose
from .command import for_structures, run
from .look import Look, look

__all__ = ["Choices", "Look", "choose", "for_structures", "look", "run"]
