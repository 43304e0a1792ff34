"""Sparse products and scales: infos, the table of products, autograd Functions of every order, and their functions."""

from .build import sparse_product_infos, sparse_scale_infos
from .function import (
    SparseInner,
    SparseMatTVec,
    SparseMul,
    SparseOuter,
    SparseProduct,
    SparseScale,
    SparseScaVec,
    SparseVecMat,
    SparseVecSca,
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
from .info import SparseProductInfo, SparseScaleInfo
from .program import PathGroup, ProgramInfos, infos_of
from .table import PRODUCTS, Channels, Row, channels_of, register_product

__all__ = [
    "PRODUCTS",
    "Channels",
    "PathGroup",
    "ProgramInfos",
    "Row",
    "SparseInner",
    "SparseMatTVec",
    "SparseMul",
    "SparseOuter",
    "SparseProduct",
    "SparseProductInfo",
    "SparseScaVec",
    "SparseScale",
    "SparseScaleInfo",
    "SparseVecMat",
    "SparseVecSca",
    "channels_of",
    "infos_of",
    "register_product",
    "sparse_inner",
    "sparse_mat_t_vec",
    "sparse_mul",
    "sparse_outer",
    "sparse_product",
    "sparse_product_infos",
    "sparse_scale",
    "sparse_scale_infos",
    "sparse_scavec",
    "sparse_vecmat",
    "sparse_vecsca",
]
