"""A small network of atoms with random weights, and example structures, for tests and examples of potentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.checks import check_integer, check_number, check_seed
from ..core.graph import Graph
from ..nn import BesselBasis, EdgeVectors, PolynomialCutoff

if TYPE_CHECKING:
    from ase import Atoms


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
        terms = self.linear[atom_types] * density[:, :, 0] + self.square[atom_types] * density.square().sum(2)
        morse = torch.exp(-3.5 * (edges.lengths - 1.2))
        return terms.sum(1).index_add(0, dst, (0.5 * morse * morse - morse) * self.envelope(edges.lengths))

    def extra_repr(self) -> str:
        """Arguments of the constructor."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


def example_structures(species: Sequence[int], cutoff: float, seed: int = 0) -> list[Atoms]:
    """A molecule of six atoms and a crystal of four in a skewed cell, with neighbours at bond distances."""
    from ase import Atoms
    from ase.build import bulk
    from ase.data import covalent_radii

    generator = np.random.default_rng(seed)
    numbers = [species[number % len(species)] for number in range(10)]
    radius = min(float(np.mean(covalent_radii[list(species)])), 0.3 * cutoff)
    positions = [np.zeros(3)]
    while len(positions) < 6:  # each near an earlier atom, and not too near to others
        direction = generator.normal(size=3)
        position = positions[generator.integers(len(positions))] + 2.1 * radius * direction / np.linalg.norm(direction)
        if min(np.linalg.norm(position - other) for other in positions) > 1.8 * radius:
            positions.append(position)
    crystal = bulk("Cu", "fcc", a=2.1 * 2**0.5 * radius, cubic=True)
    crystal.numbers[:] = numbers[6:]
    skew = np.array([[1.0, 0.07, 0.0], [0.0, 1.04, -0.05], [0.03, 0.0, 0.97]])
    crystal.set_cell(crystal.cell @ skew, scale_atoms=True)
    return [Atoms(numbers[:6], positions), crystal]
