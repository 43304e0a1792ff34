"""The plan of a tensor product."""

from .layers.tensor_product.plan import ProductPlan
from .moved import answer_for_former_names

__all__ = ["ProductPlan"]

answer_for_former_names(__name__)  # of pickles
