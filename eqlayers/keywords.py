"""Arguments that constructors do not have: an error that names the right one, from one table of words for one thing.

Python refuses an unknown or a missing argument before a constructor runs, and at no cost to other calls; here its error
is put into this package's words. The example of a missing argument is the call in the docstring.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from .core.checks import got
from .core.errors import ArgumentError

_F = TypeVar("_F", bound=Callable[..., Any])
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"^([\w.<>]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.+)$")

#: Arguments of this package -> what other packages and other layers call the same. The first that is there wins.
_SAME: dict[str, str] = {
    "cutoff": (
        "r_max rmax max_r rc r_c rcut r_cut cut cutoff_radius radial_cutoff radius max_radius cutoff_upper "
        "cutoff_distance"
    ),
    "layers": (
        "num_layers n_layers nlayers layer num_interactions n_interactions num_convs n_convs num_conv_layers "
        "num_convolution_layer num_blocks depth"
    ),
    "hidden": (
        "hidden_irreps irreps_hidden hidden_channels num_channels n_channels channels num_features n_features "
        "features feature_irreps_hidden irreps hidden_dim hidden_size hidden_layers n_atom_basis sphere_channels "
        "node_irreps widths neurons hs"
    ),
    "lmax": "l_max max_l max_ell ell_max L_max L degree max_degree sh_lmax lmax_list irreps_sh irreps_edge_sh",
    "num_basis": (
        "num_bessel num_bessels n_bessel num_rbf n_rbf nrbf num_radial n_radial n_basis num_radial_basis "
        "num_basis_functions num_bessel_functions number_of_basis bessel_basis num_gaussians basis_size number"
    ),
    "radial_hidden": (
        "radial_MLP radial_mlp radial_mlp_width radial_layers radial_neurons invariant_neurons fc_neurons "
        "radial_mlp_layers hidden_radial hidden"
    ),
    "mean_neighbors": (
        "avg_num_neighbors avg_num_neigh avg_neighbors average_num_neighbors num_neighbors num_neighbours "
        "mean_neighbours mean_num_neighbors conv_denominator"
    ),
    "species": (
        "elements element_list atomic_numbers atomic_number atom_types type_names chemical_symbols chemical_species "
        "type_to_chemical_symbol z_table zs z symbols num_species num_elements num_types types"
    ),
    "num_species": "num_elements num_types num_atom_types n_species num_specie species",
    "num_elements": "num_species num_types n_elements elements",
    "p": (
        "power cutoff_p polynomial_cutoff_p PolynomialCutoff_p num_polynomial_cutoff p_cut exponent dropout "
        "drop_prob rate prob"
    ),
    "cutoff_p": "p power polynomial_cutoff_p PolynomialCutoff_p num_polynomial_cutoff p_cut",
    "correlation": "correlation_order body_order nu contraction_degree nu_max",
    "interactions": "interaction interaction_cls interaction_cls_first",
    "readout_hidden": "MLP_irreps mlp_irreps readout_irreps readout_mlp",
    "activation": "act nonlinearity activation_function act_fn gate",
    "act": "activation nonlinearity act_fn",
    "acts": "act activation activations nonlinearity",
    "heads": "num_heads n_heads num_attention_heads",
    "repulsion": "zbl ZBL pair_repulsion pair_potential",
    "shifts": "atomic_energies E0s e0s per_type_energy_shifts shift atomref atomrefs",
    "scale": "scales per_type_energy_scales atomic_inter_scale rescale std",
    "network": "model net module",
    "properties": "outputs targets output",
    "irreps_in": (
        "irreps_in1 irreps in_irreps input_irreps irreps_input feature_irreps_in irreps_node_input irreps_node "
        "node_irreps irreps1"
    ),
    "irreps_in1": "irreps_in irreps1 irreps_1 irreps_node_input irreps_x in1 feature_irreps_in",
    "irreps_in2": (
        "irreps_sh irreps2 irreps_2 irreps_edge_attr irreps_edge irreps_node_attr irreps_y in2 edge_attrs_irreps"
    ),
    "filter_ir_out": "filter filter_ir filter_irreps keep lmax l_max max_ell",
    "irreps_out": (
        "irreps_in out_irreps output_irreps irreps_output target_irreps feature_irreps_out irreps_node_output "
        "irreps_out1 irreps3 irreps_sh irreps l ls lmax l_max max_ell degrees degree out"
    ),
    "irreps_sh": (
        "irreps_edge_attr irreps_edge edge_irreps sh_irreps edge_attrs_irreps irreps_in2 edge_attr_irreps lmax"
    ),
    "irreps_edge": "irreps_sh irreps_edge_attr",
    "irreps": "irreps_in irreps_out in_irreps irreps_in1 num_features",
    "instructions": "paths instruction",
    "normalize": "normalise normalized",
    "normalization": "normalisation norm",
    "irrep_normalization": "normalization norm normalisation",
    "biases": "bias use_bias with_bias",
    "include_bias": "bias use_bias biases",
    "num_weights": "out_features num_out weight_numel num_outputs out_dim",
    "f_in": "channels_in in_features",
    "f_out": "channels_out out_features",
    "channels_out": "out_features channels",
    "shared_weights": "share_weights shared",
    "internal_weights": "own_weights learnable",
    "layout": "memory_layout data_layout layout_in1 layout_in2 layout_out math_layout",
    "backend": "method kernel implementation accelerator use_kernel",
    "eps": "epsilon",
    "epsilon": "eps",
    "affine": "elementwise_affine learnable",
    "lmax_out": "lmax",
    "lmax_in": "lmax",
    "res": "resolution grid_resolution",
    "resolution": "res grid_resolution",
    "knots": "num_knots n_knots points",
    "dtype": "default_dtype precision",
    "device": "map_location",
    "potential_or_path": "potential model model_path model_paths models path checkpoint filename",
    "path": "filename file model_path file_name",
    "potential": "model module",
    "members": "potentials models networks calculators",
    "skin": "verlet_skin neighbor_skin buffer",
}
SAME = {ours: tuple(words.split()) for ours, words in _SAME.items()}

#: Advice where more differs than the name: argument of this package -> words for it -> advice.
WRITE: dict[str, dict[str, str]] = {
    "irreps_out": {"lmax l_max max_ell": "the list of degrees, irreps_out=list(range(lmax + 1))"},
    "irreps_sh": {"lmax": "irreps_sh=eqlayers.Irreps.spherical_harmonics(lmax)"},
    "filter_ir_out": {"lmax l_max max_ell": "filter_ir_out=[(l, p) for l in range(lmax + 1) for p in (1, -1)]"},
    "lmax": {"irreps_sh irreps_edge_sh": "the highest degree, lmax="},
    "species": {"num_species num_elements num_types": "the atomic numbers, as in species=[1, 8]"},
    "hidden": {
        "hidden_channels num_channels n_channels channels num_features n_features n_atom_basis": (
            "irreps with their channels, such as hidden='32x0e + 32x1o'"
        )
    },
}

#: Calls to write where the docstring has none, or one with names that it made before.
EXAMPLES: dict[str, str] = {
    "Committee": "Committee([load_potential('member1.pt'), load_potential('member2.pt')])",
    "FormulaLayer": "FormulaLayer(lambda x: [x[0] ** 2 + x[1] ** 2 + x[2] ** 2], {'x': '8x1o'}, '8x0e')",
    "Potential": "Potential(MACE([1, 8]), [1, 8])",
    "TensorProductConv": (
        "TensorProductConv('8x0e', '0e + 1o', '8x0e + 8x1o', [(0, 0, 0, 'uvu', True), (0, 1, 1, 'uvu', True)], "
        "shared_weights=False)"
    ),
    "accelerate": "accelerate(model)",
    "load_potential": "load_potential('potential.pt')",
    "save_potential": "save_potential(potential, 'potential.pt')",
    "Calculator": "Calculator('potential.pt')",
}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The arguments of a constructor or function, and of the constructors to which it passes other arguments on."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    chain: Iterable[Any] = [function]
    if isinstance(function, type):
        stop = torch.nn.Module.__mro__
        chain = [c.__dict__["__init__"] for c in function.__mro__ if c not in stop and "__init__" in c.__dict__]
    by_name: dict[str, inspect.Parameter] = {}
    for one in chain:
        all_ = inspect.signature(one).parameters.values()
        by_name = {p.name: p for p in all_ if p.kind in kinds and p.name != "self"} | by_name
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in all_):
            break
    return list(by_name.values())


def right_name(wrong: str, names: Iterable[str]) -> str | None:
    """The argument among ``names`` that ``wrong`` means, or None.

    Example:
        >>> right_name("r_max", ["species", "cutoff"]), right_name("laeyrs", ["layers"]), right_name("foo", ["layers"])
        ('cutoff', 'layers', None)
    """
    names = [name for name in names if not name.startswith("_")]
    same = next((ours for ours, others in SAME.items() if ours in names and wrong in others), None)
    close = difflib.get_close_matches(wrong, names, 1, 0.75)
    return same or (close[0] if close else None)


def _refusal(function: Callable[..., Any], wrong: str, value: Any) -> ArgumentError:
    known = parameters(function)
    names = [p.name for p in known if not p.name.startswith("_")]
    start = f"arguments of {function.__name__} must be among those that it has, got {wrong}={got(value)}."
    right = right_name(wrong, names)
    if right is None:
        return ArgumentError(f"{start} It has {', '.join(names)}.")
    default = next(p.default for p in known if p.name == right)
    usual = "" if default in (inspect.Parameter.empty, None) else f" (by default {default!r})"
    other = (text for words, text in WRITE.get(right, {}).items() if wrong in words.split())
    return ArgumentError(f"{start} Write {next(other, f'{right}={usual}')}.")


def _answer(function: Callable[..., Any], keywords: Mapping[str, Any], error: TypeError) -> None:
    """Raise the error in this package's words, if it is one about an argument of this very call."""
    match = _UNEXPECTED.search(str(error))
    wrong = None if match is None else match[1]
    if " required " in str(error):  # where others go to a class that takes all, and the one that is needed is missing
        names = {p.name for p in parameters(function)}
        wrong = next((name for name in keywords if name not in names and right_name(name, names) is not None), None)
    if isinstance(error, ArgumentError):
        wrong = next((name for name in keywords if f" got {name}=" in str(error)), None)
    if wrong in keywords and wrong not in {p.name for p in parameters(function)}:
        raise _refusal(function, str(wrong), keywords[str(wrong)]) from None


