"""Irreps: Clebsch-Gordan coefficients, matrices of rotations, and paths."""

from .irreps.algebra import as_irreps, channel_major_order, representation_matrix, tensor_product_paths, wigner_3j

__all__ = ["as_irreps", "channel_major_order", "representation_matrix", "tensor_product_paths", "wigner_3j"]
