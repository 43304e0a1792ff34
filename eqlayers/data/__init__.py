"""Data sets as Lightning data modules: properties of molecules, and structures with energies, forces and stress.

Needs the extra `train` (`pip install "eqlayers[train]"`): ASE, vesin, torch-geometric and Lightning are
imported here.
"""

from __future__ import annotations

from eqlayers.hints.names import answer_names

from ..core.errors import needs_packages

with needs_packages("eqlayers.data", "train"):
    import ase  # noqa: F401
    import lightning  # noqa: F401
    import torch_geometric  # noqa: F401
    import vesin  # noqa: F401

from eqlayers.data.batches import EdgeBatchSampler, EpochSampler, StructureDataset
from eqlayers.data.datamodule import MoleculeDataModule
from eqlayers.data.embedded import default_mini_root, load_mini
from eqlayers.data.neighbors import Edges, radius_graph, structure_edges
from eqlayers.data.qm9 import TARGETS, Target, get_target, load_qm9, thermochemical_atomref
from eqlayers.data.readers import read_structures
from eqlayers.data.splits import SPLITS, STRUCTURE_SPLITS, make_split, split_structures
from eqlayers.data.statistics import Statistics, compute_statistics
from eqlayers.data.structuremodule import PropertyDataModule, StructureDataModule
from eqlayers.data.structures import LABELS, StructureArrays

__all__ = [
    "LABELS",
    "SPLITS",
    "STRUCTURE_SPLITS",
    "TARGETS",
    "EdgeBatchSampler",
    "Edges",
    "EpochSampler",
    "MoleculeDataModule",
    "PropertyDataModule",
    "Statistics",
    "StructureArrays",
    "StructureDataModule",
    "StructureDataset",
    "Target",
    "compute_statistics",
    "default_mini_root",
    "get_target",
    "load_mini",
    "load_qm9",
    "make_split",
    "radius_graph",
    "read_structures",
    "split_structures",
    "structure_edges",
    "thermochemical_atomref",
]

answer_names(__name__)