def example(function: Callable[..., Any]) -> str | None:
    """A call of a class or function: of :data:`EXAMPLES`, or the first in its docstring; None if there is none.

    Example:
        >>> from eqlayers.nn import Dropout
        >>> example(Dropout)
        "Dropout('2x1o', 0.5)"
    """
    from doctest import DocTestParser  # needed for errors alone

    for one in function.__mro__ if isinstance(function, type) else (function,):
        if one.__name__ in EXAMPLES:
            return EXAMPLES[one.__name__]
        for statement in DocTestParser().get_examples(one.__doc__ or ""):
            calls = (node for node in ast.walk(ast.parse(statement.source)) if isinstance(node, ast.Call))
            for call in calls:
                name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", None)
                if name == one.__name__:
                    return f"{name}({', '.join(map(ast.unparse, [*call.args, *call.keywords]))})"
    return None


def _answer_missing(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any], error: TypeError
) -> None:
    """Raise the error in this package's words, if arguments of this very call are missing."""
    match = _MISSING.match(str(error))
    owners = [f"{c.__qualname__}.__init__" for c in function.__mro__] if isinstance(function, type) else []
    if match is None or match[1] not in [*owners, function.__qualname__]:
        return
    call, missing = example(function), match[2].replace("'", "")
    written = ", ".join([*map(got, args), *(f"{name}={got(value)}" for name, value in keywords.items())])
    names = ", ".join(p.name for p in parameters(function) if not p.name.startswith("_"))
    raise ArgumentError(
        f"arguments of {function.__name__} must include {missing}, got {written or 'none'}. "
        + (f"It has {names}." if call is None else f"Write, for example, {call}.")
    ) from None


