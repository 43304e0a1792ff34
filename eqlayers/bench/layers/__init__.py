"""Layers of the catalogue with their peers for `eqlayers bench layers`: e3nn's, or plain torch."""

from __future__ import annotations

from .edges import ANGULAR, EDGES
from .features import NONLINEAR, NORMS, RESHAPING
from .pair import Pair
from .polynomials import POLYNOMIALS
from .products import PRODUCTS
from .radial import RADIAL

__all__ = ["PAIRS", "Pair"]

PAIRS: dict[str, Pair] = {**POLYNOMIALS, **PRODUCTS, **NORMS, **NONLINEAR, **RESHAPING, **ANGULAR, **EDGES, **RADIAL}
