"""Kinds of layers in models of other packages, one file each: how they are recognised, replaced and compared."""

from .batch_norm import AcceleratedBatchNorm
from .contracter import AcceleratedContracter
from .contraction import AcceleratedContraction, AcceleratedSymmetricContraction
from .convolution import AcceleratedConvolution, AcceleratedMessages, AcceleratedScatter
from .gate import AcceleratedGate
from .grid import AcceleratedS2Activation, AcceleratedSO3Activation
from .harmonics import AcceleratedSphericalHarmonics, RebuiltWarning
from .linear import AcceleratedLinear
from .product import AcceleratedTensorProduct, AcceleratedTensorSquare

__all__ = [
    "AcceleratedBatchNorm",
    "AcceleratedContracter",
    "AcceleratedContraction",
    "AcceleratedConvolution",
    "AcceleratedGate",
    "AcceleratedLinear",
    "AcceleratedMessages",
    "AcceleratedS2Activation",
    "AcceleratedSO3Activation",
    "AcceleratedScatter",
    "AcceleratedSphericalHarmonics",
    "AcceleratedSymmetricContraction",
    "AcceleratedTensorProduct",
    "AcceleratedTensorSquare",
    "RebuiltWarning",
]
