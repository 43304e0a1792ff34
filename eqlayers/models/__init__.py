"""Complete networks of atoms, potentials, committees, and their files."""

from ..hints.names import answer_names, name_arguments
from .committee import Committee, load_committee
from .compression import CompressionReport, CompressionRow, compress, decompress
from .equiformer import Equiformer
from .extend import extend_potential
from .mace import MACE
from .molecule import MoleculeNetwork
from .nequip import NequIP
from .potential import Potential
from .recompute import recomputed
from .saving import SavedPotential, build_potential, describe_potential, load_potential, read_potential, save_potential
from .structures import Structures
from .tfn import TFN

__all__ = [
    "MACE",
    "TFN",
    "Committee",
    "CompressionReport",
    "CompressionRow",
    "Equiformer",
    "MoleculeNetwork",
    "NequIP",
    "Potential",
    "SavedPotential",
    "Structures",
    "build_potential",
    "compress",
    "decompress",
    "describe_potential",
    "extend_potential",
    "load_committee",
    "load_potential",
    "read_potential",
    "recomputed",
    "save_potential",
]

name_arguments(globals(), __all__)

answer_names(__name__)
