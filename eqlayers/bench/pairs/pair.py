"""A layer and its peer, and the operands that both are called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...algebra import as_irreps
from ...graph import Graph
from ..layer_subjects import atoms_and_edges

#: From irreps, as text, to what is called with the moving operand.
Maker = Callable[[str], Any]
#: From irreps, a number of rows and a device to what a layer is called with besides the moving operand.
Further = Callable[[str, int, torch.device], tuple[Any, ...]]


def features(irreps: str, rows: int) -> Tensor:
    """Normal numbers, ``[rows, dim]``."""
    return torch.randn(rows, as_irreps(irreps).dim, dtype=torch.float64)


def lengths(irreps: str, rows: int) -> Tensor:
    """Lengths of edges, 0.5 to 4.5 Angstrom, ``[rows]``."""
    return 0.5 + 4 * torch.rand(rows, dtype=torch.float64)


def vectors(irreps: str, rows: int) -> Tensor:
    """Normal numbers, ``[rows, 3]``."""
    return torch.randn(rows, 3, dtype=torch.float64)


def nothing(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    """No further operands."""
    return ()


def second_features(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    """Further features of the same irreps."""
    return (features(irreps, rows),)


def graph_of(edges: int, device: torch.device) -> Graph:
    """Edges sorted by receiver, 15 of a node; networks make it once for all layers."""
    pos, index = atoms_and_edges(edges)
    return Graph(index.to(device), len(pos), len(pos))


def nodes_of(irreps: str, edges: int) -> Tensor:
    """Features of the nodes of :func:`graph_of`."""
    return features(irreps, len(atoms_and_edges(edges)[0]))


def species_of(rows: int, number: int, device: torch.device) -> Tensor:
    """``[rows]`` int64."""
    return torch.randint(number, (rows,)).to(device)


@dataclass(frozen=True)
class Pair:
    """A layer and its peer.

    Attributes:
        ours, theirs: Make them; their parameters have equal names and shapes.
        moving: From irreps and a number of rows to the operand that gradients of forces are by.
        further: What they are called with besides: float64 tensors with gradients, integers, graphs.
    """

    ours: Maker
    theirs: Maker
    moving: Callable[[str, int], Tensor] = features
    further: Further = nothing
