"""Names that people guess: one table of hints, and the search for names of this package in its other parts.

Modules answer a wrong name after ``answer_names(__name__)``. The exported names of a part are read from its
source, so that finding a hint imports nothing but ``e3nn.o3``.
"""

from __future__ import annotations

import ast
import difflib
import dis
import importlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from types import FrameType, ModuleType
from typing import Any

from .core.errors import ArgumentError, UnknownImportError, UnknownNameError

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

#: Name or call to use -> names of other packages, and other words for it.
_WORDS: dict[str, str] = {
    f"{_RADIAL}; a plain perceptron is e3nn.nn.FullyConnectedNet": "FullyConnectedNet",
    f"{_RADIAL}; a plain perceptron is torch.nn.Sequential": "MLP",
    "eqlayers.functional.radial_basis, or a layer such as eqlayers.nn.GaussianBasis": "soft_one_hot_linspace",
    _CUTOFF: "soft_unit_step MollifierCutoff",
    "eqlayers.nn.NormalizedActivation": "normalize2mom",
    _TORCH_SUM: "scatter scatter_sum scatter_mean",
    "eqlayers.testing.check_equivariance": "assert_equivariant equivariance_test",
    "eqlayers.testing.check_equivariance, or the number alone, equivariance_residual": "equivariance_error",
    "eqlayers.testing.random_orthogonal, or eqlayers.o3.rand_matrix": "random_rotation",
    "eqlayers.o3.ReducedTensorProducts": "ReducedTensorProduct",
    "eqlayers.o3.wigner_3j, or eqlayers.algebra.wigner_3j in NumPy": "clebsch_gordan",
    "torch.Tensor of shape [..., irreps.dim]; eqlayers.Irreps describes it": "IrrepsArray IrrepsTensor",
    "eqlayers.o3.spherical_harmonics_alpha_beta": "spherical_harmonics_alpha_beta",
    "e3nn.math, or eqlayers.algebra for irreps and Wigner 3j symbols": "math",
    "e3nn.io; eqlayers.nn.CartesianTensor is here": "io",
    "e3nn.util; checks of layers are in eqlayers.testing": "util",
    "eqlayers.testing for checks of layers, or eqlayers.data for data and edges": "utils",
    "eqlayers.periodic.neighbor_list": "neighbour_list",
    _EDGES: "get_neighborhood compute_neighborlist NeighborList ASENeighborList MatScipyNeighborList TorchNeighborList",
    "eqlayers.nn.EdgeGeometry": "PairwiseDistances edge_vectors SphericalHarmonicEdgeAttrs",
    _MESSAGES: "MessagePassing Convolution Conv TensorProductConvolution TensorProductScatter",
    "eqlayers.models.Structures, which eqlayers.data.StructureDataModule makes": "AtomicData Data Batch",
    _PRODUCT: (
        "ChannelWiseTensorProduct ChannelwiseTensorProduct WeightedTensorProduct DepthwiseTensorProduct SeparableFCTP"
    ),
    "eqlayers.paths(irreps_in1, irreps_in2), which makes instructions": "instructions",
    "eqlayers.paths(irreps_in1, irreps_in2, filter_ir_out)": "tp_out_irreps_with_instructions make_instructions",
    "eqlayers.FullyConnectedTensorProduct": "FullyConnectedTP",
    "eqlayers.Linear": "LinearRS AtomwiseLinear LinearNodeEmbeddingBlock EquivariantLinear O3Linear",
    "eqlayers.nn.Interaction": (
        "InteractionBlock ConvNetLayer ConvLayer RealAgnosticInteractionBlock RealAgnosticResidualInteractionBlock"
    ),
    "eqlayers.nn.SymmetricContraction": "EquivariantProductBasisBlock Contraction",
    "eqlayers.nn.EquivariantAttention": "MultiHeadAttention Attention",
    "eqlayers.nn.Gate, or eqlayers.nn.GatedNonlinearity for given irreps": "GatedActivation",
    "eqlayers.nn.Activation": "ScalarActivation",
    "eqlayers.nn.LayerNorm or eqlayers.nn.RMSNorm": "EquivariantLayerNorm",
    "eqlayers.nn.SO2Convolution": "SO2Conv eSCNConv eSCNConvolution",
    "eqlayers.nn.Dropout": "EquivariantDropout",
    "eqlayers.nn.DropPath": "GraphDropPath",
    "eqlayers.nn.RotateFeatures, or eqlayers.nn.EdgeFrame for edges": "SO3Rotation",
    "eqlayers.nn.SphericalHarmonics": "RealSphericalHarmonics",
    "eqlayers.nn.BesselBasis": "RadialEmbeddingBlock BesselEdgeLengthEncoding RadialBasisEdgeEncoding BesselRBF",
    _RADIAL: "RadialMLP",
    "eqlayers.nn.GaussianBasis": "GaussianRBF GaussianSmearing",
    "eqlayers.nn.BesselBasis or eqlayers.nn.GaussianBasis": "RBF",
    "eqlayers.nn.PolynomialCutoff": "PolynomialEnvelope",
    "eqlayers.nn.ZBL": "ZBLBasis ZBLRepulsionEnergy PairRepulsion",
    "eqlayers.models.MACE in a eqlayers.Potential": "ScaleShiftMACE",
    "eqlayers.models.MACE": "MACEModel",
    "eqlayers.models.NequIP in a eqlayers.Potential": "NequIPGNNModel NequIPModel",
    _FOREIGN: "SevenNet",
    _FOREIGN.replace("SevenNet", "Allegro"): "Allegro",
    "eqlayers.integrations.from_mace(model), of the model that mace.calculators.mace_mp loads": "mace_mp",
    _NETWORKS: "SchNet PaiNN SO3net Network Model",
    "eqlayers.models.Equiformer": "EquiformerV2 eSCN",
    "eqlayers.models.TFN": "TensorFieldNetwork",
    _POTENTIAL: "NeuralNetworkPotential ForceField ForceStressOutput StressForceOutput Forces Atomwise",
    "eqlayers.Potential(network, shifts=, scale=)": "PerTypeScaleShift",
    "eqlayers.Potential(network, shifts=)": "AtomicEnergiesBlock",
    _OPEN: "load load_model from_pretrained from_file load_from_checkpoint",
    "eqlayers.save_potential(potential, path)": "save save_model",
    _CALCULATOR: (
        "Calculator ASECalculator EqlayersCalculator MACECalculator NequIPCalculator SevenNetCalculator SpkCalculator "
        "calculators calculator"
    ),
    "eqlayers.models.Committee, the mean of several potentials with their deviation": "Ensemble EnsembleModel",
    "eqlayers.Calculator([a, b]), which takes a list of potentials or files": "EnsembleCalculator CommitteeCalculator",
    "eqlayers.integrations.ase, whose calculator is eqlayers.Calculator": "ase",
    "the command `eqlayers md`, or eqlayers.simulate.run_dynamics": "md MD",
    "eqlayers.simulate.relax, or torch.compile for speed": "optimize",
    "torch.compile(model), which takes these layers with fullgraph=True": "compile compile_model",
    "the command `eqlayers predict`, or eqlayers.integrations.ase.predict": "predict",
    _FIT: "fit Trainer",
    "eqlayers.train.PotentialModule": "AtomisticTask NequIPLightningModule",
    _DATA: "DataModule AtomsDataModule ASEDataModule rMD17 MD17",
    "eqlayers.data.read_structures": "ASEAtomsData AtomsData read load_xyz config_from_atoms",
    "eqlayers.data.StructureDataset or eqlayers.data.MoleculeDataset": "Dataset",
    "eqlayers.data.MoleculeDataModule, or eqlayers.data.load_qm9 for the arrays": "QM9",
    "eqlayers.accelerate(model), which needs no configuration": "CuEquivarianceConfig",
    "eqlayers.accelerate(model)": "run_e3nn_to_cueq convert",
    "the argument backend of a layer; eqlayers.explain(model) says which one runs": (
        "set_backend set_optimization_defaults"
    ),
    "eqlayers.explain(model)": "get_backend",
    "eqlayers.backends.BACKENDS, the backends by name, or eqlayers.explain(model)": "eqlayers.backends()",
    "eqlayers.accelerate(calculator.models[0])": "accelerate(MACECalculator)",
    "eqlayers.accelerate(calculator.model)": "accelerate(NequIPCalculator) accelerate(SevenNetCalculator)",
    "eqlayers.accelerate(torch.load(path, weights_only=False)), if you trust the file": (
        "accelerate(str) accelerate(PosixPath) accelerate(WindowsPath)"
    ),
}
#: Names of other packages, and words for what this package calls otherwise -> what to use.
HINTS = {name: use for use, names in _WORDS.items() for name in names.split()}


