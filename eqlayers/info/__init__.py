"""Index structures of the sparse operations, and how they are built."""

from .build import sparse_product_infos, sparse_scale_infos
from .structs import SparseProductInfo, SparseScaleInfo

__all__ = ["SparseProductInfo", "SparseScaleInfo", "sparse_product_infos", "sparse_scale_infos"]
