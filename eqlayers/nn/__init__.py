"""Equivariant layers."""

from typing import TYPE_CHECKING

from ..torch_internals import is_plain as is_plain  # isort: skip  # first, as it says which torch is needed
from ..keywords import name_arguments
from ..names import answering
from .activation import GatedNonlinearity, NormalizedActivation
from .attention import AttentionAggregate, EquivariantAttention
from .batch_norm import BatchNorm, BatchRMSNorm
from .cartesian import CartesianTensor
from .change_of_basis import ChangeOfBasis
from .conv import TensorProductConv
from .cutoffs import CosineCutoff, SmoothCutoff
from .distance_transform import AgnesiTransform
from .dropout import Dropout, DropPath
from .edge_frame import EdgeFrame
from .edge_geometry import EdgeGeometry, EdgeVectors
from .explain import explain
from .extract import Extract, ExtractIr, Split
from .formula_layer import FormulaLayer
from .gate import Activation, Gate
from .grid_activation import S2Activation, SO3Activation
from .interaction import Interaction
from .layer_norm import LayerNorm, RMSNorm
from .linear import Linear
from .norm import MeanSquaredNorm, Norm
from .norm_activation import NormActivation
from .radial import BesselBasis, PolynomialCutoff, RadialBasis, RadialNetwork
from .radial_basis import ChebyshevBasis, CosineBasis, FourierBasis, GaussianBasis, SmoothFiniteBasis
from .radial_table import RadialTable, TableError
from .repulsion import ZBL
from .reshaping import Identity, Merge, Separable, Sort
from .so2 import SO2Convolution, SO2Linear
from .so3_linear import SO3Linear, TensorDot
from .so3_scale import SO3Scale
from .species_linear import SpeciesLinear
from .spherical_harmonics import SphericalHarmonics
from .structured_linear import IrrepwiseLinear, LowRankLinear
from .sub_products import ElementwiseTensorProduct, FullTensorProduct, FullyConnectedTensorProduct, TensorSquare
from .symmetric_contraction import SymmetricContraction
from .tabled_basis import KnotBasis, TabledBasis
from .tensor_product import TensorProduct
from .warmup import WarmupReport, WarmupRow, warmup
from .wigner import RotateFeatures, WignerD

__all__ = [
    "ZBL",
    "Activation",
    "AgnesiTransform",
    "AttentionAggregate",
    "BatchNorm",
    "BatchRMSNorm",
    "BesselBasis",
    "CartesianTensor",
    "ChangeOfBasis",
    "ChebyshevBasis",
    "CosineBasis",
    "CosineCutoff",
    "DropPath",
    "Dropout",
    "EdgeFrame",
    "EdgeGeometry",
    "EdgeVectors",
    "ElementwiseTensorProduct",
    "EquivariantAttention",
    "Extract",
    "ExtractIr",
    "FormulaLayer",
    "FourierBasis",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Gate",
    "GatedNonlinearity",
    "GaussianBasis",
    "Identity",
    "Interaction",
    "IrrepwiseLinear",
    "KnotBasis",
    "LayerNorm",
    "Linear",
    "LowRankLinear",
    "MeanSquaredNorm",
    "Merge",
    "Norm",
    "NormActivation",
    "NormalizedActivation",
    "PolynomialCutoff",
    "RMSNorm",
    "RadialBasis",
    "RadialNetwork",
    "RadialTable",
    "RotateFeatures",
    "S2Activation",
    "SO2Convolution",
    "SO2Linear",
    "SO3Activation",
    "SO3Linear",
    "SO3Scale",
    "Separable",
    "SmoothCutoff",
    "SmoothFiniteBasis",
    "Sort",
    "SpeciesLinear",
    "SphericalHarmonics",
    "Split",
    "SymmetricContraction",
    "TableError",
    "TabledBasis",
    "TensorDot",
    "TensorProduct",
    "TensorProductConv",
    "TensorSquare",
    "WarmupReport",
    "WarmupRow",
    "WignerD",
    "explain",
    "warmup",
]

name_arguments(globals(), __all__)

if not TYPE_CHECKING:  # a checker would take a module with __getattr__ to have every name
    __getattr__ = answering(__name__)