def _plain(name: str) -> str:
    """A name without its style: ``SO3_Linear``, ``so3_linear`` and ``SO3Linear`` are one."""
    return name.replace("_", "").lower()


@cache
def exported(module: str) -> tuple[str, ...]:
    """The names in ``__all__`` of a module, read from its source; the module is not imported."""
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
    use = exact.get(name)
    if use is None and hasattr(importlib.import_module("e3nn.o3"), name):
        use = f"eqlayers.o3.{name}"
    use = use or plain.get(_plain(name))
    if use is None and isinstance(getattr(importlib.import_module("torch.nn"), name, None), type):
        use = f"torch.nn.{name}, as layers are modules of torch"
    exports = getattr(sys.modules.get(module), "__all__", ())
    return use or _nearest(name, {_plain(one): f"{module}.{one}" for one in exports}, plain)


def _nearest(name: str, *places: Mapping[str, str]) -> str | None:
    """The entry of the name that is spelled nearest, of the first table that has one; None for short names."""
    wrong = _plain(name)
    if len(wrong) < _SHORTEST:
        return None
    close = (difflib.get_close_matches(wrong, place, 1, _ALIKE) for place in places)
    return next((place[one[0]] for one, place in zip(close, places, strict=True) if one), None)


def no_such_name(module: str, name: str, frame: FrameType | None = None) -> Exception:
    """The error for a name that a module does not have, with a hint where there is one.

    In ``from module import name`` it is an ImportError, as Python gives an AttributeError a text of its own there.
    """
    plain = AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
    if name.startswith("_"):  # Python and its tools ask for these
        return plain
    if _is_submodule(module, name):
        use = f"Import it first: import {module}.{name}."
    elif (better := hint(name, module)) is not None:
        use = f"Use {better}."
    else:
        return plain
    text = f"a name of {module} must be one that it has, got {name!r}. {use}"
    asked_by = "" if frame is None or frame.f_lasti < 0 else dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if asked_by == "IMPORT_FROM":  # from module import name
        return UnknownImportError(text, name=module)
    return UnknownNameError(text, name=name)  # without obj, so that Python adds no guess of its own


def _is_submodule(module: str, name: str) -> bool:
    paths = getattr(sys.modules.get(module), "__path__", None)
    return paths is not None and find_spec(f"{module}.{name}") is not None


def answer_names(module: str) -> None:
    """Make a module answer a name that it does not have by an error with a hint.

    ``__getattr__`` is set here, as type checkers take a module whose source has one to have every name.

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

    sys.modules[module].__getattr__ = __getattr__  # type: ignore[method-assign]
    if f"{module}()" in HINTS:
        sys.modules[module].__class__ = _NotCalled


class _NotCalled(ModuleType):
    """A module that people take for a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        use = HINTS[f"{self.__name__}()"]
        raise ArgumentError(f"{self.__name__} must be used by its names, it is a module, got a call. Use {use}.")


class AnswersNames(type):
    """Type of a class that answers an unknown name as modules do."""

    def __getattr__(cls, name: str) -> Any:
        raise no_such_name(cls.__name__, name)
