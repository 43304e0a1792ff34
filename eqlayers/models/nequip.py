"""NequIP: equivariant message passing with linear self-connections by species."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ..atoms.elements import read_species
from ..core.checks import check_integer, check_number
from ..core.graph import Graph
from ..irreps.algebra import as_irreps, tensor_product_paths
from ..layers.convolution.module import Interaction
from ..layers.harmonics.module import EdgeVectors
from ..layers.linear.module import Linear
from ..layers.radial.module import BesselBasis, hidden_widths
from ..layers.radial.tables import tabled
from .properties import even_scalars, plain_options, property_irreps, read_properties, readout_irreps


class NequIP(torch.nn.Module):
    r"""Energies of atoms by NequIP, for :class:`Potential`.

    .. math:: x^0_i = a_{Z_i}, \qquad x^{t+1}_i = \mathrm{gate}\Big(W_2 \frac{1}{\sqrt{\bar n}} \sum_{j \in N(i)}
              (W_1 x^t_j) \otimes_{R(r_{ij})} Y(\hat r_{ij}) + W^{Z_i}_0 x^t_i\Big), \qquad e_i = w \cdot x^T_i

    The first step has no self-connection and the last one outputs scalars only, so :math:`e_i` of a lone atom is 0.

    Args:
        species: Symbols or atomic numbers that occur.
        hidden: Irreps of the features between the steps; irreps that no path reaches are left out.
        lmax: Largest degree of the spherical harmonics.
        layers: Number of steps, at least 1.
        num_basis: Bessel functions of an edge's length.
        cutoff: Angstrom.
        cutoff_p: Power of the envelope.
        radial_hidden: Widths of the radial networks.
        mean_neighbors: Mean number of neighbours; ``set_mean_neighbors`` sets it from data.
        embedding: Number of scalars of an atom before the first step; None for as many as hidden has.
        properties: Predicted properties, among 'energy', 'dipole' and 'polarizability'.
        knots: Number of knots of the tables that replace radial networks, see :class:`eqlayers.nn.TabledBasis`; None to
            evaluate the networks at every edge.
        backend: Name of a backend, or None for the first that supports the layer.

    Raises:
        IrrepsError, ConfigError: hidden without even scalars, or a number out of range.

    Source:
        Batzner et al. 2022, arXiv:2101.03164.

    Example:
        >>> from eqlayers.models import Potential, Structures
        >>> potential = Potential(NequIP([1, 8], hidden="8x0e + 8x1o", lmax=1, layers=2), species=[1, 8])
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> potential(Structures(torch.tensor([1, 8]), torch.randn(2, 3), pair))["forces"].shape
        torch.Size([2, 3])
    """

    lone_atoms_are_zero = True

    def __init__(
        self,
        species: Sequence[int | str],
        hidden: str = "32x0e + 32x1o + 32x2e",
        lmax: int = 2,
        layers: int = 4,
        num_basis: int = 8,
        cutoff: float = 5.0,
        cutoff_p: int = 6,
        radial_hidden: Sequence[int] = (64,),
        mean_neighbors: float = 12.0,
        embedding: int | None = None,
        properties: Sequence[str] = ("energy",),
        knots: int | None = None,
        backend: str | None = None,
    ) -> None:
        arguments = dict(locals())
        super().__init__()
        self.species, irreps = read_species(species), as_irreps(hidden, "hidden")
        lmax, layers = check_integer("lmax", lmax, 0, fix="2 is usual."), check_integer("layers", layers, 1)
        self.properties = read_properties(properties)
        widths = hidden_widths("radial_hidden", radial_hidden)
        self.cutoff, self.irreps_sh = cutoff, o3.Irreps.spherical_harmonics(lmax)
        read = {"hidden": irreps, "lmax": lmax, "layers": layers, "radial_hidden": widths}
        self.options = plain_options(self, arguments, **read)
        scalars = even_scalars(irreps)
        width = scalars.dim if embedding is None else check_integer("embedding", embedding, 1, fix="32 is usual.")
        self.embedding = torch.nn.Embedding(len(self.species), width)
        steps, current = [], o3.Irreps([(width, "0e")])
        sizes = num_basis, cutoff, radial_hidden, mean_neighbors
        kind: dict[str, Any] = {"gate": "silu", "residual": False, "p": cutoff_p, "num_species": len(self.species)}
        for number in range(layers):
            target = irreps if number < layers - 1 else readout_irreps(irreps, self.properties)
            after = reachable(current, self.irreps_sh, target)
            kind["self_connection"] = "species" if number else "none"
            steps.append(Interaction(current, self.irreps_sh, after, *sizes, **kind, backend=backend))
            current = after
        self.basis = tabled(BesselBasis(num_basis, cutoff, cutoff_p), knots)
        self.steps = torch.nn.ModuleList(steps)
        self.read = Linear(current, property_irreps(self.properties), layout="ir_mul", backend=backend)

    def set_mean_neighbors(self, number: float) -> None:
        """Set the mean number of neighbours, by whose square root sums over neighbours are divided."""
        number = check_number("mean_neighbors", number, above=0)
        for step in self.steps:
            step.get_buffer("mean_neighbors").fill_(number)

    def forward(self, atom_types: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        """Outputs of atoms ``[A, columns]``; see the argument ``network`` of :class:`Potential`."""
        x = self.embedding(atom_types)
        basis = self.basis(graph.of_pairs(edges.lengths))  # the same in all steps
        for step in self.steps:
            x = step(x, edges.harmonics, edges.lengths, graph, atom_types, basis)
        return self.read(x)


def reachable(irreps_in: o3.Irreps, irreps_sh: o3.Irreps, irreps_out: o3.Irreps) -> o3.Irreps:
    """The irreps of ``irreps_out`` that a tensor product of ``irreps_in`` and ``irreps_sh`` contains."""
    present = {ir for _, _, ir in tensor_product_paths(irreps_in, irreps_sh, {ir for _, ir in irreps_out})}
    return o3.Irreps([(mul, ir) for mul, ir in irreps_out if ir in present])
