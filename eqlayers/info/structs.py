"""The place of the infos in pickles of releases before :mod:`eqlayers.sparse`."""

from ..sparse import SparseProductInfo as SparseProductInfo
from ..sparse import SparseScaleInfo as SparseScaleInfo
