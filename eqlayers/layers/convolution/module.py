"""The graph convolution, which gathers, multiplies and sums in one kernel, and a step of message passing around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_integer, check_number
from ...core.errors import ShapeError
from ...core.graph import Graph, refuse_edges
from ...irreps.algebra import as_irreps
from ...irreps.instructions import paths
from ..base.module import EquivariantModule, KeepsFloat64
from ..base.weights import ORDER
from ..gate.activation import GatedNonlinearity
from ..linear.module import Linear
from ..linear.structured_linear import SpeciesLinear
from ..radial.module import RadialNetwork
from ..radial.tables import KnotBasis
from ..tensor_product.module import ProductLayer
from ..tensor_product.run import run_convolution
from ..tensor_product.tabled_weights import TabledWeights


class TensorProductConv(ProductLayer):
    r"""Tensor product of every sender's features with the attributes of its edges, summed at the receivers.

    .. math:: z_i = \sum_{e = (j \to i)} x_j \otimes_{w_e} y_e

    On backends with a kernel for it (``explain()`` names them) no features per edge are ever stored, forward or
    backward: only the inputs and the output are in memory, on GPUs with some partial sums besides. Sums have a
    fixed order, so results are equal bit by bit in every call, unless ``deterministic=False``.

    Args:
        irreps_in1, irreps_in2, irreps_out, instructions: As of :class:`eqlayers.TensorProduct`; in1 are the nodes'
            features, in2 the edges' attributes.
        deterministic: False lets a GPU add the gradients of x by atomic operations, in the order in which its programs
            run. Then the gradients of z are read once per node, not once per edge; results differ from call to
            call by rounding. CPUs have a fixed order, as have GPUs under ``torch.use_deterministic_algorithms(True)``.
        **kwargs: Further arguments of :class:`eqlayers.TensorProduct`; state dicts fit both classes.

    Source:
        Thomas et al. 2018, arXiv:1802.08219; the fusion of gather, product and scatter as in Bharadwaj et al. 2025,
        arXiv:2501.13986.

    Example:
        >>> import torch
        >>> paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
        >>> conv = TensorProductConv("8x0e", "0e + 1o", "8x0e + 8x1o", paths, shared_weights=False)
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
        >>> conv(torch.randn(3, 8), torch.randn(3, 4), torch.randn(3, conv.weight_numel), edge_index).shape
        torch.Size([3, 32])
        >>> conv = TensorProductConv("8x0e", "0e + 1o", "8x0e + 8x1o", paths)  # with internal weights
        >>> conv(torch.randn(3, 8), torch.randn(3, 4), edge_index=edge_index).shape
        torch.Size([3, 32])
    """

    _owner = "TensorProductConv"
    deterministic = True

    def __init__(self, *args: Any, deterministic: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deterministic = check_flag("deterministic", deterministic)

    def forward(
        self,
        x: Tensor,
        edge_attr: Tensor,
        weight: Tensor | list[Tensor] | TabledWeights | None = None,
        edge_index: Any = None,
        num_nodes: int | None = None,
    ) -> Tensor:
        """Convolve.

        Args:
            x: ``[num_src, irreps_in1.dim]`` features of the senders.
            edge_attr: ``[E, irreps_in2.dim]``.
            weight: ``[E, weight_numel]`` per edge, as a tensor or by a table (:class:`eqlayers.nn.RadialTable`);
                ``[E / 2, weight_numel]`` for both edges of each pair of a mirrored graph; ``[weight_numel]`` if shared,
                or None for the internal weights.
            edge_index: ``[2, E]`` int64 or int32, rows (src, dst), in any order; or a :class:`eqlayers.Graph`, which
                sorts the edges once for all layers that get it.
            num_nodes: Number of receivers; as many as senders if None.

        Returns:
            ``[num_nodes, irreps_out.dim]``; zero for receivers without edges.

        Raises:
            ShapeError, DTypeError, DeviceError: The inputs do not fit the layer or each other.
            IndexRangeError: An index of an edge is out of range (checked on the CPU only).
        """
        w: Tensor | TabledWeights
        if isinstance(weight, TabledWeights):
            if self.shared_weights:
                raise ShapeError(
                    "weights by interpolation must go to a layer with shared_weights=False, got True. Build it so."
                )
            w, shared = weight, False
        else:
            try:
                w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
            except ShapeError:
                refuse_edges(f"edge_attr of {self._owner}", edge_attr, ORDER[self._owner])  # torch-geometric's order
                raise
            shared = w.ndim == 1
        z = run_convolution(self.plan, x, edge_attr, w, edge_index, num_nodes, shared, self.backend, self.deterministic)
        return self.sort(z) if self._sorts else z

    def extra_repr(self) -> str:
        """Irreps, paths, weights, backend; and whether gradients may be summed in any order."""
        return super().extra_repr() + ("" if self.deterministic else " | sums in any order")

    def dense_paths(self) -> int:
        """Always 0: matrix products would need features per edge, which a convolution never stores."""
        return 0


class Interaction(KeepsFloat64, EquivariantModule):
    r"""Message passing with channelwise tensor products, a gate and a self-connection.

    .. math:: h_i = \mathrm{gate}\Big(W_2 \frac{1}{\sqrt{\bar n}} \sum_{j \in N(i)}
              (W_1 x_j) \otimes_{R(r_{ij})} Y(\hat r_{ij}) + W_0 x_i\Big)

    and, where the irreps agree and ``residual`` is true, :math:`x_i + h_i`.

    Args:
        irreps_in, irreps_out: Irreps of the node features before and after.
        irreps_sh: Irreps of the edge attributes, multiplicity 1.
        num_basis, cutoff, radial_hidden: See :class:`RadialNetwork`.
        mean_neighbors: :math:`\bar n`, mean number of neighbours in the data.
        self_connection: 'linear', :math:`W_0` for all atoms; 'species', one for each species; 'none'.
        num_species: Number of species, of a self-connection by species.
        gate: Activation of the gates.
        residual: Whether to add the input to the output.
        p: Power of the envelope, see :class:`PolynomialCutoff`.
        layout: 'ir_mul' (the fast one) or 'mul_ir'.
        backend: Name of a backend, or None for the first that accepts.

    Source:
        Thomas et al. 2018, arXiv:1802.08219; Batzner et al. 2022, arXiv:2101.03164.

    Example:
        >>> layer = Interaction("4x0e", "0e + 1o", "4x0e + 4x1o")
        >>> src, dst = torch.tensor([0, 1]), torch.tensor([1, 0])
        >>> layer(torch.randn(2, 4), torch.randn(2, 4), torch.tensor([1.0, 1.0]), torch.stack([src, dst])).shape
        torch.Size([2, 16])
    """

    mean_neighbors: Tensor
    kept_in_float64 = ("mean_neighbors",)

    def __init__(
        self,
        irreps_in: Any,
        irreps_sh: Any,
        irreps_out: Any,
        num_basis: int = 8,
        cutoff: float = 5.0,
        radial_hidden: Sequence[int] = (64,),
        mean_neighbors: float = 1.0,
        *,
        self_connection: str = "linear",
        num_species: int = 1,
        gate: str = "sigmoid",
        residual: bool = True,
        p: int = 6,
        layout: str = "ir_mul",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in, self.irreps_out = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        options: dict[str, Any] = {"layout": layout, "backend": backend}
        middle, instructions = paths(self.irreps_in, irreps_sh, self.irreps_out)
        self.gate = GatedNonlinearity(self.irreps_out, gate=gate, **options)
        self.up = Linear(self.irreps_in, self.irreps_in, **options)
        self.product = TensorProductConv(
            self.irreps_in, irreps_sh, middle, instructions, internal_weights=False, shared_weights=False, **options
        )
        self.radial = RadialNetwork(self.product.weight_numel, num_basis, cutoff, radial_hidden, p)
        self.down = Linear(middle, self.gate.irreps_in, **options)
        check_choice("self_connection", self_connection, ("linear", "species", "none"))
        num_species = check_integer("num_species", num_species, 1)
        self.self_connection: torch.nn.Module | None = None
        if self_connection == "linear":
            self.self_connection = Linear(self.irreps_in, self.gate.irreps_in, **options)
        elif self_connection == "species":
            self.self_connection = SpeciesLinear(self.irreps_in, self.gate.irreps_in, num_species, **options)
        self.num_paths = len(instructions)
        neighbors = check_number("mean_neighbors", mean_neighbors, above=0)
        self.register_buffer("mean_neighbors", torch.tensor(neighbors, dtype=torch.float64))
        self._residual = check_flag("residual", residual) and self.irreps_in == self.irreps_out

    def forward(
        self,
        x: Tensor,
        edge_attr: Tensor,
        lengths: Tensor,
        edge_index: Tensor | Graph,
        species: Tensor | None = None,
        basis: Tensor | KnotBasis | None = None,
    ) -> Tensor:
        """Run one step of message passing.

        Args:
            x: ``[A, irreps_in.dim]`` node features.
            edge_attr: ``[E, irreps_sh.dim]`` spherical harmonics of the edges.
            lengths: ``[E]`` Angstrom; or ``[E / 2]`` of ``graph.of_pairs(lengths)``, see :class:`eqlayers.Graph`.
            edge_index: ``[2, E]`` (src, dst); dst receives. Or a :class:`eqlayers.Graph`, sorted once for all layers.
            species: ``[A]`` int64, counted from 0, for a self-connection by species.
            basis: ``[E, num_basis]``, ``radial.basis(lengths)``, which steps of one network share, or
                ``[E / 2, num_basis]`` of ``graph.of_pairs(lengths)``; or by interpolation, of a
                :class:`eqlayers.nn.TabledBasis`.

        Returns:
            ``[A, irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, IndexRangeError: The inputs do not fit the layer or each other.
        """
        received = self.product(self.up(x), edge_attr, self.radial(lengths, basis), edge_index)
        weight = self.down.weight  # multiplies the weights, which are fewer than features
        h = self.down(received, weight * self.mean_neighbors.rsqrt())
        past = None
        if self.self_connection is not None:
            by_species = isinstance(self.self_connection, SpeciesLinear)
            past = self.self_connection(x, species) if by_species else self.self_connection(x)
        return self.gate(h, past, x if self._residual else None)

    def extra_repr(self) -> str:
        """Irreps and neighbour normalisation."""
        return f"{self.irreps_in} -> {self.irreps_out} | {self.num_paths} paths | {self._kind()}"
