"""Errors for unknown names and arguments, with a suggestion: words of other packages, similar spelling, an example.

Functions import torch, and not this module: `eqlayers --help` needs it, and shall not wait for torch.

``answer_names(__name__)`` installs the errors of names in a module. The exported names of a part are read from its
source, so that a suggestion imports nothing but ``e3nn.o3``. ``named_arguments`` replaces Python's TypeError about
arguments; calls that are right cost nothing more.
"""

from __future__ import annotations

import ast
import difflib
import dis
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from types import FrameType
from typing import Any, TypeVar

from ..core.errors import ArgumentError, UnknownImportError, UnknownNameError

#: Modules whose exported names are searched, in this order.
PARTS = (
    "eqlayers", "eqlayers.nn", "eqlayers.functional", "eqlayers.models", "eqlayers.data", "eqlayers.testing",
    "eqlayers.integrations", "eqlayers.simulate", "eqlayers.train", "eqlayers.sparse",
    "eqlayers.atoms.periodic", "eqlayers.errors", "eqlayers.atoms.units",
)  # fmt: skip

_NETWORKS = "eqlayers.models.MACE, eqlayers.models.NequIP or eqlayers.models.Equiformer"
_FOREIGN = "eqlayers.accelerate(model) for a model of mace-torch, nequip, Allegro or SevenNet"
_FILE = "eqlayers.accelerate(torch.load(path, weights_only=False)), if you trust the file"

#: Name or call to use -> names in other packages, separated by spaces.
_NAMES = {
    "eqlayers.Irreps, which describes a torch.Tensor of shape [..., irreps.dim]": "IrrepsArray",
    "eqlayers.Linear": "LinearRS AtomwiseLinear EquivariantLinear",
    "eqlayers.TensorProduct with the instructions of eqlayers.paths": "ChannelWiseTensorProduct",
    "eqlayers.paths(irreps_in1, irreps_in2, filter_ir_out)": "tp_out_irreps_with_instructions instructions",
    "eqlayers.TensorProductConv, which gathers, multiplies and sums over the neighbours": "MessagePassing Convolution",
    "torch.Tensor.index_add_, or eqlayers.TensorProductConv for messages": "scatter scatter_sum",
    "eqlayers.testing.check_equivariance": "assert_equivariant equivariance_error",
    "eqlayers.o3.wigner_3j": "clebsch_gordan",
    "e3nn.io; eqlayers.nn.CartesianTensor is here": "io",
    "eqlayers.functional.radial_basis, or a layer such as eqlayers.nn.GaussianBasis": "soft_one_hot_linspace",
    "eqlayers.nn.RadialNetwork, which contains the radial basis and the envelope": "FullyConnectedNet MLP RadialMLP",
    "eqlayers.nn.BesselBasis": "RadialEmbeddingBlock BesselRBF",
    "eqlayers.nn.GaussianBasis": "GaussianRBF GaussianSmearing",
    "eqlayers.nn.PolynomialCutoff": "PolynomialEnvelope",
    "eqlayers.nn.Interaction": "InteractionBlock ConvNetLayer",
    "eqlayers.nn.SymmetricContraction": "EquivariantProductBasisBlock",
    "eqlayers.nn.SO2Convolution": "SO2Conv eSCNConv",
    _NETWORKS: "SchNet PaiNN SO3net",
    "eqlayers.models.MACE in a eqlayers.Potential": "ScaleShiftMACE",
    "eqlayers.models.TFN": "TensorFieldNetwork",
    "eqlayers.models.Structures, which eqlayers.data.StructureDataModule makes": "AtomicData Data Batch",
    "eqlayers.Potential, which turns a network into energy, forces and stress": "NeuralNetworkPotential",
    "eqlayers.load_potential(path)": "load load_model from_pretrained load_from_checkpoint",
    "eqlayers.save_potential(potential, path)": "save save_model",
    "eqlayers.Calculator(potential_or_path), ASE's calculator": (
        "Calculator ASECalculator MACECalculator NequIPCalculator SevenNetCalculator SpkCalculator calculator"
    ),
    "eqlayers.data.StructureDataModule": "DataModule AtomsDataModule",
    "eqlayers.data.read_structures": "read ASEAtomsData",
    "eqlayers.data.MoleculeDataModule, or eqlayers.data.load_qm9 for the arrays": "QM9",
    "the command `eqlayers fit`, or eqlayers.train with Lightning": "fit Trainer",
    "eqlayers.train.PotentialModule": "AtomisticTask NequIPLightningModule",
    "the command `eqlayers predict`, or eqlayers.integrations.ase.predict": "predict",
    "the command `eqlayers md`, or eqlayers.simulate.run_dynamics": "md",
    "torch.compile(model), which takes these layers with fullgraph=True": "compile",
    "eqlayers.integrations.from_mace(model), of the model that mace.calculators.mace_mp loads": "mace_mp",
    _FOREIGN: "SevenNet Allegro",
    "eqlayers.accelerate(model), which needs no configuration": "run_e3nn_to_cueq CuEquivarianceConfig",
    "the argument backend of a layer; eqlayers.explain(model) says which one runs": "backends set_backend get_backend",
    "eqlayers.accelerate(calculator.models[0])": "accelerate(MACECalculator)",
    "eqlayers.accelerate(calculator.model)": "accelerate(NequIPCalculator) accelerate(SevenNetCalculator)",
    _FILE: "accelerate(str) accelerate(PosixPath) accelerate(WindowsPath)",
}
HINTS = {name: use for use, names in _NAMES.items() for name in names.split()}

