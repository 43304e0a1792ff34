"""Names that people guess: one table of hints, and the search for names of this package in its other parts.

Modules answer a wrong name by ``__getattr__ = answering(__name__)``. The exported names of a part are read from its
source, so that finding a hint imports nothing but ``e3nn.o3``.
"""

from __future__ import annotations

import ast
import difflib
import dis
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from types import FrameType
from typing import Any

from .errors import UnknownImportError, UnknownNameError

#: Parts whose exported names are searched, the first one that has a name wins.
PARTS = (
    "eqlayers", "eqlayers.nn", "eqlayers.functional", "eqlayers.models", "eqlayers.data", "eqlayers.testing",
    "eqlayers.integrations", "eqlayers.simulate", "eqlayers.train", "eqlayers.sparse",
    "eqlayers.algebra", "eqlayers.lowering", "eqlayers.backends",
    "eqlayers.periodic", "eqlayers.errors", "eqlayers.units",
)  # fmt: skip

_SHORTEST, _ALIKE = 5, 0.8  # letters of a name that is compared with others, and how alike two names must be

_CALCULATOR = "eqlayers.Calculator(potential_or_path), ASE's calculator"
_EDGES = "eqlayers.data.radius_graph for one structure; the data modules make the edges of batches themselves"
_RADIAL = "eqlayers.nn.RadialNetwork, which contains the radial basis and the envelope"
_POTENTIAL = "eqlayers.Potential, which turns a network into energy, forces and stress"
_NETWORKS = "eqlayers.models.MACE, eqlayers.models.NequIP or eqlayers.models.Equiformer"
_CUTOFF = "eqlayers.nn.SmoothCutoff"
_OPEN = "eqlayers.load_potential(path) for a potential of this package"
_FOREIGN = "eqlayers.accelerate(model) for a model of mace-torch, nequip or SevenNet"
_PRODUCT = "eqlayers.TensorProduct with the instructions of eqlayers.paths(irreps_in1, irreps_in2)"
_MESSAGES = "eqlayers.TensorProductConv, which gathers, multiplies and sums over the neighbours"
_FIT = "the command `eqlayers fit`, or eqlayers.train with Lightning"
_DATA = "eqlayers.data.StructureDataModule"
_TORCH_SUM = "torch.Tensor.index_add_, or eqlayers.TensorProductConv for messages"