def named_arguments(function: _F) -> _F:
    """Decorator of a class, or of a function that is called seldom: an unknown argument is answered by the right one.

    A missing argument is answered by its name and an example of a call.

    Example:
        >>> @named_arguments
        ... def edges(positions, cutoff=5.0): ...
        >>> edges(None, r_max=4.0)
        Traceback (most recent call last):
            ...
        eqlayers.errors.ArgumentError: arguments of edges must be among those that it has, got r_max=4.0. Write \
cutoff= (by default 5.0).
    """
    if isinstance(function, type):
        _constructor(function)
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if kwargs:
                _answer(function, kwargs, error)
            _answer_missing(function, args, kwargs, error)
            raise

    return call  # type: ignore[return-value]


def _constructor(owner: type) -> None:
    init = owner.__dict__["__init__"]

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            called = type(self).__init__
            if kwargs:
                _answer(type(self) if called is __init__ else owner, kwargs, error)
            if called is __init__:
                _answer_missing(type(self), args, kwargs, error)
            elif not hasattr(called, "names_arguments"):  # else the constructor that was called answers
                _answer_missing(owner, args, kwargs, error)
            raise

    __init__.names_arguments = True  # type: ignore[attr-defined]
    owner.__init__ = __init__  # type: ignore[misc]


def refuse_others(owner: type, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise for arguments that go on to a class that would take any, and make nothing of them."""
    for name in sorted(options.keys() - set(names)):
        raise _refusal(owner, name, options[name])


def name_arguments(part: Mapping[str, Any], names: Iterable[str]) -> None:
    """Make the constructors of a part's modules answer an unknown or a missing argument by the right name."""
    for name in names:
        value = part[name]
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            owner = next(c for c in value.__mro__ if "__init__" in c.__dict__)
            ours = owner.__module__.startswith("eqlayers.")
            if ours and not hasattr(owner.__dict__["__init__"], "names_arguments"):
                _constructor(owner)
