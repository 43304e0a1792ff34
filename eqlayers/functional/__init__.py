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
from .tabled import TabledWeights

__all__ = [
    "TabledWeights",
    "as_graph",
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
]
