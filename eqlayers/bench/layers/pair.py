"""A benchmarked layer with its peer as a :class:`Pair`, and functions that draw random operands for both."""

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
from ...layers.definitions import copies

#: Function from irreps as text, or other options of a case, to a layer.
Maker = Callable[[Any], Any]
#: Function from options, number of rows and device to all operands but the first.
Further = Callable[[Any, int, torch.device], tuple[Any, ...]]
#: Name of the peer for layers that e3nn lacks.
PLAIN = "torch"
SPACING, SHAKE = 2.0, 0.4  # lattice constant and displacement of atoms on a cubic lattice, Angstrom
DEGREE = 15  # edges of a node


def blocks(x: Tensor, irreps: Any) -> list[Tensor]:
    """Split features into groups ``[rows, mul, 2 l + 1]``."""
    return copies(x, as_irreps(irreps))


def joined(parts: Iterable[Tensor]) -> Tensor:
    """Concatenate groups to features."""
    return torch.cat([part.flatten(1) for part in parts], 1)


def features(irreps: str, rows: int) -> Tensor:
    """Normal random features ``[rows, dim]``."""
    return torch.randn(rows, as_irreps(irreps).dim, dtype=torch.float64)


def lengths(irreps: str, rows: int) -> Tensor:
    """Random lengths ``[rows]`` of 0.5 to 4.5 Angstrom."""
    return 0.5 + 4 * torch.rand(rows, dtype=torch.float64)


def vectors(irreps: str, rows: int) -> Tensor:
    """Normal random vectors ``[rows, 3]``."""
    return torch.randn(rows, 3, dtype=torch.float64)


def second_features(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    """A second operand: random features of the same irreps."""
    return (features(irreps, rows),)


def atoms_and_edges(edges: int) -> tuple[Tensor, Tensor]:
    """Positions on a perturbed lattice in float64, and random edges between different atoms, sorted by receiver."""
    nodes = max(2, math.ceil(edges / DEGREE))
    side = math.ceil(nodes ** (1 / 3))
    lattice = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 3)[:nodes] * SPACING
    pos = lattice + SHAKE * (torch.rand(nodes, 3, dtype=torch.float64) - 0.5)
    dst = torch.randint(nodes, (edges,)).sort().values
    src = (dst + 1 + torch.randint(nodes - 1, (edges,))) % nodes
    return pos, torch.stack([src, dst])


def graph_of(edges: int, device: torch.device) -> Graph:
    """A random graph with edges sorted by receiver, 15 for each node."""
    pos, index = atoms_and_edges(edges)
    return Graph(index.to(device), len(pos), len(pos))


def nodes_of(irreps: str, edges: int) -> Tensor:
    """Random features of the nodes of :func:`graph_of`."""
    return features(irreps, len(atoms_and_edges(edges)[0]))


def species_of(rows: int, number: int, device: torch.device) -> Tensor:
    """Random species indices ``[rows]`` int64."""
    return torch.randint(number, (rows,)).to(device)


@dataclass(frozen=True)
class Pair:
    """How to build a layer of this package and its peer, and how to draw their operands.

    Attributes:
        ours, theirs: Constructors of both layers, whose parameters have equal names and shapes.
        moving: Function from irreps and number of rows to the first operand, by which forces are differentiated.
        further: Function that returns the other operands: float64 tensors with gradients, integers, graphs.
        fixed: Whether other operands have no gradients.
        peer: Name of the peer, whose layer in float64 is the reference.
        note: Execution mode of the peer.
        others: Name of a further peer -> constructor; 'e3nn-compiled' is torch.compile of ``theirs``.
        of_edges: Whether rows are edges or vectors.
        roundings: Allowed error in roundings of the largest entry of each result.
        part: Number of rows for which the reference is computed at a time; None for all.
        fields: Options of a case, and their types.
        argument: Function from these options to the argument of ``ours`` and ``theirs``.
        operations: Function from argument, rows and layer to floating-point operations by direction; None if memory
            bandwidth is the limit.
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
    """A pair for a layer with the same name and arguments as e3nn's."""
    ours, theirs = getattr(nn, name), getattr(e3nn.nn, name, None) or getattr(o3, name)
    return {name: Pair(lambda i: ours(*arguments(i)), lambda i: theirs(*arguments(i)), **more)}
