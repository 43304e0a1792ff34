"""Complete networks made of the layers of this package."""

from .molecule import MoleculeNetwork

__all__ = ["MoleculeNetwork"]
