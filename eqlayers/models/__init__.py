"""Complete networks, made of the layers."""

from .mace import MACE
from .molecule import MoleculeNetwork
from .potential import Potential
from .structures import Structures

__all__ = ["MACE", "MoleculeNetwork", "Potential", "Structures"]
