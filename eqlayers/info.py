"""Index structures of the sparse operations, and how they are built; see :mod:`eqlayers.sparse`."""

from .moved import answer_for_former_names
from .sparse import SparseProductInfo, SparseScaleInfo, sparse_product_infos, sparse_scale_infos

__all__ = ["SparseProductInfo", "SparseScaleInfo", "sparse_product_infos", "sparse_scale_infos"]

answer_for_former_names(__name__)  # of pickles
