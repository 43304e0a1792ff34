"""O(3)-equivariant layers for PyTorch: e3nn's numbers, derivatives of every order, fast on GPUs and CPUs."""

from . import autograd, backends, errors, functional, info, nn, o3, ops
from .graph import Graph
from .info.structs import SparseProductInfo, SparseScaleInfo
from .integrations import accelerate, deaccelerate
from .lowering.layout import to_ir_mul, to_mul_ir
from .memory import keep_memory, release_memory
from .models.compression import compress, decompress
from .nn import (
    ElementwiseTensorProduct,
    FullTensorProduct,
    FullyConnectedTensorProduct,
    Linear,
    SO3Scale,
    TensorProduct,
    TensorProductConv,
    TensorSquare,
    explain,
    warmup,
)

__version__ = "0.1.0"

__all__ = [
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Graph",
    "Linear",
    "SO3Scale",
    "SparseProductInfo",
    "SparseScaleInfo",
    "TensorProduct",
    "TensorProductConv",
    "TensorSquare",
    "accelerate",
    "autograd",
    "backends",
    "compress",
    "deaccelerate",
    "decompress",
    "errors",
    "explain",
    "functional",
    "info",
    "integrations",
    "keep_memory",
    "nn",
    "o3",
    "ops",
    "release_memory",
    "to_ir_mul",
    "to_mul_ir",
    "warmup",
]
