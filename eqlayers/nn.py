"""Equivariant layers."""

from .core.torch_internals import is_plain as is_plain  # isort: skip  # first, as it says which torch is needed
from .hints.names import answer_names, name_arguments
from .layers.attention.module import AttentionAggregate, EquivariantAttention
from .layers.basis.module import CartesianTensor, ChangeOfBasis
from .layers.contraction.module import SymmetricContraction
from .layers.convolution.module import Interaction, TensorProductConv
from .layers.dropout.module import Dropout, DropPath
from .layers.explain import explain
from .layers.gate.activation import GatedNonlinearity, NormalizedActivation
from .layers.gate.grid_activation import S2Activation, SO3Activation
from .layers.gate.module import Activation, Gate
from .layers.harmonics.module import EdgeGeometry, EdgeVectors, SphericalHarmonics
from .layers.linear.module import Linear
from .layers.linear.so3_scale import SO3Scale
from .layers.linear.structured_linear import IrrepwiseLinear, LowRankLinear, SpeciesLinear
from .layers.norm.batch_norm import BatchNorm, BatchRMSNorm
from .layers.norm.module import LayerNorm, MeanSquaredNorm, Norm, RMSNorm
from .layers.norm.norm_activation import NormActivation
from .layers.pointwise.module import FormulaLayer
from .layers.radial.bases import ChebyshevBasis, CosineBasis, FourierBasis, GaussianBasis, SmoothFiniteBasis
from .layers.radial.by_species import ZBL, AgnesiTransform
from .layers.radial.cutoffs import CosineCutoff, PolynomialCutoff, SmoothCutoff
from .layers.radial.module import BesselBasis, RadialBasis, RadialNetwork
from .layers.radial.radial_table import RadialTable, TableError
from .layers.radial.tables import KnotBasis, TabledBasis
from .layers.reshape.module import Extract, ExtractIr, Identity, Merge, Separable, Sort, Split
from .layers.rotation.module import EdgeFrame, RotateFeatures, WignerD
from .layers.so2.module import SO2Convolution, SO2Linear
from .layers.tensor_product.module import TensorProduct
from .layers.tensor_product.sub_products import (
    ElementwiseTensorProduct,
    FullTensorProduct,
    FullyConnectedTensorProduct,
    SO3Linear,
    TensorDot,
    TensorSquare,
)

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
    "WignerD",
    "explain",
]

name_arguments(globals(), __all__)

answer_names(__name__)
