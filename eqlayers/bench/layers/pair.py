"""A layer and its peer, and the operands that both are called with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import e3nn.nn
import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...core.graph import Graph
from ...irreps.algebra import as_irreps
from ...layers.norm.definition import copies

#: From the case's irreps, as text, or its other options, to a layer.
Maker = Callable[[Any], Any]
#: From the same, a number of rows and a device to the operands of a layer besides the moving operand.
Further = Callable[[Any, int, torch.device], tuple[Any, ...]]
#: The peer of layers that e3nn has not.
PLAIN = "torch"
SPACING, SHAKE = 2.0, 0.4  # of atoms on a cubic lattice, Angstrom
DEGREE = 15  # edges of a node


def blocks(x: Tensor, irreps: Any) -> list[Tensor]:
    """The groups of features, ``[rows, mul, 2 l + 1]`` each."""
    return copies(x, as_irreps(irreps))


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Features from their groups."""
    return torch.cat([part.flatten(1) for part in parts], 1)


def features(irreps: str, rows: int) -> Tensor:
    """Normal numbers, ``[rows, dim]``."""
    return torch.randn(rows, as_irreps(irreps).dim, dtype=torch.float64)


def lengths(irreps: str, rows: int) -> Tensor:
    """Lengths of edges, 0.5 to 4.5 Angstrom, ``[rows]``."""
    return 0.5 + 4 * torch.rand(rows, dtype=torch.float64)


def vectors(irreps: str, rows: int) -> Tensor:
    """Normal numbers, ``[rows, 3]``."""
    return torch.randn(rows, 3, dtype=torch.float64)


def second_features(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    """Further features of the same irreps."""
    return (features(irreps, rows),)


def atoms_and_edges(edges: int) -> tuple[Tensor, Tensor]:
    """Positions on a shaken lattice, float64, and random pairs of different atoms, sorted by receiver."""
    nodes = max(2, math.ceil(edges / DEGREE))
    side = math.ceil(nodes ** (1 / 3))
    lattice = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 3)[:nodes] * SPACING
    pos = lattice + SHAKE * (torch.rand(nodes, 3, dtype=torch.float64) - 0.5)
    dst = torch.randint(nodes, (edges,)).sort().values
    src = (dst + 1 + torch.randint(nodes - 1, (edges,))) % nodes
    return pos, torch.stack([src, dst])


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
        further: The other operands: float64 tensors with gradients, integers, graphs.
        fixed: Whether there are no gradients by other operands.
        peer: The name of the peer, whose layer in float64 is the definition.
        note: How the peer runs.
        others: Name of a further peer to its maker; 'e3nn-compiled' is torch.compile of ``theirs``.
        of_edges: Whether rows are edges or vectors.
        roundings: Rounding errors allowed of the largest entry of each result.
        part: Rows of which the definition is computed at a time; None for all.
        fields: Options of a case, and their kinds.
        argument: From these options to what ``ours`` and ``theirs`` take.
        operations: Sums and products of this package's formulas by direction, from the argument, rows and layer; None
            where bytes bind anyway.
    """

    ours: Maker
    theirs: Maker
    moving: Callable[[Any, int], Tensor] = features
    further: Further = lambda irreps, rows, device: ()
    fixed: bool = False
    peer: str = "e3nn"
    note: str = "eager"
    others: Mapping[str, Maker] = field(default_factory=dict)
    of_edges: bool = False
    roundings: int = 64
    part: int | None = None
    fields: Mapping[str, str] = field(default_factory=lambda: {"irreps": "text"})
    argument: Callable[[dict[str, Any]], Any] = lambda options: str(options["irreps"])
    operations: Callable[[Any, int, Any], dict[str, int]] | None = None


plain = partial(Pair, peer=PLAIN)


def twin(name: str, arguments: Callable[[str], tuple[Any, ...]], **more: Any) -> dict[str, Pair]:
    """The row of a layer that has its name and its arguments from e3nn."""
    ours, theirs = getattr(nn, name), getattr(e3nn.nn, name, None) or getattr(o3, name)
    return {name: Pair(lambda i: ours(*arguments(i)), lambda i: theirs(*arguments(i)), **more)}
