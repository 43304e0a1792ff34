"""From irreps to forms: paths and terms of products, polynomials of harmonics and contractions."""

from .plan import ProductPlan

__all__ = ["ProductPlan"]
