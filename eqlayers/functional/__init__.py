"""Products, tensor products, convolutions and harmonics as functions."""

from .api import (
    as_graph,
    sparse_inner,
    sparse_mat_t_vec,
    sparse_mul,
    sparse_outer,
    sparse_product,
    sparse_scale,
    sparse_scavec,
    sparse_vecmat,
    sparse_vecsca,
    spherical_harmonics,
    tensor_product,
    tensor_product_conv,
)
from .attention import edge_softmax
from .rotations import angles_to_quaternion, matrix_to_quaternion, wigner_blocks
from .tabled import TabledWeights

__all__ = [
    "TabledWeights",
    "angles_to_quaternion",
    "as_graph",
    "edge_softmax",
    "matrix_to_quaternion",
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
    "wigner_blocks",
]
