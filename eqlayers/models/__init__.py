"""Complete networks, made of the layers."""

from .molecule import MoleculeNetwork
from .potential import Potential
from .structures import Structures

__all__ = ["MoleculeNetwork", "Potential", "Structures"]
