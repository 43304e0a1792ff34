"""Index structures of the sparse operations, and how they are built."""

from .build import sparse_product_infos, sparse_scale_infos
from .plan import ProductPlan
from .structs import SparseProductInfo, SparseScaleInfo

__all__ = ["ProductPlan", "SparseProductInfo", "SparseScaleInfo", "sparse_product_infos", "sparse_scale_infos"]
