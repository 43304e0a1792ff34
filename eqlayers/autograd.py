"""Autograd Functions of the sparse operations, with ``.apply`` as in PyTorch."""

from .sparse import (
    SparseInner,
    SparseMatTVec,
    SparseMul,
    SparseOuter,
    SparseProduct,
    SparseScale,
    SparseScaVec,
    SparseVecMat,
    SparseVecSca,
)

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
