"""Index structures of the sparse operations, and how they are built; see :mod:`eqlayers.sparse`."""

from .sparse import SparseProductInfo, SparseScaleInfo, sparse_product_infos, sparse_scale_infos

__all__ = ["SparseProductInfo", "SparseScaleInfo", "sparse_product_infos", "sparse_scale_infos"]
