"""A tensor field network built from the public layers: the simplest complete model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ..atoms.elements import read_species
from ..core.checks import check_integer, check_number
from ..core.graph import Graph
from ..irreps.algebra import as_irreps
from ..irreps.instructions import paths
from ..layers.radial.module import ScalarNetwork, hidden_widths
from ..layers.radial.tables import tabled
from ..nn import BesselBasis, EdgeVectors, GatedNonlinearity, Linear, TensorProductConv
from .nequip import reachable
from .properties import even_scalars, plain_options, property_irreps, read_properties, readout_irreps


class TFN(torch.nn.Module):
    r"""Energies of atoms by a tensor field network, for :class:`Potential`.

    .. math:: x^0_i = a_{Z_i}, \qquad m_i = \frac{1}{\sqrt{\bar n}} \sum_{j \in N(i)} (W_1 x_j) \otimes_{R(r_{ij})}
              Y(\hat r_{ij}), \qquad x'_i = \mathrm{gate}(W_2 m_i + W_0 x_i), \qquad e_i = w \cdot x^T_i

    Each step has four parts, all of them equivariant: a linear map mixes the channels of each irrep; a tensor product
    with the harmonics of an edge, weighted by functions of its length, couples degrees; a sum over neighbours is
    invariant under their permutation; a gate multiplies vectors by functions of scalars. The paper uses norms where
    this has gates. :class:`NequIP` differs by linear maps that depend on the species.

    Args:
        species: Symbols or atomic numbers that occur.
        hidden: Irreps of the features between the steps; irreps that no path reaches are left out.
        lmax: Largest degree of the spherical harmonics.
        layers: Number of steps, at least 1.
        num_basis: Bessel functions of an edge's length.
        cutoff: Angstrom.
        radial_hidden: Widths of the radial networks.
        mean_neighbors: Mean number of neighbours; ``set_mean_neighbors`` sets it from data.
        properties: Predicted properties, among 'energy', 'dipole' and 'polarizability'.
        knots: Number of knots of the tables that replace radial networks, see :class:`eqlayers.nn.TabledBasis`; None to
            evaluate the networks at every edge.
        backend: Name of a backend, or None for the first that supports the layer.

    Raises:
        IrrepsError, ConfigError: hidden without even scalars, or a number out of range.

    Source:
        Thomas et al. 2018, arXiv:1802.08219; gates by Weiler et al. 2018, arXiv:1807.02547.

    Example:
        >>> from eqlayers.models import Potential, Structures
        >>> potential = Potential(TFN([1, 8], hidden="8x0e + 8x1o", lmax=1, layers=2), species=[1, 8])
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> potential(Structures(torch.tensor([1, 8]), torch.randn(2, 3), pair))["forces"].shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        species: Sequence[int | str],
        hidden: str = "32x0e + 32x1o + 32x2e",
        lmax: int = 2,
        layers: int = 3,
        num_basis: int = 8,
        cutoff: float = 5.0,
        radial_hidden: Sequence[int] = (64,),
        mean_neighbors: float = 12.0,
        properties: Sequence[str] = ("energy",),
        knots: int | None = None,
        backend: str | None = None,
    ) -> None:
        arguments = dict(locals())
        super().__init__()
        self.species, irreps = read_species(species), as_irreps(hidden, "hidden")
        self.properties = read_properties(properties)
        self.irreps_sh = o3.Irreps.spherical_harmonics(check_integer("lmax", lmax, 0, fix="2 is usual."))
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        current = even_scalars(irreps)
        self.embedding = torch.nn.Embedding(len(self.species), current.dim)
        self.basis = tabled(BesselBasis(num_basis, cutoff), knots)
        widths = hidden_widths("radial_hidden", radial_hidden)
        count, steps = check_integer("layers", layers, 1, fix="3 are usual."), []
        for number in range(count):
            target = irreps if number < count - 1 else readout_irreps(irreps, self.properties)
            after = reachable(current, self.irreps_sh, target)
            steps.append(TFNStep(current, self.irreps_sh, after, num_basis, widths, backend))
            current = after
        self.steps = torch.nn.ModuleList(steps)
        self.read = Linear(current, property_irreps(self.properties), layout="ir_mul", backend=backend)
        self.mean_neighbors: Tensor
        self.register_buffer("mean_neighbors", torch.ones(()))
        self.set_mean_neighbors(mean_neighbors)
        read = {"hidden": irreps, "lmax": self.irreps_sh.lmax, "layers": count, "radial_hidden": widths}
        self.options = plain_options(self, arguments, **read)

    def set_mean_neighbors(self, number: float) -> None:
        """Set the mean number of neighbours, by whose square root sums over neighbours are divided."""
        self.mean_neighbors.fill_(check_number("mean_neighbors", number, above=0))

    def forward(self, atom_types: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        """Outputs of atoms ``[A, columns]``; see the argument ``network`` of :class:`Potential`."""
        x = self.embedding(atom_types)
        radial = self.basis(graph.of_pairs(edges.lengths))
        for step in self.steps:
            x = step(x, edges.harmonics, radial, graph, self.mean_neighbors)
        return self.read(x)


class TFNStep(torch.nn.Module):
    """One step: mix channels, multiply with edges, sum over neighbours, mix, gate."""

    def __init__(
        self,
        irreps_in: o3.Irreps,
        irreps_sh: o3.Irreps,
        irreps_out: o3.Irreps,
        num_basis: int,
        radial_hidden: Sequence[int],
        backend: str | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"layout": "ir_mul", "backend": backend}
        self.gate = GatedNonlinearity(irreps_out, gate="silu", **options)
        self.mix_in = Linear(irreps_in, irreps_in, **options)
        middle, instructions = paths(irreps_in, irreps_sh, self.gate.irreps_in)
        self.product = TensorProductConv(
            irreps_in, irreps_sh, middle, instructions, internal_weights=False, shared_weights=False, **options
        )
        self.radial = ScalarNetwork([num_basis, *radial_hidden, self.product.weight_numel])
        self.mix_out = Linear(middle, self.gate.irreps_in, **options)
        self.self_connection = Linear(irreps_in, self.gate.irreps_in, **options)

    def forward(self, x: Tensor, harmonics: Tensor, radial: Tensor, graph: Graph, mean_neighbors: Tensor) -> Tensor:
        """Features ``[A, irreps_in.dim]`` to features ``[A, irreps_out.dim]``."""
        received = self.product(self.mix_in(x), harmonics, self.radial(radial), graph)
        return self.gate(self.mix_out(received * mean_neighbors.rsqrt()), self.self_connection(x))
