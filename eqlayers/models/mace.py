"""MACE: many-body messages from symmetric powers of the features of each atom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from e3nn import o3
from torch import Tensor

from ..atoms.elements import read_species, symbols_of
from ..core.backends.rows import summed_rows, taken
from ..core.checks import check_choice, check_flag, check_integer, check_items, check_number
from ..core.errors import ConfigError, IrrepsError
from ..core.graph import Graph
from ..irreps.algebra import as_irreps
from ..irreps.instructions import paths
from ..layers.base.module import EquivariantModule, HoldsFormulas, KeepsFloat64, run_formula
from ..layers.contraction.module import SymmetricContraction
from ..layers.convolution.module import TensorProductConv
from ..layers.gate.activation import NormalizedActivation
from ..layers.harmonics.module import EdgeVectors
from ..layers.linear.module import Linear
from ..layers.linear.structured_linear import SpeciesLinear
from ..layers.radial.by_species import AgnesiTransform
from ..layers.radial.lower import activation_formula
from ..layers.radial.module import BesselBasis, ScalarNetwork, hidden_widths
from ..layers.radial.tables import KnotBasis, TabledBasis, tabled
from ..layers.tensor_product.tabled_weights import TabledWeights
from .properties import LARGEST_DEGREE, plain_options, property_irreps, read_properties, readout_irreps


class Style(NamedTuple):
    """The differences between MACE's interactions.

    Attributes:
        residual: Whether the linear map by species acts on the features before the message and is added to the products
            (a self-connection); otherwise it acts on the message.
        density: Whether the message is divided by a learned number of neighbours; otherwise by their mean number.
    """

    residual: bool
    density: bool


#: Class name in mace-torch -> style.
INTERACTIONS = {
    "RealAgnosticInteractionBlock": Style(residual=False, density=False),
    "RealAgnosticResidualInteractionBlock": Style(residual=True, density=False),
    "RealAgnosticDensityInteractionBlock": Style(residual=False, density=True),
    "RealAgnosticDensityResidualInteractionBlock": Style(residual=True, density=True),
}


class MACE(EquivariantModule):
    r"""Higher-order equivariant message passing, with the results and the weights of mace-torch.

    .. math:: A_i = \mathrm{interaction}(x), \qquad x_i' = W \sum_{\nu \le N} B_\nu(A_i) + W_{Z_i} x_i, \qquad
              e_i = \sum_t \mathrm{readout}_t(x_i^{(t)})

    It is a network for :class:`eqlayers.models.Potential`, which adds the energies of isolated atoms, scale, pair
    repulsion and derivatives. Models of mace-torch are read by :func:`eqlayers.integrations.from_mace`.

    Args:
        species: Symbols or atomic numbers that occur.
        hidden: Irreps of the features, all of one multiplicity, scalars first; the last layer has only those that the
            properties are read from, scalars for the energy.
        correlation: Largest number of factors in a product of features, 1 to 4; or one number for each layer.
        lmax: Largest degree of the harmonics and of the messages, up to 11.
        layers: Number of interactions.
        num_basis: Bessel functions per edge.
        cutoff: Angstrom.
        cutoff_p: Power of the envelope, see :class:`eqlayers.nn.PolynomialCutoff`.
        radial_hidden: Widths of the radial networks.
        mean_neighbors: Mean number of neighbours, by which messages are divided; ``set_mean_neighbors`` sets it later.
        interactions: A class name of mace-torch in :data:`INTERACTIONS`, or one for each layer. Names without
            'Residual' have no self-connection around the products; names with 'Density' learn the number of neighbours.
        readout_hidden: Scalars of the last read-out's hidden layer.
        activation: Activation of that layer, 'silu', 'sigmoid' or 'tanh'.
        distance_transform: 'agnesi' for Bessel functions of lengths transformed by
            :class:`eqlayers.nn.AgnesiTransform`, or None.
        use_reduced_cg: Weights of independent products only, see :class:`eqlayers.nn.SymmetricContraction`.
        properties: Predicted properties, among 'energy', 'dipole' and 'polarizability'.
        knots: Number of knots of the tables that replace radial networks, see :class:`eqlayers.nn.TabledBasis`; None to
            evaluate the networks at every edge.
        backend: Name of a backend, or None for the first that supports the layer.

    Attributes:
        irreps_sh: Irreps of the spherical harmonics that ``forward`` takes.
        options: The arguments, as plain values.

    Raises:
        IrrepsError, ConfigError: An argument is invalid.

    Source:
        Batatia, Kovacs, Simm, Ortner, Csanyi, MACE, NeurIPS 2022, arXiv:2206.07697.

    Example:
        >>> from eqlayers.models import Potential, Structures
        >>> network = MACE([1, 8], hidden="4x0e + 4x1o", correlation=2, lmax=2)
        >>> water = Potential(network, species=[1, 8], shifts={1: -13.6, 8: -2041.8})
        >>> z, pos = torch.tensor([8, 1, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
        >>> pairs = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
        >>> water(Structures(z, pos, pairs))["forces"].shape
        torch.Size([3, 3])
    """

    def __init__(
        self,
        species: Sequence[int | str],
        hidden: Any = "128x0e + 128x1o",
        correlation: int | Sequence[int] = 3,
        lmax: int = 3,
        layers: int = 2,
        num_basis: int = 8,
        cutoff: float = 5.0,
        cutoff_p: int = 5,
        radial_hidden: Sequence[int] = (64, 64, 64),
        mean_neighbors: float = 12.0,
        interactions: str | Sequence[str] = "RealAgnosticResidualInteractionBlock",
        readout_hidden: Any = "16x0e",
        activation: str = "silu",
        distance_transform: str | None = None,
        use_reduced_cg: bool = False,
        properties: Sequence[str] = ("energy",),
        knots: int | None = None,
        backend: str | None = None,
    ) -> None:
        arguments = dict(locals())
        super().__init__("ir_mul", backend)
        self.species = read_species(species)
        self.hidden = read_hidden(hidden)
        self.properties = read_properties(properties)
        outputs, last_irreps = property_irreps(self.properties), readout_irreps(self.hidden, self.properties)
        count = check_integer("layers", layers, 1, fix="2 are usual.")
        check_integer("lmax", lmax, 0, LARGEST_DEGREE, fix="3 is usual.")
        self.correlation = tuple(
            check_integer("correlation", c, 1, 4, fix="3 is usual.") for c in _each("correlation", correlation, count)
        )
        self.interactions = tuple(
            check_choice("interactions", name, INTERACTIONS) for name in _each("interactions", interactions, count)
        )
        self.readout_hidden = _scalars("readout_hidden", readout_hidden)
        self.radial_hidden = tuple(hidden_widths("radial_hidden", radial_hidden))
        self.irreps_sh = o3.Irreps.spherical_harmonics(lmax)
        bessel = BesselBasis(num_basis, cutoff, cutoff_p)
        self.basis, self.cutoff = tabled(bessel, knots), bessel.envelope.cutoff
        if distance_transform is not None:
            check_choice("distance_transform", distance_transform, ("agnesi",))
        self.transform = None if distance_transform is None else AgnesiTransform(self.species)
        self.use_reduced_cg = check_flag("use_reduced_cg", use_reduced_cg)
        self.channels, number = self.hidden[0].mul, len(self.species)
        scalars = self.hidden[:1]
        self.embedding = torch.nn.Parameter(torch.randn(number, self.channels))
        self.messages, self.products, self.readouts = (torch.nn.ModuleList() for _ in range(3))
        current = scalars
        for layer, (name, degree) in enumerate(zip(self.interactions, self.correlation, strict=True)):
            last = layer == count - 1
            message = message_irreps(self.irreps_sh, current, self.channels)
            out = last_irreps if last else self.hidden
            sizes = (number, bessel.num_basis, self.radial_hidden, mean_neighbors)
            style = INTERACTIONS[name]
            self.messages.append(MACEInteraction(style, current, self.irreps_sh, message, out, *sizes, backend))
            self.products.append(MACEProduct(message, out, degree, number, self.use_reduced_cg, backend))
            between = self.readout_hidden if last and layer else None  # the read-out of a single layer is linear
            self.readouts.append(Readout(out, outputs, between, activation, backend))
            current = out
        same = ("hidden", "correlation", "radial_hidden", "interactions", "readout_hidden", "use_reduced_cg")
        read = {"lmax": self.irreps_sh.lmax, "layers": count, "num_basis": bessel.num_basis}
        read |= {"cutoff_p": bessel.envelope.p, "mean_neighbors": float(mean_neighbors)}
        self.options = plain_options(self, arguments, **{name: getattr(self, name) for name in same}, **read)
        self.lone_atoms_are_zero = not INTERACTIONS[self.interactions[0]].residual and activation != "sigmoid"

    def set_mean_neighbors(self, number: float) -> None:
        """Set the number by which messages are divided, in layers that do not learn it.

        Raises:
            ConfigError: The number is not positive.
        """
        number = check_number("mean_neighbors", number, above=0)
        for block in self.messages:
            block.get_buffer("mean_neighbors").fill_(number)

    def after_extension(self, before: int) -> None:
        """Keep the features of known species, which are embeddings divided by the root of the number of species.

        Args:
            before: Number of species before the extension; see :func:`eqlayers.models.extend_potential`.
        """
        with torch.no_grad():
            self.embedding.mul_((len(self.species) / before) ** 0.5)

    def forward(self, atom_types: Tensor, edges: EdgeVectors, graph: Graph) -> Tensor:
        """Properties of atoms, before scales and shifts.

        Args:
            atom_types: ``[A]`` int64, index of each atom's species in ``species``.
            edges: Lengths ``[E]`` in Angstrom and harmonics ``[E, irreps_sh.dim]``, normalised to 'component'.
            graph: Senders and receivers of the edges.

        Returns:
            ``[A, columns]``; see :class:`eqlayers.models.Potential`.
        """
        basis = self._radial_functions(atom_types, edges.lengths, graph)
        x = taken(self.embedding * self.embedding.shape[0] ** -0.5, atom_types)
        columns = []
        for message, product, readout in zip(self.messages, self.products, self.readouts, strict=True):
            x = product(*message(x, atom_types, edges, basis, graph), atom_types)
            columns.append(readout(x))
        return sum(columns[1:], columns[0])

    def _radial_functions(self, atom_types: Tensor, lengths: Tensor, graph: Graph) -> Tensor | KnotBasis:
        """Radial functions ``[E, num_basis]`` of edges or of pairs, or interpolation weights if they are tabled."""
        transform, lengths = self.transform, graph.of_pairs(lengths)
        if transform is None:
            functions: Tensor | KnotBasis = self.basis(lengths)
            return functions
        species = [atom_types[graph.of_pairs(end)] for end in graph.ends]
        if not isinstance(self.basis, TabledBasis):
            return self.basis(lengths, transform.between(lengths, *species))
        return self.basis.between(lengths, transform, *species)

    def extra_repr(self) -> str:
        """Species, features, correlation, degree and cutoff."""
        return (
            f"species {symbols_of(self.species)}, {self.hidden}, correlation {list(self.correlation)}, "
            f"lmax {self.irreps_sh.lmax}, cutoff {self.cutoff:g} A"
        )


def read_hidden(hidden: Any) -> o3.Irreps:
    """Parse and check irreps of features: distinct, of one multiplicity, even scalars first."""
    irreps = as_irreps(hidden, "hidden")
    copies = {mul for mul, _ in irreps}
    different = len({ir for _, ir in irreps}) == len(irreps)
    if not irreps or irreps[0].ir != o3.Irrep("0e") or len(copies) > 1 or 0 in copies or not different:
        raise IrrepsError(
            f"hidden must be different irreps of one multiplicity with even scalars first, got {irreps or 'none'}. "
            "'128x0e + 128x1o' is usual."
        )
    return irreps


def message_irreps(irreps_sh: o3.Irreps, current: o3.Irreps, channels: int) -> o3.Irreps:
    """Irreps of messages, ``channels`` of each: irreps of the harmonics, in both parities if ``current`` has 0o."""
    parities = (1, -1) if o3.Irrep("0o") in current else (1,)
    irreps = [(channels, (ir.l, ir.p * p)) for _, ir in irreps_sh for p in parities]
    return o3.Irreps(irreps).sort()[0].simplify()


def _scalars(name: str, value: Any) -> o3.Irreps:
    """Parse irreps and raise unless they are even scalars."""
    irreps = as_irreps(value, name).simplify()
    if len(irreps) != 1 or irreps[0].ir != o3.Irrep("0e") or irreps.dim == 0:
        raise IrrepsError(f"{name} must be even scalars, got {irreps or 'none'}. '16x0e' is usual.")
    return irreps


def _each(name: str, value: Any, count: int) -> list[Any]:
    """A list of ``count`` values, one for every layer, from a list or a single value."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * count
    values = check_items(name, value, "one value, or a list", "Give one.")
    if len(values) != count:
        raise ConfigError(f"{name} must be one value or {count}, one a layer, got {len(values)}. Give one.")
    return values


class MACEInteraction(KeepsFloat64, EquivariantModule):
    r"""Messages to each atom from its neighbours, and the self-connection if the style is residual.

    .. math:: m_i = \frac{1}{n_i} W_2 \sum_{j \in N(i)} (W_1 x_j) \otimes_{R(r_{ij})} Y(\hat r_{ij})

    where :math:`n_i` is the mean number of neighbours or :math:`1 + \sum_j \tanh(\rho(r_{ij})^2)`.

    Source:
        Batatia et al. 2022, arXiv:2206.07697, equations 8 and 9; for the density Batatia et al. 2023, arXiv:2401.00096.
    """

    mean_neighbors: Tensor
    kept_in_float64 = ("mean_neighbors",)

    def __init__(
        self,
        style: Style,
        irreps_in: o3.Irreps,
        irreps_sh: o3.Irreps,
        irreps_message: o3.Irreps,
        irreps_skip: o3.Irreps,
        num_species: int,
        num_basis: int,
        radial_hidden: Sequence[int],
        mean_neighbors: float,
        backend: str | None = None,
    ) -> None:
        super().__init__("ir_mul", backend)
        options: dict[str, Any] = {"layout": "ir_mul", "backend": backend}
        self.style = style
        middle, instructions = paths(irreps_in, irreps_sh, irreps_message)
        instructions = sorted(instructions, key=lambda path: path[2])  # the order of MACE's weights
        self.num_paths = len(instructions)
        self.up = Linear(irreps_in, irreps_in, **options)
        self.product = TensorProductConv(
            irreps_in, irreps_sh, middle, instructions, internal_weights=False, shared_weights=False, **options
        )
        self.radial = ScalarNetwork([num_basis, *radial_hidden, self.product.weight_numel])
        self.down = Linear(middle, irreps_message, **options)
        skip_irreps = (irreps_in, irreps_skip) if style.residual else (irreps_message, irreps_message)
        self.skip = SpeciesLinear(*skip_irreps, num_species, **options)
        self.density = ScalarNetwork([num_basis, 1]) if style.density else None
        neighbors = check_number("mean_neighbors", mean_neighbors, above=0)
        self.register_buffer("mean_neighbors", torch.tensor(neighbors, dtype=torch.float64))

    def forward(
        self, x: Tensor, species: Tensor, edges: EdgeVectors, basis: Tensor | KnotBasis, graph: Graph
    ) -> tuple[Tensor, Tensor | None]:
        """Features ``[A, irreps_in.dim]`` to messages ``[A, irreps_message.dim]``, and the self-connection or None."""
        received = self.product(self.up(x), edges.harmonics, self.radial(basis), graph)
        if self.density is None:  # the weights are fewer than the features
            message = self.down(received, self.down.weight / self.mean_neighbors)
        else:
            density = self.density(basis)
            near = torch.tanh((density.weights() if isinstance(density, TabledWeights) else density) ** 2)
            neighbors = 1 + summed_rows(graph.of_edges(near), graph.edge_index[1].long(), x.shape[0])
            message = self.down(received) / neighbors
        if self.style.residual:
            return message, self.skip(x, species)
        return self.skip(message, species), None

    def extra_repr(self) -> str:
        """Normalisation of the messages."""
        return "density" if self.style.density else f"mean neighbours {float(self.mean_neighbors):g}"


class MACEProduct(EquivariantModule):
    """Symmetric contraction of the messages, a linear map, and the sum with the self-connection."""

    def __init__(
        self,
        irreps_message: o3.Irreps,
        irreps_out: o3.Irreps,
        correlation: int,
        num_species: int,
        use_reduced_cg: bool,
        backend: str | None = None,
    ) -> None:
        super().__init__("ir_mul", backend)
        options: dict[str, Any] = {"layout": "ir_mul", "backend": backend}
        self.contraction = SymmetricContraction(
            irreps_message, irreps_out, correlation, num_species, use_reduced_cg=use_reduced_cg, **options
        )
        self.mix = Linear(irreps_out, irreps_out, **options)

    def forward(self, message: Tensor, skip: Tensor | None, species: Tensor) -> Tensor:
        """Messages ``[A, irreps_message.dim]`` to features ``[A, irreps_out.dim]``."""
        features: Tensor = self.mix(self.contraction(message, species))
        return features if skip is None else features + skip


class Readout(HoldsFormulas, EquivariantModule):
    """Linear read-out of scalars and tensors of each atom, with an optional hidden layer for the scalars.

    The activation is a formula: the submodule ``activation`` is not called.

    ``irreps_out`` lists even scalars first; ``hidden`` are the scalars of the hidden layer, None for a linear read-out.
    """

    def __init__(
        self,
        irreps_in: o3.Irreps,
        irreps_out: o3.Irreps,
        hidden: o3.Irreps | None = None,
        activation: str = "silu",
        backend: str | None = None,
    ) -> None:
        super().__init__("ir_mul", backend)
        options: dict[str, Any] = {"layout": "ir_mul", "backend": backend}
        scalars = o3.Irreps([part for part in irreps_out if part.ir.l == 0])
        others = o3.Irreps([part for part in irreps_out if part.ir.l > 0])
        widths = [irreps_in, *([] if hidden is None else [hidden]), scalars] if scalars else []
        self.maps = torch.nn.ModuleList(Linear(a, b, **options) for a, b in pairwise(widths))
        self.tensors = Linear(irreps_in, others, **options) if others else None
        self.activation = NormalizedActivation(activation)
        act = activation, self.activation.factor
        self._formulas = () if hidden is None else (activation_formula(hidden.dim, act, 1.0),)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[A, irreps_in.dim]`` to features ``[A, irreps_out.dim]``."""
        scalars = x
        for number, linear in enumerate(self.maps):
            if number:
                (scalars,) = run_formula(self._formulas[0], [scalars], None, self.backend)
            scalars = linear(scalars)
        if self.tensors is None and self.maps:
            return scalars
        parts = [scalars] if len(self.maps) else []
        return torch.cat([*parts, *([] if self.tensors is None else [self.tensors(x)])], dim=1)
