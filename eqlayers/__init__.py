"""O(3)-equivariant layers for PyTorch: e3nn's numbers, derivatives of every order, fast on GPUs and CPUs."""

from . import autograd, functional, info, ops
from .nn.tensor_product import TensorProduct

__version__ = "0.1.0"
__all__ = ["TensorProduct", "autograd", "functional", "info", "ops"]
