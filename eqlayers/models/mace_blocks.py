"""The blocks of MACE: interactions, products, read-outs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from e3nn import o3
from torch import Tensor

from ..core.backends.rows import summed_rows
from ..core.checks import check_number
from ..core.graph import Graph
from ..irreps.path_lists import paths
from ..layers.base.module import EquivariantModule, KeepsFloat64
from ..layers.contraction.module import SymmetricContraction
from ..layers.convolution.module import TensorProductConv
from ..layers.gate.activation import NormalizedActivation
from ..layers.harmonics.module import EdgeVectors
from ..layers.linear.module import Linear
from ..layers.linear.structured_linear import SpeciesLinear
from ..layers.radial.module import ScalarNetwork
from ..layers.radial.tables import KnotBasis
from ..layers.tensor_product.tabled_weights import TabledWeights


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
        received = self.down(self.product(self.up(x), edges.harmonics, self.radial(basis), graph))
        if self.density is None:
            message = received / self.mean_neighbors.to(x.dtype)
        else:
            density = self.density(basis)
            near = torch.tanh((density.weights() if isinstance(density, TabledWeights) else density) ** 2)
            neighbors = 1 + summed_rows(near, graph.edge_index[1].long(), x.shape[0])
            message = received / neighbors
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


class Readout(EquivariantModule):
    """Linear read-out of scalars and tensors of each atom, with an optional hidden layer for the scalars.

    ``irreps_out`` lists even scalars first; ``hidden`` are the scalars of the hidden layer, None for a linear read-out.

    Example:
        >>> Readout(o3.Irreps("4x0e"), o3.Irreps("0e"), o3.Irreps("2x0e"))(torch.zeros(3, 4)).tolist()
        [[0.0], [0.0], [0.0]]
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

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[A, irreps_in.dim]`` to features ``[A, irreps_out.dim]``."""
        scalars = x
        for number, linear in enumerate(self.maps):
            scalars = linear(self.activation(scalars) if number else scalars)
        parts = [scalars] if len(self.maps) else []
        return torch.cat([*parts, *([] if self.tensors is None else [self.tensors(x)])], dim=1)