#: Argument of this package, or an expression to write -> its names in other packages. The first match wins.
ARGUMENTS = {
    "cutoff": "r_max rmax max_r r_c rcut r_cut cutoff_radius radius max_radius",
    "layers": "num_layers n_layers num_interactions n_interactions num_convs num_blocks depth",
    "hidden='32x0e + 32x1o'": "hidden_channels num_channels n_channels channels num_features n_features n_atom_basis",
    "hidden": "hidden_irreps hidden_dim hidden_size feature_irreps_hidden irreps widths neurons hs",
    "lmax, the highest degree": "irreps_sh irreps_edge_sh",
    "lmax": "l_max max_l max_ell degree sh_lmax",
    "num_basis": "num_bessel num_rbf n_rbf num_radial n_basis num_radial_basis num_gaussians number_of_basis number",
    "radial_hidden": "radial_MLP radial_mlp invariant_neurons fc_neurons hidden",
    "mean_neighbors": "avg_num_neighbors num_neighbors conv_denominator",
    "species=[1, 8], the atomic numbers": "num_species num_elements num_types",
    "species": "elements atomic_numbers atom_types type_names chemical_symbols z_table",
    "num_species": "num_elements num_types species",
    "num_elements": "num_species num_types elements",
    "p": "power num_polynomial_cutoff polynomial_cutoff_p exponent dropout drop_prob rate prob",
    "cutoff_p": "p power num_polynomial_cutoff polynomial_cutoff_p",
    "correlation": "body_order nu contraction_degree",
    "readout_hidden": "MLP_irreps readout_irreps",
    "activation": "act nonlinearity gate",
    "acts": "activation nonlinearity",
    "heads": "num_heads n_heads",
    "repulsion": "zbl ZBL pair_repulsion",
    "shifts": "atomic_energies E0s per_type_energy_shifts atomref",
    "scale": "per_type_energy_scales atomic_inter_scale std",
    "network": "model net module",
    "irreps_in": "irreps in_irreps irreps_in1 irreps_node_input",
    "irreps_in1": "irreps_in irreps_node_input feature_irreps_in",
    "irreps_in2": "irreps_sh irreps_edge_attr irreps_node_attr",
    "filter_ir_out=[(l, p) for l in range(lmax + 1) for p in (1, -1)]": "lmax l_max max_ell",
    "filter_ir_out": "filter filter_irreps",
    "irreps_out=list(range(lmax + 1)), the degrees": "lmax l_max max_ell",
    "irreps_out": "out_irreps irreps_node_output irreps_sh irreps l ls degrees",
    "irreps_sh=eqlayers.Irreps.spherical_harmonics(lmax)": "lmax",
    "irreps_sh": "irreps_edge_attr irreps_edge edge_attrs_irreps",
    "irreps": "irreps_in irreps_out num_features",
    "instructions": "paths",
    "num_weights": "out_features out_dim weight_numel",
    "layout": "memory_layout layout_in1 layout_out",
    "backend": "method kernel",
    "eps": "epsilon",
    "affine": "elementwise_affine",
    "dtype": "default_dtype precision",
    "device": "map_location",
    "potential_or_path": "model model_path model_paths checkpoint",
    "path": "filename model_path",
    "potential": "model",
}


