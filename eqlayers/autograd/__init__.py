"""Autograd Functions of the sparse operations, with ``.apply`` as in PyTorch."""

from .product import (
    SparseInner,
    SparseMatTVec,
    SparseMul,
    SparseOuter,
    SparseProduct,
    SparseScaVec,
    SparseVecMat,
    SparseVecSca,
)
from .scale import SparseScale

__all__ = [
    "SparseInner",
    "SparseMatTVec",
    "SparseMul",
    "SparseOuter",
    "SparseProduct",
    "SparseScaVec",
    "SparseScale",
    "SparseVecMat",
    "SparseVecSca",
]