#: Names of other packages, and words for what this package calls otherwise -> what to use.
HINTS: dict[str, str] = {
    # e3nn
    "FullyConnectedNet": f"{_RADIAL}; a plain perceptron is e3nn.nn.FullyConnectedNet",
    "MLP": f"{_RADIAL}; a plain perceptron is torch.nn.Sequential",
    "soft_one_hot_linspace": "eqlayers.functional.radial_basis, or a layer such as eqlayers.nn.GaussianBasis",
    "soft_unit_step": _CUTOFF,
    "normalize2mom": "eqlayers.nn.NormalizedActivation",
    "scatter": _TORCH_SUM,
    "scatter_sum": _TORCH_SUM,
    "scatter_mean": _TORCH_SUM,
    "assert_equivariant": "eqlayers.testing.check_equivariance",
    "equivariance_error": "eqlayers.testing.check_equivariance, or the number alone, equivariance_residual",
    "equivariance_test": "eqlayers.testing.check_equivariance",
    "random_rotation": "eqlayers.testing.random_orthogonal, or eqlayers.o3.rand_matrix",
    "ReducedTensorProduct": "eqlayers.o3.ReducedTensorProducts",
    "clebsch_gordan": "eqlayers.o3.wigner_3j, or eqlayers.algebra.wigner_3j in NumPy",
    "IrrepsArray": "torch.Tensor of shape [..., irreps.dim]; eqlayers.Irreps describes it",
    "IrrepsTensor": "torch.Tensor of shape [..., irreps.dim]; eqlayers.Irreps describes it",
    "spherical_harmonics_alpha_beta": "eqlayers.o3.spherical_harmonics_alpha_beta",
    "math": "e3nn.math, or eqlayers.algebra for irreps and Wigner 3j symbols",
    "io": "e3nn.io; eqlayers.nn.CartesianTensor is here",
    "util": "e3nn.util; checks of layers are in eqlayers.testing",
    "utils": "eqlayers.testing for checks of layers, or eqlayers.data for data and edges",
    # neighbours and graphs
    "neighbour_list": "eqlayers.periodic.neighbor_list",
    "get_neighborhood": _EDGES,
    "compute_neighborlist": _EDGES,
    "NeighborList": _EDGES,
    "ASENeighborList": _EDGES,
    "MatScipyNeighborList": _EDGES,
    "TorchNeighborList": _EDGES,
    "PairwiseDistances": "eqlayers.nn.EdgeGeometry",
    "edge_vectors": "eqlayers.nn.EdgeGeometry",
    "MessagePassing": _MESSAGES,
    "Convolution": _MESSAGES,
    "Conv": _MESSAGES,
    "TensorProductConvolution": _MESSAGES,
    "TensorProductScatter": _MESSAGES,
    "AtomicData": "eqlayers.models.Structures, which eqlayers.data.StructureDataModule makes",
    "Data": "eqlayers.models.Structures, which eqlayers.data.StructureDataModule makes",
    "Batch": "eqlayers.models.Structures, which eqlayers.data.StructureDataModule makes",
    # layers
    "ChannelWiseTensorProduct": _PRODUCT,
    "ChannelwiseTensorProduct": _PRODUCT,
    "WeightedTensorProduct": _PRODUCT,
    "DepthwiseTensorProduct": _PRODUCT,
    "SeparableFCTP": _PRODUCT,
    "instructions": "eqlayers.paths(irreps_in1, irreps_in2), which makes instructions",
    "tp_out_irreps_with_instructions": "eqlayers.paths(irreps_in1, irreps_in2, filter_ir_out)",
    "make_instructions": "eqlayers.paths(irreps_in1, irreps_in2, filter_ir_out)",
    "FullyConnectedTP": "eqlayers.FullyConnectedTensorProduct",
    "LinearRS": "eqlayers.Linear",
    "AtomwiseLinear": "eqlayers.Linear",
    "LinearNodeEmbeddingBlock": "eqlayers.Linear",
    "EquivariantLinear": "eqlayers.Linear",
    "O3Linear": "eqlayers.Linear",
    "InteractionBlock": "eqlayers.nn.Interaction",
    "ConvNetLayer": "eqlayers.nn.Interaction",
    "ConvLayer": "eqlayers.nn.Interaction",
    "RealAgnosticInteractionBlock": "eqlayers.nn.Interaction",
    "RealAgnosticResidualInteractionBlock": "eqlayers.nn.Interaction",
    "EquivariantProductBasisBlock": "eqlayers.nn.SymmetricContraction",
    "Contraction": "eqlayers.nn.SymmetricContraction",
    "MultiHeadAttention": "eqlayers.nn.EquivariantAttention",
    "Attention": "eqlayers.nn.EquivariantAttention",
    "GatedActivation": "eqlayers.nn.Gate, or eqlayers.nn.GatedNonlinearity for given irreps",
    "ScalarActivation": "eqlayers.nn.Activation",
    "EquivariantLayerNorm": "eqlayers.nn.LayerNorm or eqlayers.nn.RMSNorm",
    "EquivariantDropout": "eqlayers.nn.Dropout",
    "GraphDropPath": "eqlayers.nn.DropPath",
    "SO3Rotation": "eqlayers.nn.RotateFeatures, or eqlayers.nn.EdgeFrame for edges",
    "SphericalHarmonicEdgeAttrs": "eqlayers.nn.EdgeGeometry",
    "RealSphericalHarmonics": "eqlayers.nn.SphericalHarmonics",
    # radial functions
    "RadialEmbeddingBlock": "eqlayers.nn.BesselBasis",
    "BesselEdgeLengthEncoding": "eqlayers.nn.BesselBasis",
    "RadialBasisEdgeEncoding": "eqlayers.nn.BesselBasis",
    "BesselRBF": "eqlayers.nn.BesselBasis",
    "RadialMLP": _RADIAL,
    "GaussianRBF": "eqlayers.nn.GaussianBasis",
    "GaussianSmearing": "eqlayers.nn.GaussianBasis",
    "RBF": "eqlayers.nn.BesselBasis or eqlayers.nn.GaussianBasis",
    "PolynomialEnvelope": "eqlayers.nn.PolynomialCutoff",
    "MollifierCutoff": _CUTOFF,
    "ZBLBasis": "eqlayers.nn.ZBL",
    "ZBLRepulsionEnergy": "eqlayers.nn.ZBL",
    "PairRepulsion": "eqlayers.nn.ZBL",
    # networks and potentials
    "ScaleShiftMACE": "eqlayers.models.MACE in a eqlayers.Potential",
    "MACEModel": "eqlayers.models.MACE",
    "NequIPGNNModel": "eqlayers.models.NequIP in a eqlayers.Potential",
    "NequIPModel": "eqlayers.models.NequIP in a eqlayers.Potential",
    "SevenNet": _FOREIGN,
    "Allegro": _FOREIGN.replace("SevenNet", "Allegro"),
    "mace_mp": "eqlayers.integrations.from_mace(model), of the model that mace.calculators.mace_mp loads",
    "SchNet": _NETWORKS,
    "PaiNN": _NETWORKS,
    "SO3net": _NETWORKS,
    "Network": _NETWORKS,
    "Model": _NETWORKS,
    "EquiformerV2": "eqlayers.models.Equiformer",
    "eSCN": "eqlayers.models.Equiformer",
    "TensorFieldNetwork": "eqlayers.models.TFN",
    "NeuralNetworkPotential": _POTENTIAL,
    "ForceField": _POTENTIAL,
    "ForceStressOutput": _POTENTIAL,
    "StressForceOutput": _POTENTIAL,
    "Forces": _POTENTIAL,
    "Atomwise": _POTENTIAL,
    "PerTypeScaleShift": "eqlayers.Potential(network, shifts=, scale=)",
    "AtomicEnergiesBlock": "eqlayers.Potential(network, shifts=)",
    # files and calculators
    "load": _OPEN,
    "load_model": _OPEN,
    "from_pretrained": _OPEN,
    "save": "eqlayers.save_potential(potential, path)",
    "save_model": "eqlayers.save_potential(potential, path)",
    "Calculator": _CALCULATOR,
    "ASECalculator": _CALCULATOR,
    "EqlayersCalculator": _CALCULATOR,
    "MACECalculator": _CALCULATOR,
    "NequIPCalculator": _CALCULATOR,
    "SevenNetCalculator": _CALCULATOR,
    "SpkCalculator": _CALCULATOR,
    "Ensemble": "eqlayers.models.Committee, the mean of several potentials with their deviation",
    "EnsembleModel": "eqlayers.models.Committee, the mean of several potentials with their deviation",
    "EnsembleCalculator": "eqlayers.Calculator([a, b]), which takes a list of potentials or files",
    "CommitteeCalculator": "eqlayers.Calculator([a, b]), which takes a list of potentials or files",
    "calculators": _CALCULATOR,
    "calculator": _CALCULATOR,
    "ase": "eqlayers.integrations.ase, whose calculator is eqlayers.Calculator",
    "md": "the command `eqlayers md`, or eqlayers.simulate.run_dynamics",
    "MD": "the command `eqlayers md`, or eqlayers.simulate.run_dynamics",
    "optimize": "eqlayers.simulate.relax, or torch.compile for speed",
    "compile": "torch.compile(model), which takes these layers with fullgraph=True",
    "predict": "the command `eqlayers predict`, or eqlayers.integrations.ase.predict",
    # training and data
    "fit": _FIT,
    "Trainer": _FIT,
    "AtomisticTask": "eqlayers.train.PotentialModule",
    "NequIPLightningModule": "eqlayers.train.PotentialModule",
    "DataModule": _DATA,
    "AtomsDataModule": _DATA,
    "ASEDataModule": _DATA,
    "ASEAtomsData": "eqlayers.data.read_structures",
    "AtomsData": "eqlayers.data.read_structures",
    "read": "eqlayers.data.read_structures",
    "load_xyz": "eqlayers.data.read_structures",
    "config_from_atoms": "eqlayers.data.read_structures",
    "Dataset": "eqlayers.data.StructureDataset or eqlayers.data.MoleculeDataset",
    "QM9": "eqlayers.data.MoleculeDataModule, or eqlayers.data.load_qm9 for the arrays",
    "rMD17": _DATA,
    "MD17": _DATA,
    # speed
    "compile_model": "torch.compile(model), which takes these layers with fullgraph=True",
    "CuEquivarianceConfig": "eqlayers.accelerate(model), which needs no configuration",
    "run_e3nn_to_cueq": "eqlayers.accelerate(model)",
    "convert": "eqlayers.accelerate(model)",
    "set_backend": "the argument backend of a layer; eqlayers.explain(model) says which one runs",
    "get_backend": "eqlayers.explain(model)",
    "set_optimization_defaults": "the argument backend of a layer; eqlayers.explain(model) says which one runs",
}


