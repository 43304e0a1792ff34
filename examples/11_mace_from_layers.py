"""MACE from the layers of `eqlayers.nn`, in one sitting: messages, products, read-outs; then energy and forces.

    python examples/11_mace_from_layers.py

`eqlayers.models.MACE` has the same parts and more options (densities, distance transforms, weights of mace-torch). This
one is for reading and for changing: each line of `forward` is a line of arXiv:2206.07697. Ten seconds.
"""

import torch
from ase.build import molecule
from e3nn import o3

from eqlayers import Calculator, Potential, paths
from eqlayers.nn import ZBL, BesselBasis, Linear, RadialNetwork, SpeciesLinear, SymmetricContraction, TensorProductConv
from eqlayers.testing import check_potential

SPECIES = (1, 6, 8)


class Layer(torch.nn.Module):
    """Messages A of neighbours, products B of up to three of them on every atom, and what the atom was before."""

    def __init__(self, before, irreps_sh, after, channels, species, cutoff, neighbors):
        super().__init__()
        messages = o3.Irreps([(channels, ir) for _, ir in irreps_sh])
        product, instructions = paths(before, irreps_sh, messages)  # one weight a channel, sorted by irrep
        self.up = Linear(before, before, layout="ir_mul")
        self.conv = TensorProductConv(
            before, irreps_sh, product, instructions, internal_weights=False, shared_weights=False, layout="ir_mul"
        )
        self.radial = RadialNetwork(self.conv.weight_numel, num_basis=8, cutoff=cutoff, hidden=(32, 32))
        self.down = Linear(product, messages, layout="ir_mul")
        self.skip = SpeciesLinear(before, after, species, layout="ir_mul")
        self.contract = SymmetricContraction(messages, after, 3, species, layout="ir_mul")
        self.mix = Linear(after, after, layout="ir_mul")
        self.neighbors = neighbors

    def forward(self, x, atom_types, edges, basis, graph):
        """Features of atoms before to those after."""
        # A_i = sum over neighbours j of R(r_ij) Y(r_ij) x_j: gather, product and sum in one call, nothing kept by edge
        weights = self.radial(edges.lengths, basis)
        a = self.down(self.conv(self.up(x), edges.harmonics, weights, graph)) / self.neighbors
        # B_i = all invariant and equivariant products of one, two and three A_i, weighted by the species of the atom
        return self.mix(self.contract(a, atom_types)) + self.skip(x, atom_types)


class Network(torch.nn.Module):
    """Two layers; the energy of an atom is the sum of a linear read-out of the first and a hidden one of the second."""

    def __init__(self, species=SPECIES, channels: int = 16, lmax: int = 3, cutoff: float = 4.5, neighbors: float = 8.0):
        super().__init__()
        self.species, self.cutoff = tuple(species), cutoff
        self.options = {"species": list(species), "channels": channels, "lmax": lmax, "cutoff": cutoff}
        self.options["neighbors"] = neighbors
        self.irreps_sh = o3.Irreps.spherical_harmonics(lmax)
        scalars = o3.Irreps(f"{channels}x0e")
        features = o3.Irreps(f"{channels}x0e + {channels}x1o")
        common = (channels, len(species), cutoff, neighbors)
        self.embedding = torch.nn.Embedding(len(species), channels)
        self.basis = BesselBasis(8, cutoff)
        self.first = Layer(scalars, self.irreps_sh, features, *common)
        self.second = Layer(features, self.irreps_sh, scalars, *common)
        self.read_first = Linear(features, "0e", layout="ir_mul")
        self.read_second = torch.nn.Sequential(
            Linear(scalars, "16x0e", layout="ir_mul"), torch.nn.SiLU(), Linear("16x0e", "0e", layout="ir_mul")
        )

    def forward(self, atom_types, edges, graph):
        """``[A]``, the number of each atom."""
        basis = self.basis(graph.of_pairs(edges.lengths))  # the same for both layers
        x = self.first(self.embedding(atom_types), atom_types, edges, basis, graph)
        y = self.second(x, atom_types, edges, basis, graph)
        return (self.read_first(x) + self.read_second(y)).squeeze(-1)


def main() -> None:
    torch.manual_seed(0)
    # Potential makes edges and harmonics of positions (nn.EdgeGeometry), adds a repulsion, and differentiates
    potential = Potential(Network(), SPECIES, shifts={1: -13.6, 6: -1030.0, 8: -2042.0}, repulsion=ZBL())
    print(f"{sum(weight.numel() for weight in potential.parameters()):,} weights")
    ethanol = molecule("CH3CH2OH")
    ethanol.calc = Calculator(potential)
    print(f"ethanol, untrained: {ethanol.get_potential_energy():.3f} eV, forces {list(ethanol.get_forces().shape)}")
    report = check_potential(potential)
    print(report)
    if not report.ok:
        raise SystemExit("check failed: a property does not hold")
    print(f"check passed: all {len(report.rows)} properties of a potential hold")


if __name__ == "__main__":
    main()
