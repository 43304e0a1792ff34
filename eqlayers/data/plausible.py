"""Mistakes in labelled structures that numbers give away: wrong units, missing signs, copies, lone atoms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.structure_dataset import StructureEdges
from eqlayers.data.structures import StructureArrays

__all__ = ["check_parts", "check_physics"]


def check_physics(structures: StructureArrays, edges: StructureEdges) -> list[str]:
    """Sentences on what looks wrong."""
    return []


def check_parts(structures: StructureArrays, rows: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """Sentences on how the parts of a split do not fit."""
    return []
