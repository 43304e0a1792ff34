"""Radial bases, cutoffs and networks; the repulsion of nuclei."""

from functools import partial

import torch
from e3nn.math import soft_one_hot_linspace
from torch import Tensor

import eqlayers.nn as nn
from eqlayers import Graph
from tests.cases import default_dtype

from .cases import ONE, Case, edges, row

CUTOFF = 4.0


def lengths(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Between 0.3 and 3.8, none where functions of three or five bumps begin or end."""
    return {"lengths": 0.3 + 3.5 * torch.rand(rows, generator=generator, dtype=torch.float64)}


def unmoved(value: Tensor, matrix: Tensor) -> Tensor:
    """How a number of each row turns."""
    return value


class ZBL(nn.ZBL):
    """Called with tensors."""

    def forward(self, z: Tensor, lengths: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(z, nn.EdgeVectors(lengths, lengths, lengths, lengths), Graph(edge_index, z.shape[0]))


class AgnesiTransform(nn.AgnesiTransform):
    """Called with tensors."""

    def forward(self, lengths: Tensor, kind: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(lengths, kind, Graph(edge_index, kind.shape[0]))


class SoftOneHot(torch.nn.Module):
    """e3nn's function as a module."""

    def __init__(self, number: int, basis: str, cutoff: bool, start: float) -> None:
        super().__init__()
        self.options = start, CUTOFF, number, basis, cutoff

    def forward(self, lengths: Tensor) -> Tensor:
        with default_dtype(torch.float64):  # of which e3nn makes its exp(2)
            return soft_one_hot_linspace(lengths, *self.options)


radial = partial(row, family="Radial functions", layouts=ONE)
of_lengths = partial(radial, inputs=lengths)


def like_e3nn(kind: type[torch.nn.Module], basis: str, inside: bool, start: float = 0.0) -> Case:
    """A basis without an envelope, and e3nn's function of the same arguments."""
    return of_lengths(
        partial(kind, 3, CUTOFF, None, start=start, inside=inside),
        "3x0e",
        lambda number, cutoff, envelope, start, inside: SoftOneHot(number, basis, inside, start),
        special=f"as e3nn's, {'inside' if inside else 'on the ends'}",
    )


def nodes_and_edges(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Atoms of H, O and Fe, and lengths between 0.3 and 1.2 A, within the reach of most pairs."""
    index = edges(rows, generator)
    z = torch.tensor([1, 8, 26])[torch.randint(3, (rows,), generator=generator)]
    made = 0.3 + 0.9 * torch.rand(index.shape[1], generator=generator, dtype=torch.float64)
    return {"z": z, "lengths": made, "edge_index": index}


def kinds_and_edges(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    made = nodes_and_edges(rows, generator)
    return {"lengths": made["lengths"], "kind": made["z"] % 3, "edge_index": made["edge_index"]}


CASES = [
    of_lengths(partial(nn.BesselBasis, 4, CUTOFF), "4x0e"),
    of_lengths(partial(nn.BesselBasis, 4, CUTOFF, envelope=nn.SmoothCutoff(CUTOFF)), "4x0e", special="SmoothCutoff"),
    of_lengths(partial(nn.GaussianBasis, 4, CUTOFF), "4x0e"),
    like_e3nn(nn.GaussianBasis, "gaussian", True),
    like_e3nn(nn.GaussianBasis, "gaussian", False, -0.5),
    like_e3nn(nn.CosineBasis, "cosine", True),
    like_e3nn(nn.CosineBasis, "cosine", False, 0.25),
    like_e3nn(nn.SmoothFiniteBasis, "smooth_finite", True),
    like_e3nn(nn.SmoothFiniteBasis, "smooth_finite", False, 0.25),
    like_e3nn(nn.FourierBasis, "fourier", True),
    like_e3nn(nn.FourierBasis, "fourier", False, 0.25),
    of_lengths(partial(nn.FourierBasis, 4, CUTOFF, start=0.2), "4x0e"),
    of_lengths(partial(nn.ChebyshevBasis, 5, CUTOFF), "5x0e"),
    of_lengths(partial(nn.PolynomialCutoff, CUTOFF), unmoved),
    of_lengths(partial(nn.CosineCutoff, CUTOFF), unmoved),
    of_lengths(partial(nn.SmoothCutoff, CUTOFF, start=0.2), unmoved),
    of_lengths(partial(nn.RadialNetwork, 3, 4, CUTOFF, (5,)), "3x0e"),
    of_lengths(partial(nn.RadialNetwork, 3, basis=nn.ChebyshevBasis(4, CUTOFF)), "3x0e", special="Chebyshev"),
    radial(
        partial(AgnesiTransform, [1, 8, 26]),
        unmoved,
        inputs=kinds_and_edges,
        rows={"lengths": "edge", "kind": "node", "edge_index": "index"},
        out_rows="edge",
    ),
    radial(
        partial(ZBL),
        unmoved,
        inputs=nodes_and_edges,
        rows={"z": "node", "lengths": "edge", "edge_index": "index"},
        out_rows="node",
    ),
]
