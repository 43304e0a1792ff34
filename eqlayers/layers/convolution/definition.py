"""The definition of a graph convolution: gather, tensor product, and sum at the receivers, in float64."""

from __future__ import annotations

from torch import Tensor

from ...sparse import ProgramInfos
from ..tensor_product.definition import tensor_product


def convolution(infos: ProgramInfos, x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
    """``[num_src, in1.dim]`` features, ``[E, in2.dim]`` attributes and ``[E, W]`` weights to ``[num_nodes, out.dim]``.

    Source:
        Thomas et al. 2018, arXiv:1802.08219, section 4.1.3.
    """
    src, dst = edge_index
    messages = tensor_product(infos, x[src], y, w)
    return messages.new_zeros(num_nodes, messages.shape[1]).index_add(0, dst, messages)