def _plain(name: str) -> str:
    """A name without its style: ``SO3_Linear``, ``so3_linear`` and ``SO3Linear`` are one."""
    return name.replace("_", "").lower()


@cache
def exported(module: str) -> tuple[str, ...]:
    """The names in ``__all__`` of a module, read from its source; the module is not imported.

    Example:
        >>> "radius_graph" in exported("eqlayers.data")
        True
    """
    try:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        with open(spec.origin, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (AssertionError, ImportError, OSError, SyntaxError, ValueError):  # without sources there are no hints
        return ()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            try:
                return tuple(ast.literal_eval(node.value))
            except ValueError:  # put together when it is imported
                return ()
    return ()


@cache
def _places() -> tuple[dict[str, str], dict[str, str]]:
    """The names to use, by the exact name and by the name without its style."""
    exact = HINTS | {name: f"{part}.{name}" for part in reversed(PARTS) for name in exported(part)}
    return exact, {_plain(name): use for name, use in exact.items()}


def hint(name: str, module: str = "eqlayers") -> str | None:
    """The name to use in place of a name that a module does not have; None if none is known.

    A typing error is answered by the nearest name of the module itself, then by the nearest of all names.

    Example:
        >>> hint("radius_graph"), hint("Sphericalharmonics"), hint("foo")
        ('eqlayers.data.radius_graph', 'eqlayers.nn.SphericalHarmonics', None)
        >>> hint("TensorProdct", "eqlayers.nn"), hint("radius_grph", "eqlayers.nn")
        ('eqlayers.nn.TensorProduct', 'eqlayers.data.radius_graph')
    """
    exact, plain = _places()
    found = exact.get(name)
    if found is None and hasattr(importlib.import_module("e3nn.o3"), name):
        found = f"eqlayers.o3.{name}"
    own = getattr(sys.modules.get(module), "__all__", ())
    return found or plain.get(_plain(name)) or _nearest(name, {_plain(one): f"{module}.{one}" for one in own}, plain)


def _nearest(name: str, *places: Mapping[str, str]) -> str | None:
    """The entry of the name that is spelled nearest, of the first table that has one; None for short names."""
    wrong = _plain(name)
    if len(wrong) < _SHORTEST:
        return None
    close = (difflib.get_close_matches(wrong, place, 1, _ALIKE) for place in places)
    return next((place[one[0]] for one, place in zip(close, places, strict=True) if one), None)


def _is_import(frame: FrameType) -> bool:
    """Whether the frame executes ``from module import name``."""
    return frame.f_lasti >= 0 and dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def no_such_name(module: str, name: str, frame: FrameType | None = None) -> Exception:
    """The error for a name that a module does not have, with a hint where there is one.

    Args:
        module: The module that was asked.
        name: The name.
        frame: The frame that asked. Python replaces an AttributeError in ``from module import name`` by a text of its
            own, so that the error is an ImportError there.
    """
    plain = AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
    if name.startswith("_"):  # Python and its tools ask for these
        return plain
    if _is_submodule(module, name):
        use = f"Import it first: import {module}.{name}."
    elif (found := hint(name, module)) is not None:
        use = f"Use {found}."
    else:
        return plain
    text = f"a name of {module} must be one that it has, got {name!r}. {use}"
    if frame is not None and _is_import(frame):
        return UnknownImportError(text, name=module)
    return UnknownNameError(text, name=name)  # without obj, so that Python adds no guess of its own


def _is_submodule(module: str, name: str) -> bool:
    paths = getattr(sys.modules.get(module), "__path__", None)
    return paths is not None and find_spec(f"{module}.{name}") is not None


def answering(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module, for names that it does not have.

    Example:
        >>> from eqlayers import nn
        >>> nn.radius_graph
        Traceback (most recent call last):
            ...
        eqlayers.errors.UnknownNameError: a name of eqlayers.nn must be one that it has, got 'radius_graph'. Use \
eqlayers.data.radius_graph.
    """

    def __getattr__(name: str) -> Any:
        raise no_such_name(module, name, sys._getframe(1))

    return __getattr__
