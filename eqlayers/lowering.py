"""The plan of a tensor product."""

from .layers.tensor_product.plan import ProductPlan

__all__ = ["ProductPlan"]
