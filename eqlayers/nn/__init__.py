"""Equivariant layers."""

from .linear import Linear
from .so3_scale import SO3Scale
from .sub_products import ElementwiseTensorProduct, FullTensorProduct, FullyConnectedTensorProduct, TensorSquare
from .tensor_product import TensorProduct

__all__ = [
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Linear",
    "SO3Scale",
    "TensorProduct",
    "TensorSquare",
]
