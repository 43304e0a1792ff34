"""The graph convolution of equivariant networks: gather, tensor product and sum over neighbours in one kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...core.checks import check_flag
from ...core.errors import ShapeError
from ...core.graph import refuse_edges
from ..base.weights import ORDER
from ..tensor_product.base import ProductLayer
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
                ``[weight_numel]`` if shared, or None for the internal weights.
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
