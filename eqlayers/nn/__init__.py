"""Equivariant layers."""

from .activation import GatedNonlinearity, NormalizedActivation
from .conv import TensorProductConv
from .edge_geometry import EdgeGeometry, EdgeVectors
from .explain import explain
from .interaction import Interaction
from .linear import Linear
from .norm import Norm
from .radial import AgnesiTransform, BesselBasis, PolynomialCutoff, RadialNetwork
from .radial_table import RadialTable, TableError
from .repulsion import ZBL
from .so3_scale import SO3Scale
from .species_linear import SpeciesLinear
from .spherical_harmonics import SphericalHarmonics
from .sub_products import ElementwiseTensorProduct, FullTensorProduct, FullyConnectedTensorProduct, TensorSquare
from .symmetric_contraction import SymmetricContraction
from .tabled_basis import KnotBasis, TabledBasis
from .tensor_product import TensorProduct
from .warmup import WarmupReport, WarmupRow, warmup

__all__ = [
    "ZBL",
    "AgnesiTransform",
    "BesselBasis",
    "EdgeGeometry",
    "EdgeVectors",
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "GatedNonlinearity",
    "Interaction",
    "KnotBasis",
    "Linear",
    "Norm",
    "NormalizedActivation",
    "PolynomialCutoff",
    "RadialNetwork",
    "RadialTable",
    "SO3Scale",
    "SpeciesLinear",
    "SphericalHarmonics",
    "SymmetricContraction",
    "TableError",
    "TabledBasis",
    "TensorProduct",
    "TensorProductConv",
    "TensorSquare",
    "WarmupReport",
    "WarmupRow",
    "explain",
    "warmup",
]
