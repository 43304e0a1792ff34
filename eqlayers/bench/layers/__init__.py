"""`eqlayers bench layers`: every layer of the catalogue with its peer, e3nn's or the plainest form in torch."""

from __future__ import annotations

from .angular import ANGULAR
from .edges import EDGES
from .maps import MAPS
from .nonlinear import NONLINEAR
from .norms import NORMS
from .pair import Pair
from .polynomials import POLYNOMIALS
from .products import PRODUCTS
from .radial import RADIAL
from .reshaping import RESHAPING

__all__ = ["PAIRS", "Pair"]

PAIRS: dict[str, Pair] = {
    **POLYNOMIALS,
    **MAPS,
    **PRODUCTS,
    **NORMS,
    **NONLINEAR,
    **RESHAPING,
    **ANGULAR,
    **EDGES,
    **RADIAL,
}
