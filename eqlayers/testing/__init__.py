"""Tools to test any layers and potentials: derivatives, equivariance, laws of potentials."""

from ..hints.names import answer_names
from .derivatives import DerivativeReport, check_derivatives
from .equivariance import EquivarianceReport, check_equivariance, equivariance_residual, random_orthogonal
from .networks import ToyNetwork
from .potentials import PotentialReport, PotentialRow, check_potential
from .samples import random_infos, random_product

__all__ = [
    "DerivativeReport",
    "EquivarianceReport",
    "PotentialReport",
    "PotentialRow",
    "ToyNetwork",
    "check_derivatives",
    "check_equivariance",
    "check_potential",
    "equivariance_residual",
    "random_infos",
    "random_orthogonal",
    "random_product",
]

answer_names(__name__)
