"""Complete networks, made of the layers."""

from .molecule import MoleculeNetwork
from .nequip import NequIP
from .potential import Potential
from .structures import Structures

__all__ = ["MoleculeNetwork", "NequIP", "Potential", "Structures"]
