"""Benchmarked layers with their peers (e3nn or plain torch): radial functions and networks, envelopes, ZBL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from e3nn import nn as theirs
from e3nn.math import soft_one_hot_linspace
from torch import Tensor

from ... import nn
from ...core.graph import Graph
from ...layers.definitions import bessel as bessel_functions
from ...layers.definitions import cosine_cutoff, polynomial_cutoff
from .pair import Pair, graph_of, lengths, plain, species_of

CUTOFF, NUMBER, POWER = 5.0, 16, 6
HIDDEN, WEIGHTS = 64, 128
#: Atomic numbers of the species.
SPECIES = (6, 1, 8)


def smooth(r: Tensor) -> Tensor:
    """Smooth step function of exponentials."""
    v = r / CUTOFF
    left, right = torch.exp(-1 / (1 - v)), torch.exp(-1 / v)
    return left / (left + right)


def polynomial(r: Tensor) -> Tensor:
    """Polynomial envelope of degree 6, as in MACE."""
    return polynomial_cutoff(r, CUTOFF, POWER)


def bessel(r: Tensor) -> Tensor:
    """Bessel functions times the envelope, as in MACE and NequIP."""
    return bessel_functions(r, CUTOFF, NUMBER) * polynomial(r)[:, None]


def chebyshev(r: Tensor) -> Tensor:
    """Chebyshev polynomials times the envelope."""
    t = 1 - 2 * r / CUTOFF
    values = [torch.ones_like(t), t]
    for _ in range(NUMBER - 2):
        values.append(2 * t * values[-1] - values[-2])
    return torch.stack(values, -1) * polynomial(r)[:, None]


class TheirNetwork(torch.nn.Module):
    """e3nn's FullyConnectedNet on the same basis, with equal parameter names and activation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = theirs.FullyConnectedNet([NUMBER, HIDDEN, WEIGHTS], torch.nn.functional.silu)
        for layer in list(self.net)[:-1]:
            layer.act.cst = nn.NormalizedActivation("silu").factor  # e3nn's is an estimate
        widths = pairwise((NUMBER, HIDDEN, WEIGHTS))
        self.weights = torch.nn.ParameterList(torch.randn(a, b) for a, b in widths)
        for layer, weight in zip(self.net, self.weights, strict=True):
            layer.weight = weight

    def forward(self, r: Tensor) -> Tensor:
        """Lengths ``[E]`` to weights ``[E, weights]``."""
        weights: Tensor = self.net(bessel(r))
        return weights


class PlainTransform(torch.nn.Module):
    """Agnesi transform in plain torch, as in MACE."""

    radii: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("radii", nn.AgnesiTransform(SPECIES).radii)

    def forward(self, r: Tensor, atom_types: Tensor, graph: Graph) -> Tensor:
        """Lengths ``[E]`` to transformed lengths ``[E]``."""
        src, dst = graph.edge_index
        q, p, a = 0.9183, 4.5791, 1.0805
        u = r / (0.5 * (self.radii[atom_types[src]] + self.radii[atom_types[dst]]))
        return (1 + a * u**q / (1 + u ** (q - p))) ** -1


class PlainZBL(torch.nn.Module):
    """ZBL repulsion in plain torch, as in MACE."""

    radii: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("radii", nn.ZBL().radii)

    def forward(self, r: Tensor, z: Tensor, graph: Graph) -> Tensor:
        """Lengths ``[E]`` to energies of atoms ``[A]``."""
        src, dst = graph.edge_index
        charge = z.to(r.dtype)
        scaled = r * (charge[src] ** 0.3 + charge[dst] ** 0.3) / (0.529 * 0.4543)
        screened = 0.1818 * torch.exp(-3.2 * scaled) + 0.5099 * torch.exp(-0.9423 * scaled)
        screened = screened + 0.2802 * torch.exp(-0.4028 * scaled) + 0.02817 * torch.exp(-0.2016 * scaled)
        pairs = 0.5 * 14.3996 * charge[src] * charge[dst] / r * screened
        u = r / (self.radii[z[src]] + self.radii[z[dst]])
        return r.new_zeros(len(z)).index_add(0, dst, pairs * polynomial_cutoff(u, 1.0, POWER))


class OurZBL(nn.ZBL):
    """ZBL with lengths as the first argument."""

    def forward(self, r: Tensor, z: Tensor, graph: Graph) -> Tensor:  # type: ignore[override]
        """Lengths ``[E]`` to energies of atoms ``[A]``."""
        return super().forward(z, nn.EdgeVectors(r, r, r, r), graph)


def _atom_types(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    graph = graph_of(rows, device)
    return species_of(graph.num_dst, len(SPECIES), device), graph


def _numbers(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    index, graph = _atom_types(irreps, rows, device)
    return torch.tensor(SPECIES, device=device)[index], graph


def _of_lengths(pair: Callable[..., Pair], name: str, sizes: tuple[Any, ...], theirs: Callable[..., Tensor]) -> Pair:
    return pair(lambda i: getattr(nn, name)(*sizes), lambda i: theirs, lengths, of_edges=True)


#: Prefix of a basis without envelope -> e3nn's name.
SAME = {"Gaussian": "gaussian", "Cosine": "cosine", "SmoothFinite": "smooth_finite", "Fourier": "fourier"}
ENVELOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "PolynomialCutoff": polynomial,
    "CosineCutoff": lambda r: cosine_cutoff(r, CUTOFF),
    "SmoothCutoff": smooth,
}
RADIAL: dict[str, Pair] = {
    "BesselBasis": _of_lengths(plain, "BesselBasis", (NUMBER, CUTOFF), bessel),
    "ChebyshevBasis": _of_lengths(plain, "ChebyshevBasis", (NUMBER, CUTOFF), chebyshev),
    **{
        f"{name}Basis": _of_lengths(
            Pair,
            f"{name}Basis",
            (NUMBER, CUTOFF, None),
            partial(soft_one_hot_linspace, start=0.0, end=CUTOFF, number=NUMBER, basis=basis, cutoff=True),
        )
        for name, basis in SAME.items()
    },
    **{name: _of_lengths(plain, name, (CUTOFF,), function) for name, function in ENVELOPES.items()},
    "RadialNetwork": Pair(
        lambda i: nn.RadialNetwork(WEIGHTS, NUMBER, CUTOFF, (HIDDEN,)), lambda i: TheirNetwork(), lengths, of_edges=True
    ),
    "AgnesiTransform": plain(
        lambda i: nn.AgnesiTransform(SPECIES), lambda i: PlainTransform(), lengths, _atom_types, of_edges=True
    ),
    "ZBL": plain(
        lambda i: OurZBL(),
        lambda i: PlainZBL(),
        lambda i, rows: 0.3 + 0.9 * torch.rand(rows, dtype=torch.float64),  # within the reach of most pairs
        _numbers,
        of_edges=True,
    ),
}
