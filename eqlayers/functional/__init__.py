"""Products, convolutions and harmonics as functions, and those beside the layers."""

from typing import TYPE_CHECKING

from ..names import answering
from ..sparse import (
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
from .api import as_graph, spherical_harmonics, tensor_product, tensor_product_conv
from .attention import attention_aggregate, edge_softmax
from .cutoffs import cosine_cutoff, polynomial_cutoff, smooth_cutoff
from .dropout import drop_path, dropout
from .norms import layer_norm, norm, rms_norm
from .radial import radial_basis
from .rotations import angles_to_quaternion, edge_frame, matrix_to_quaternion, wigner_blocks
from .so2 import so2_linear
from .tabled import TabledWeights
from .wigner import rotate, wigner_D

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

if not TYPE_CHECKING:  # a checker would take a module with __getattr__ to have every name
    __getattr__ = answering(__name__)
