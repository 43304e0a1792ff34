"""Activations, gates and what leaves parts out, beside e3nn's or the plainest torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn import nn as theirs
from e3nn import o3
from torch import Tensor

from ... import nn
from ...algebra import as_irreps
from .pair import Pair, plain

SILU, TANH, SIGMOID = torch.nn.functional.silu, torch.tanh, torch.sigmoid
#: The fraction that is left out in training.
PROBABILITY = 0.5
#: Atoms of a graph, of which all are left out or none.
ATOMS = 20


def _gates(irreps: str) -> tuple[Any, ...]:
    scalars = o3.Irreps([(mul, ir) for mul, ir in as_irreps(irreps) if ir.l == 0])
    gated = o3.Irreps([(mul, ir) for mul, ir in as_irreps(irreps) if ir.l > 0])
    return scalars, [SILU] * len(scalars), o3.Irreps([(gated.num_irreps, "0e")]), [SIGMOID], gated


def _gated_features(irreps: str, rows: int) -> Tensor:
    return torch.randn(rows, nn.GatedNonlinearity(irreps).irreps_in.dim, dtype=torch.float64)


class PlainGate(torch.nn.Module):
    """Gates, then scalars and what is gated, with exact second moments, in the plainest torch."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.irreps = as_irreps(irreps)
        self.even, self.gate = nn.NormalizedActivation("silu").factor, nn.NormalizedActivation("sigmoid").factor
        self.gates = sum(mul for mul, ir in self.irreps if ir.l > 0)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, gates + dim]`` to ``[N, dim]``."""
        gates, *groups = x.split([self.gates, *(mul * ir.dim for mul, ir in self.irreps)], 1)
        factors = torch.sigmoid(gates) * self.gate
        out, first = [], 0
        for (mul, ir), group in zip(self.irreps, groups, strict=True):
            if ir.l == 0:
                out.append(SILU(group) * self.even)
                continue
            own = factors[:, first : first + mul, None]
            out.append((group.unflatten(1, (mul, ir.dim)) * own).flatten(1))
            first += mul
        return torch.cat(out, 1)


def _acts(irreps: str) -> list[Any]:
    """A function for each group of scalars."""
    found = {(0, 1): SILU, (0, -1): TANH}
    return [found.get((ir.l, ir.p)) for _, ir in as_irreps(irreps)]


def _sphere(irreps: str) -> tuple[Any, ...]:
    """A signal on the sphere, a function, and the points of the smallest grid."""
    return as_irreps(irreps), TANH, 2 * as_irreps(irreps).lmax + 2


def _rotations(irreps: str) -> tuple[Any, ...]:
    """Degrees of signals on the rotations, a function, and the resolution of a grid."""
    lmax = as_irreps(irreps).lmax
    return lmax, lmax, TANH, lmax + 1


class Drawn(torch.nn.Module):
    """A layer that draws the same random numbers at every call, so that it can be compared."""

    def __init__(self, layer: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *operands: Tensor) -> Tensor:
        """Compute the layer's result."""
        torch.manual_seed(0)
        return self.layer(*operands)


class PlainDropPath(torch.nn.Module):
    """A factor for each graph of a batch, in the plainest torch."""

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        """``[N, dim]``, ``[N]`` to ``[N, dim]``."""
        count = int(batch.max()) + 1
        factors = x.new_empty(count, 1).bernoulli_(1 - PROBABILITY) / (1 - PROBABILITY)
        return x * factors[batch]


def _batch(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return ((torch.arange(rows) // ATOMS).to(device),)


NONLINEAR: dict[str, Pair] = {
    "Gate": Pair(
        lambda i: nn.Gate(*_gates(i)),
        lambda i: theirs.Gate(*_gates(i)),
        lambda i, rows: torch.randn(rows, theirs.Gate(*_gates(i)).irreps_in.dim, dtype=torch.float64),
    ),
    "GatedNonlinearity": plain(nn.GatedNonlinearity, PlainGate, _gated_features),
    "Activation": Pair(lambda i: nn.Activation(i, _acts(i)), lambda i: theirs.Activation(i, _acts(i))),
    "S2Activation": Pair(lambda i: nn.S2Activation(*_sphere(i)), lambda i: theirs.S2Activation(*_sphere(i))),
    "SO3Activation": Pair(lambda i: nn.SO3Activation(*_rotations(i)), lambda i: theirs.SO3Activation(*_rotations(i))),
    "NormActivation": Pair(
        lambda i: nn.NormActivation(as_irreps(i), SIGMOID), lambda i: theirs.NormActivation(as_irreps(i), SIGMOID)
    ),
    "Dropout": Pair(
        lambda i: Drawn(nn.Dropout(as_irreps(i), PROBABILITY)),
        lambda i: Drawn(theirs.Dropout(as_irreps(i), PROBABILITY)),
    ),
    "DropPath": plain(lambda i: Drawn(nn.DropPath(PROBABILITY)), lambda i: Drawn(PlainDropPath()), further=_batch),
}
