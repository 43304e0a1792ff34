"""Layers as functions, and functions of sparse products."""

from .core.graph import as_graph
from .hints.names import answer_names
from .layers.attention.functions import attention_aggregate, edge_softmax
from .layers.dropout.module import drop_path, dropout
from .layers.harmonics.module import spherical_harmonics
from .layers.norm.functions import layer_norm, norm, rms_norm
from .layers.radial.cutoffs import cosine_cutoff, polynomial_cutoff, smooth_cutoff
from .layers.radial.functions import radial_basis
from .layers.rotation.functions import (
    angles_to_quaternion,
    edge_frame,
    matrix_to_quaternion,
    rotate,
    wigner_blocks,
    wigner_D,
)
from .layers.so2.functions import so2_linear
from .layers.tensor_product.run import tensor_product, tensor_product_conv
from .layers.tensor_product.tabled_weights import TabledWeights
from .sparse import (
    sparse_inner,
    sparse_mat_t_vec,
    sparse_mul,
    sparse_outer,
    sparse_product,
    sparse_scale,
    sparse_scavec,
    sparse_vecmat,
    sparse_vecsca,
)

__all__ = [
    "TabledWeights",
    "angles_to_quaternion",
    "as_graph",
    "attention_aggregate",
    "cosine_cutoff",
    "drop_path",
    "dropout",
    "edge_frame",
    "edge_softmax",
    "layer_norm",
    "matrix_to_quaternion",
    "norm",
    "polynomial_cutoff",
    "radial_basis",
    "rms_norm",
    "rotate",
    "smooth_cutoff",
    "so2_linear",
    "sparse_inner",
    "sparse_mat_t_vec",
    "sparse_mul",
    "sparse_outer",
    "sparse_product",
    "sparse_scale",
    "sparse_scavec",
    "sparse_vecmat",
    "sparse_vecsca",
    "spherical_harmonics",
    "tensor_product",
    "tensor_product_conv",
    "wigner_D",
    "wigner_blocks",
]

answer_names(__name__)
