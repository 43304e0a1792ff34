"""Molecular data sets: the embedded GFN2-xTB set and QM9, as one Lightning data module.

Needs the extra `train` (`pip install "eqlayers[train]"`): torch-geometric and Lightning are imported here.
"""

from __future__ import annotations

try:
    import lightning  # noqa: F401
    import torch_geometric  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"eqlayers.data: expected lightning and torch-geometric; got {error}; run pip install 'eqlayers[train]'"
    ) from error

from eqlayers.data.datamodule import EpochSampler, MoleculeDataModule
from eqlayers.data.mini import default_mini_root, load_mini
from eqlayers.data.molecules import Edges, MoleculeArrays, MoleculeDataset, neighbor_edges
from eqlayers.data.neighbors import radius_graph
from eqlayers.data.qm9 import load_qm9
from eqlayers.data.qm9_raw import thermochemical_atomref
from eqlayers.data.splits import SPLITS, make_split
from eqlayers.data.statistics import Statistics, compute_baselines, compute_statistics
from eqlayers.data.targets import TARGETS, Target, get_target

__all__ = [
    "SPLITS",
    "TARGETS",
    "Edges",
    "EpochSampler",
    "MoleculeArrays",
    "MoleculeDataModule",
    "MoleculeDataset",
    "Statistics",
    "Target",
    "compute_baselines",
    "compute_statistics",
    "default_mini_root",
    "get_target",
    "load_mini",
    "load_qm9",
    "make_split",
    "neighbor_edges",
    "radius_graph",
    "thermochemical_atomref",
]
