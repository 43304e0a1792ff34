"""Optimizers that know the matrices among the weights of equivariant layers."""

from .matrices import matrices_of, parameter_groups
from .soap import SOAP

__all__ = ["SOAP", "matrices_of", "parameter_groups"]