def nearest(wrong: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """The known name with the most similar spelling; None if no similarity reaches ``alike``, between 0 and 1."""
    return next(iter(difflib.get_close_matches(wrong, known, 1, alike)), None)


def _plain(name: str) -> str:
    """A name in lower case without underscores, to compare ``SO3_Linear`` and ``SO3Linear``."""
    return name.replace("_", "").lower()


@cache
def exported(module: str) -> tuple[str, ...]:
    """The names in ``__all__`` of a module, read from its source; the module is not imported."""
    try:
        spec: Any = find_spec(module)
        with open(spec.origin, encoding="utf-8") as file:
            assigned = [node for node in ast.parse(file.read()).body if isinstance(node, ast.Assign)]
        lists = [node.value for node in assigned if any(getattr(name, "id", "") == "__all__" for name in node.targets)]
        return tuple(ast.literal_eval(lists[0])) if lists else ()
    except (AttributeError, ImportError, OSError, SyntaxError, TypeError, ValueError):
        return ()  # no suggestions without source files, or where `__all__` is computed at import


@cache
def _suggestions(module: str = "eqlayers") -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Tables of suggestions: by name, by `_plain` name, and names exported by ``module`` by `_plain` name."""
    exports = {_plain(name): f"{module}.{name}" for name in getattr(sys.modules.get(module), "__all__", ())}
    exact = HINTS | {name: f"{part}.{name}" for part in reversed(PARTS) for name in exported(part)}
    return exact, {_plain(name): use for name, use in exact.items()}, exports


def hint(name: str, module: str = "eqlayers") -> str | None:
    """A suggestion for a name that a module does not have, or None.

    Similar spellings are searched in the module itself first.
    """
    exact, plain, exports = _suggestions(module)
    use = exact.get(name)
    if use is None and hasattr(importlib.import_module("e3nn.o3"), name):
        use = f"eqlayers.o3.{name}"
    use = use or plain.get(_plain(name))
    if use is None and isinstance(getattr(importlib.import_module("torch.nn"), name, None), type):
        use = f"torch.nn.{name}, as layers are modules of torch"
    for table in (exports, plain):
        close = nearest(_plain(name), table, 0.8) if use is None and len(_plain(name)) >= 5 else None
        use = use if close is None else table[close]
    return use


def no_such_name(module: str, name: str, frame: FrameType | None = None) -> Exception:
    """The error for an unknown name, with a suggestion; an ImportError in ``from module import name``."""
    plain = AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
    if name.startswith("_"):  # Python and its tools look these up
        return plain
    if hasattr(sys.modules.get(module), "__path__") and find_spec(f"{module}.{name}") is not None:
        use = f"Import it first: import {module}.{name}."
    elif (better := hint(name, module)) is not None:
        use = f"Use {better}."
    else:
        return plain
    text = f"a name of {module} must be one that it has, got {name!r}. {use}"
    opcode = "" if frame is None or frame.f_lasti < 0 else dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if opcode == "IMPORT_FROM":  # from module import name
        return UnknownImportError(text, name=module)
    return UnknownNameError(text, name=name)  # without obj, for which Python would append a suggestion


def answer_names(module: str) -> None:
    """Install ``__getattr__`` in a module, which raises an error with a suggestion for unknown names.

    It is not in the module's source, as type checkers would assume that every name exists.
    """

    def __getattr__(name: str) -> Any:
        raise no_such_name(module, name, sys._getframe(1))

    sys.modules[module].__getattr__ = __getattr__  # type: ignore[method-assign]


class AnswersNames(type):
    """Metaclass: an unknown attribute of a class raises an error with a suggestion."""

    def __getattr__(cls, name: str) -> Any:
        raise no_such_name(cls.__name__, name)


_F = TypeVar("_F", bound=Callable[..., Any])
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"^([\w.<>]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.+)$")

#: Example calls of functions whose docstring has none, or one that uses earlier variables.
EXAMPLES: dict[str, str] = {
    "Committee": "Committee([load_potential('member1.pt'), load_potential('member2.pt')])",
    "FormulaLayer": "FormulaLayer(lambda x: [x[0] ** 2 + x[1] ** 2 + x[2] ** 2], {'x': '8x1o'}, '8x0e')",
    "Potential": "Potential(MACE([1, 8]), [1, 8])",
    "TensorProductConv": (
        "TensorProductConv('8x0e', '0e + 1o', '8x0e + 8x1o', [(0, 0, 0, 'uvu', True), (0, 1, 1, 'uvu', True)], "
        "shared_weights=False)"
    ),
    "load_potential": "load_potential('potential.pt')",
    "Calculator": "Calculator('potential.pt')",
}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a function or constructor, and of base constructors that receive its ``**kwargs``."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    chain: Iterable[Any] = [function]
    if isinstance(function, type):
        from torch.nn import Module

        stop = Module.__mro__
        chain = [c.__dict__["__init__"] for c in function.__mro__ if c not in stop and "__init__" in c.__dict__]
    by_name: dict[str, inspect.Parameter] = {}
    for init in chain:
        all_ = inspect.signature(init).parameters.values()
        by_name = {p.name: p for p in all_ if p.kind in named and p.name != "self"} | by_name
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in all_):
            break
    return list(by_name.values())


def right_name(wrong: str, names: Iterable[str]) -> str | None:
    """The argument among ``names`` that ``wrong`` probably means, or an expression to write; None if unknown.

    Example:
        >>> right_name("r_max", ["species", "cutoff"]), right_name("laeyrs", ["layers"]), right_name("foo", ["layers"])
        ('cutoff', 'layers', None)
    """
    names = [name for name in names if not name.startswith("_")]
    rows = (use for use, words in ARGUMENTS.items() if wrong in words.split())
    return next((use for use in rows if re.split(r"\W", use)[0] in names), None) or nearest(wrong, names, 0.75)


def _unknown_argument(function: Callable[..., Any], wrong: str, value: Any) -> ArgumentError:
    """The error for an unknown argument, with a suggestion."""
    from ..core.checks import got

    known = parameters(function)
    names = [p.name for p in known if not p.name.startswith("_")]
    start = f"arguments of {function.__name__} must be among those that it has, got {wrong}={got(value)}."
    right = right_name(wrong, names)
    if right is None:
        return ArgumentError(f"{start} It has {', '.join(names)}.")
    if right not in names:  # an expression to write
        return ArgumentError(f"{start} Write {right}.")
    default = next(p.default for p in known if p.name == right)
    usual = "" if default in (inspect.Parameter.empty, None) else f" (by default {default!r})"
    return ArgumentError(f"{start} Write {right}={usual}.")


def _raise_unknown(function: Callable[..., Any], keywords: Mapping[str, Any], error: TypeError) -> None:
    """Raise an ArgumentError with a suggestion if a TypeError is about an unknown keyword of this call."""
    match = _UNEXPECTED.search(str(error))
    wrong = None if match is None else match[1]
    if " required " in str(error):  # a misspelt argument went to **kwargs, so that the right one is missing
        names = {p.name for p in parameters(function)}
        wrong = next((name for name in keywords if name not in names and right_name(name, names) is not None), None)
    if isinstance(error, ArgumentError):
        wrong = next((name for name in keywords if f" got {name}=" in str(error)), None)
    if wrong in keywords and wrong not in {p.name for p in parameters(function)}:
        raise _unknown_argument(function, str(wrong), keywords[str(wrong)]) from None


def example(function: Callable[..., Any]) -> str | None:
    """An example call of a class or function, from :data:`EXAMPLES` or the first in its docstring, or None."""
    from doctest import DocTestParser  # imported only for errors

    for owner in function.__mro__ if isinstance(function, type) else (function,):
        if owner.__name__ in EXAMPLES:
            return EXAMPLES[owner.__name__]
        for statement in DocTestParser().get_examples(owner.__doc__ or ""):
            calls = (node for node in ast.walk(ast.parse(statement.source)) if isinstance(node, ast.Call))
            for call in calls:
                name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", None)
                if name == owner.__name__:
                    return f"{name}({', '.join(map(ast.unparse, [*call.args, *call.keywords]))})"
    return None


def _raise_missing(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any], error: TypeError
) -> None:
    """Raise an ArgumentError with an example if a TypeError is about missing arguments of this call."""
    match = _MISSING.match(str(error))
    owners = [f"{c.__qualname__}.__init__" for c in function.__mro__] if isinstance(function, type) else []
    if match is None or match[1] not in [*owners, function.__qualname__]:
        return
    from ..core.checks import got

    call, missing = example(function), match[2].replace("'", "")
    written = ", ".join([*map(got, args), *(f"{name}={got(value)}" for name, value in keywords.items())])
    names = ", ".join(p.name for p in parameters(function) if not p.name.startswith("_"))
    raise ArgumentError(
        f"arguments of {function.__name__} must include {missing}, got {written or 'none'}. "
        + (f"It has {names}." if call is None else f"Write, for example, {call}.")
    ) from None


def named_arguments(function: _F) -> _F:
    """Decorate a class or function: errors of unknown or missing arguments suggest the right name or an example."""
    if isinstance(function, type):
        _wrap_constructor(function)
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if kwargs:
                _raise_unknown(function, kwargs, error)
            _raise_missing(function, args, kwargs, error)
            raise

    return call  # type: ignore[return-value]


def _wrap_constructor(owner: type) -> None:
    """Replace ``__init__`` of a class by one that raises the errors of this module."""
    init = owner.__dict__["__init__"]

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            called = type(self).__init__
            if kwargs:
                _raise_unknown(type(self) if called is __init__ else owner, kwargs, error)
            if called is __init__:
                _raise_missing(type(self), args, kwargs, error)
            elif not hasattr(called, "names_arguments"):  # otherwise the constructor of the subclass raises
                _raise_missing(owner, args, kwargs, error)
            raise

    __init__.names_arguments = True  # type: ignore[attr-defined]
    owner.__init__ = __init__  # type: ignore[misc]


def refuse_others(owner: type, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise for the first of ``options`` that is not among ``names``, the arguments that ``owner`` uses."""
    for name in sorted(options.keys() - set(names)):
        raise _unknown_argument(owner, name, options[name])


def name_arguments(part: Mapping[str, Any], names: Iterable[str]) -> None:
    """Wrap constructors of the modules exported by a package part, as :func:`named_arguments` does."""
    from torch.nn import Module

    for name in names:
        value = part[name]
        if isinstance(value, type) and issubclass(value, Module):
            owner = next(c for c in value.__mro__ if "__init__" in c.__dict__)
            ours = owner.__module__.startswith("eqlayers.")
            if ours and not hasattr(owner.__dict__["__init__"], "names_arguments"):
                _wrap_constructor(owner)
