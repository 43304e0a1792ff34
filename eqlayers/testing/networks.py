"""A small network of atoms without training, for tests and examples of potentials."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.checks import check_integer, check_number, check_seed
from ..core.graph import Graph
from ..nn import BesselBasis, EdgeVectors, PolynomialCutoff


class ToyNetwork(torch.nn.Module):
    r"""A network for tests: Morse pair energies plus invariants of the neighbour density with random weights.

    .. math:: e_i = \sum_j \frac{D}{2} \left(m_{ij}^2 - 2 m_{ij}\right) f(r_{ij})
                    + \sum_c u_c A_{c00} + v_c \sum_{lm} A_{clm}^2, \qquad
              m_{ij} = e^{-a (r_{ij} - r_0)}, \qquad A_{clm} = \sum_j R_{c}(r_{ij}) Y_{lm}(\hat r_{ij})

    It depends on angles and species, is smooth at the cutoff up to second derivatives, runs in a millisecond, and binds
    atoms at about 1.2 Angstrom with 1 eV, so that molecules and crystals are stable.

    Args:
        num_species: Number of species.
        cutoff: In Angstrom.
        channels: Number of density channels c.
        seed: Seed of the weights.

    Raises:
        ConfigError: An argument is out of range.

    Source:
        Morse 1929, doi:10.1103/PhysRev.34.57; Behler and Parrinello 2007, doi:10.1103/PhysRevLett.98.146401.

    Example:
        >>> from eqlayers.models import Potential
        >>> Potential(ToyNetwork(num_species=2, cutoff=3.0), species=[1, 8]).cutoff
        3.0
    """

    irreps_sh = "0e + 1o"
    lone_atoms_are_zero = True

    def __init__(self, num_species: int, cutoff: float = 4.0, channels: int = 4, seed: int = 0) -> None:
        super().__init__()
        number = check_integer("num_species", num_species, 1)
        width = check_integer("channels", channels, 1)
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        self.options = {"num_species": number, "cutoff": self.cutoff, "channels": width, "seed": seed}
        self.basis, self.envelope = BesselBasis(4, self.cutoff), PolynomialCutoff(self.cutoff)
        generator = torch.Generator().manual_seed(check_seed("seed", seed))

        def weight(*shape: int) -> torch.nn.Parameter:
            drawn = 0.1 * torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
            return torch.nn.Parameter(drawn.to(torch.get_default_dtype()))

        self.radial, self.linear, self.square = weight(number, 4, width), weight(number, width), weight(number, width)

    def forward(self, atom_types: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        """Energies of atoms ``[A]``; see :class:`eqlayers.models.Potential`."""
        src, dst = graph.edge_index
        radial = torch.einsum("eb,ebc->ec", self.basis(edges.lengths), self.radial[atom_types[src]])
        messages = radial[:, :, None] * edges.harmonics[:, None]
        density = messages.new_zeros(atom_types.shape[0], *messages.shape[1:]).index_add(0, dst, messages)
        energies = (self.linear[atom_types] * density[:, :, 0] + self.square[atom_types] * density.square().sum(2)).sum(
            1
        )
        morse = torch.exp(-3.5 * (edges.lengths - 1.2))
        return energies.index_add(0, dst, (0.5 * morse * morse - morse) * self.envelope(edges.lengths))

    def extra_repr(self) -> str:
        """Arguments of the constructor."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())
