"""Every argument of every public callable, given wrongly: an error that says what must be, what came, and the fix."""

import inspect
import re
import reprlib
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers import functional, models, nn, sparse, testing
from eqlayers.core import backends
from eqlayers.errors import EqlayersError
from eqlayers.irreps import algebra
from eqlayers.layers.tensor_product.lower import ProductPlan
from tests.catalogue import bad_calls
from tests.catalogue.cases import on_backend
from tests.catalogue.test_layers import CASES as LAYERS

#: What must be, what came, the fix: of every message.
GRAMMAR = re.compile(r".+ (must|needs|holds|is) .+[,;] .*(got|found) .+\. [A-Z0-9].+\.$", re.DOTALL)

WRONG: dict[str, list[Any]] = runpy.run_path(str(Path(__file__).with_name("wrong_values.py")))["WRONG"]


@dataclass
class Case:
    """A call that works, and the keys of wrong values of arguments whose annotations say too little."""

    function: Callable[..., Any]
    good: dict[str, Any]
    kinds: dict[str, str]
    own: dict[str, list[Any]] = field(default_factory=dict)  # kinds that mean something else in its file


#: A MACE that is made at once.
SMALL = {"hidden": "2x0e", "correlation": 1, "lmax": 1, "layers": 1, "radial_hidden": [2]}
LAYER = {"layout": "choice", "backend": "backend"}
PRODUCT = {
    "in1_var": "variances", "in2_var": "variances", "out_var": "variances", "irrep_normalization": "optional choice",
    "path_normalization": "optional choice", "internal_weights": "option flag", "shared_weights": "option flag",
    "compile_left_right": "flag", "compile_right": "flag", "normalization": "optional choice", **LAYER,
}  # fmt: skip
SUB = {name: PRODUCT[name] for name in ("irrep_normalization", "internal_weights", "shared_weights", *LAYER)}
TWO = {"irreps_in1": "2x0e + 1o", "irreps_in2": "0e + 1o"}
ROWS = [(0, 0, 0, "uvw", True), (1, 0, 1, "uvw", True)]
FULL = {**TWO, "irreps_out": "3x0e + 2x1o", "instructions": ROWS}

TP = eq.TensorProduct(*FULL.values())
SAMPLES = eq.TensorProduct(*FULL.values(), shared_weights=False)
CONV = eq.TensorProductConv(*FULL.values(), shared_weights=False)
LINEAR = eq.Linear("2x0e + 1o", "3x0e + 1o", biases=True)
EXTERNAL = eq.SO3Scale("2x0e + 1o", "external")
X, Y = torch.ones(4, 5), torch.ones(4, 4)
W = torch.ones(TP.weight_numel)
EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])
CONVOLVE = {"x": X, "edge_attr": torch.ones(3, 4), "weight": torch.ones(3, CONV.weight_numel), "edge_index": EDGES}
INFOS = sparse.sparse_product_infos([0, 1], [1, 0], [0, 0], in1_size=2, in2_size=2, out_size=1)
SCALES = sparse.sparse_scale_infos([0, 1], [1, 0], [2.0, 3.0], in_size=2, out_size=2)
SPARSE = {"input1": torch.ones(4, 2, 1), "input2": torch.ones(4, 2, 1), "info_fwd": INFOS[0]}
SPARSE_KINDS = {"input1": "sparse", "input2": "sparse", "info_fwd": "info"}
SPARSE_KINDS |= {"out_accumulated": "flag", "backend": "backend"}
HARMONICS = {"irreps_out": "degrees", "normalization": "choice", "irreps_in": "vector irreps", "backend": "backend"}
BOTH = {"device": "device", "dtype": "dtype"}

CASES: dict[str, Case] = {
    "TensorProduct": Case(eq.TensorProduct, FULL, {"instructions": "instructions", **PRODUCT}),
    "TensorProductConv": Case(eq.TensorProductConv, FULL, {"instructions": "instructions", **LAYER}),
    "FullyConnectedTensorProduct": Case(eq.FullyConnectedTensorProduct, {**TWO, "irreps_out": "3x0e"}, SUB),
    "ElementwiseTensorProduct": Case(eq.ElementwiseTensorProduct, {"irreps_in1": "2x0e + 1o",
        "irreps_in2": "2x0e + 1o"}, SUB),
    "FullTensorProduct": Case(eq.FullTensorProduct, TWO, SUB),
    "TensorSquare": Case(eq.TensorSquare, {"irreps_in": "2x0e + 1o"}, SUB),
    "Linear with channels": Case(eq.Linear, {"irreps_in": "0e", "irreps_out": "0e", "f_in": 2, "f_out": 2},
        {"f_in": "width", "f_out": "width"}),
    "SphericalHarmonics": Case(nn.SphericalHarmonics, {"irreps_out": 1, "normalize": True}, HARMONICS),
    "EdgeGeometry": Case(nn.EdgeGeometry, {"irreps_out": 1}, HARMONICS),
    "SO3Scale fixed": Case(eq.SO3Scale, {"irreps": "0e", "scale": "fixed", "values": 1.0}, {"values": "values"}),
    "SymmetricContraction": Case(nn.SymmetricContraction, {"irreps_in": "2x0e + 2x1o", "irreps_out": "2x1o",
        "correlation": 2, "num_elements": 3}, {"use_reduced_cg": "flag"}),
    "SymmetricContraction.forward": Case(nn.SymmetricContraction("5x0e", "5x0e", 2, 2).forward, {"x": X,
        "y": torch.zeros(4).long()}, {"y": "index"}),
    "SpeciesLinear.forward": Case(nn.SpeciesLinear("5x0e", "5x0e", 2).forward, {"features": X,
        "kind": torch.zeros(4).long()}, {"kind": "index"}),
    "RadialNetwork": Case(nn.RadialNetwork, {"num_weights": 3}, {"num_weights": "count", "hidden": "widths"}),
    "RadialTable": Case(nn.RadialTable, {"network": nn.RadialNetwork(3)}, {"network": "function",
        "tolerance": "positive"}),
    "TabledBasis": Case(nn.TabledBasis, {"basis": nn.BesselBasis()}, {}),
    "AgnesiTransform": Case(nn.AgnesiTransform, {"species": [1, 8]}, {"q": "positive", "p": "positive"}),
    "MACE": Case(models.MACE, {"species": [1, 8], **SMALL}, {"correlation": "width", "interactions": "choice"}),
    "compress": Case(eq.compress, {"model": models.TFN([1, 8], "2x0e + 2x1o")}, {"species": "elements"}),
    "decompress": Case(eq.decompress, {"model": models.TFN([1, 8], "2x0e + 2x1o")}, {}),
    "TFN": Case(models.TFN, {"species": [1, 8], "hidden": "2x0e + 2x1o"}, {}),
    "explain": Case(eq.explain, {}, {"module": "module"}),
    "TensorProduct.explain": Case(TP.explain, {}, BOTH),
    "TensorProduct.selected_backend": Case(TP.selected_backend, {}, BOTH),
    "TensorProduct.forward per sample": Case(SAMPLES.forward, {"x": X, "y": Y, "weight": torch.ones(4,
        SAMPLES.weight_numel)}, {"x": "features", "y": "features", "weight": "weight"}),
    "TensorProduct.right": Case(TP.right, {"y": Y}, {}),
    "TensorProduct.weight_view": Case(TP.weight_view_for_instruction, {"instruction": 0}, {"instruction": "nodes"}),
    "Linear.forward": Case(LINEAR.forward, {"features": X}, {"bias": "weight"}),
    "EdgeGeometry.forward": Case(nn.EdgeGeometry([0, 1]).forward, {"pos": X[:, :3], "edge_index": EDGES,
        "shifts": X[:3, :3], "cell": torch.ones(2, 3, 3), "batch": EDGES[0, [0] * 4]}, {"batch": "numbers"}),
    "spherical_harmonics": Case(functional.spherical_harmonics, {"l": 1, "x": X[:, :3], "normalize": True},
        {"l": "degrees"}),
    "RadialTable.forward": Case(nn.RadialTable(nn.RadialNetwork(3)).forward, {"lengths": torch.ones(4)}, {}),
    "TabledBasis.forward": Case(nn.TabledBasis(nn.BesselBasis()).forward, {"lengths": torch.ones(4)}, {}),
    "SO3Scale.forward": Case(EXTERNAL.forward, {"x": X, "scales": torch.ones(4, 3)}, {}),
    "Interaction.forward": Case(nn.Interaction("2x0e + 1o", "0e + 1o", "2x0e + 1o").forward, {"x": X,
        "edge_attr": torch.ones(3, 4), "lengths": torch.ones(3), "edge_index": EDGES}, {"species": ""}),
    "TensorProduct.from_e3nn": Case(eq.TensorProduct.from_e3nn, {"module": o3.FullTensorProduct("0e", "0e")}, {}),
    "Linear.from_e3nn": Case(eq.Linear.from_e3nn, {"module": o3.Linear("0e", "0e")}, {}),
    "Graph": Case(eq.Graph, {"edge_index": EDGES, "num_src": 4}, {"edge_index": "edges of any nodes",
        "num_dst": "nodes"}),
    "as_graph": Case(functional.as_graph, {"edge_index": EDGES, "num_src": 4}, {"edge_index": "edges of any nodes",
        "num_dst": "nodes"}),
    "to_ir_mul": Case(eq.to_ir_mul, {"x": X, "irreps": "2x0e + 1o"}, {"x": "anything"}),
    "to_mul_ir": Case(eq.to_mul_ir, {"x": X, "irreps": "2x0e + 1o"}, {"x": "anything"}),
    "tensor_product": Case(functional.tensor_product, {"plan": TP.plan, "x": X, "y": Y, "weight": W}, {}),
    "tensor_product_conv": Case(functional.tensor_product_conv, {"plan": CONV.plan, **CONVOLVE}, {}),
    "sparse_product": Case(functional.sparse_product, {"product": "mul", **SPARSE}, {}),
    "sparse_mul": Case(functional.sparse_mul, SPARSE, SPARSE_KINDS),
    "sparse_outer": Case(functional.sparse_outer, SPARSE, SPARSE_KINDS),
    "sparse_scale": Case(functional.sparse_scale, {"input": torch.ones(4, 2, 1), "info_fwd": SCALES[0]}, {}),
    "sparse_product_infos": Case(sparse.sparse_product_infos, {
        "index1": [0, 1], "index2": [1, 0], "index_out": [0, 0], "in1_size": 2, "in2_size": 2, "out_size": 1}, {}),
    "sparse_scale_infos": Case(sparse.sparse_scale_infos, {"index": [0, 1], "index_out": [1, 0], "in_size": 2,
        "out_size": 2}, {}),
    "as_irreps": Case(algebra.as_irreps, {"value": "0e"}, {"value": "irreps", "name": ""}),
    "tensor_product_paths": Case(algebra.tensor_product_paths, TWO, {}),
    "paths": Case(eq.paths, TWO, {"filter_ir_out": "filter or irreps", "irreps_out": "optional irreps"}),
    "representation_matrix": Case(algebra.representation_matrix, {"irreps": "1o", "matrix": np.eye(3)},
        {"matrix": "matrix"}),
    "wigner_3j": Case(algebra.wigner_3j, {"l1": 1, "l2": 1, "l3": 0}, {"l1": "degree", "l2": "degree", "l3": "degree"}),
    "SparseProductInfo": Case(sparse.SparseProductInfo, INFOS[0]._asdict(), {"scale": "info scale",
        "index1": "info index", "index2": "info index", "seg_out": "info index", "out_size": "out size",
        "gather_index": "", "index_out": ""}),
    "SparseScaleInfo": Case(sparse.SparseScaleInfo, SCALES[0]._asdict(), {"scale": "info scale",
        "index": "info index", "seg_out": "info index", "out_size": "out size"}),
    "ProductPlan": Case(ProductPlan, {"irreps": (TP.irreps_in1, TP.irreps_in2, TP.irreps_out),
        "instructions": TP.instructions, "layout": "mul_ir"}, {"irreps": "irrep list"}),
    "SparseMul.apply": Case(sparse.SparseMul.apply, SPARSE, SPARSE_KINDS),
    "SparseScale.apply": Case(sparse.SparseScale.apply, {"input": torch.ones(4, 2, 1), "info_fwd": SCALES[0],
        "info_bwd": SCALES[1], "backend": None}, {}),
    "channels_of": Case(sparse.channels_of, {"product": "mul"}, {}),
    "register_product": Case(sparse.register_product, {"name": "times", "channels": "u,u->u"}, {"name": "name",
        "channels": "channels"}),
    "find": Case(backends.find, {"name": "cpu"}, {"name": "backend"}),
    "check_backend": Case(backends.check_backend, {"name": "cpu"}, {"name": "backend"}),
    "check_derivatives": Case(testing.check_derivatives, {"fn": torch.sin,
        "inputs": [torch.zeros(1, dtype=torch.float64, requires_grad=True)], "order": 1}, {
        "fn": "function", "inputs": "tensors"}),
    "equivariance_residual": Case(testing.equivariance_residual, {"fn": lambda x: x, "irreps_in": ["1o"],
        "irreps_out": "1o"}, {"fn": "function", "irreps_in": "irrep texts", "inputs": "optional tensors",
        "determinant": "determinant"}),
    "check_equivariance": Case(testing.check_equivariance, {"module": TP}, {"inputs": "inputs of a module",
        "irreps_in": "irreps of a module", "irreps_out": "optional irreps of two", "layout": "optional choice"}),
    "random_orthogonal": Case(testing.random_orthogonal, {}, {"determinant": "determinant"}),
    "random_infos": Case(testing.random_infos, {}, {"rows": "rows"}),
    "random_product": Case(testing.random_product, {"product": "mul"}, {"batched": "two flags", "rows": "rows",
        "extents": "extents"}),
}  # fmt: skip
WRONG["optional irreps"] = [value for value in WRONG["irreps"] if value is not None]
WRONG["filter or irreps"] = ["q", ["q"], 3, [None], [1.5], b"0e", {"0e": 1}, "3o", ["3o"], torch.ones(2)]
WRONG["optional irreps of two"] = [*WRONG["optional irreps"], "1o", ["1o", "1o"], []]
WRONG["irreps of a module"] = [
    "0e", 1, [7], ["8x"], ["1o", "1o"], ["2x0e + 1o", "0e + 1o", "0e"], [None, None], torch.ones(2)]  # fmt: skip
WRONG["inputs of a module"] = [1, "x", [], [X], [X, X], [X.long(), Y], [None, Y], [X, "x"], torch.ones(())]
WRONG["anything"] = [value for value in WRONG["features"] if not isinstance(value, torch.Tensor)]
_FILES = [runpy.run_path(str(path)) for path in sorted(Path(__file__).with_name("bad_calls").glob("*.py"))]
for _more in _FILES:  # further families of layers
    _twice = sorted(CASES.keys() & _more["ROWS"].keys())
    assert not _twice, f"the table of bad calls has the rows {_twice} twice: leave one of each"
    CASES |= {name: Case(*row, own=_more["WRONG"]) for name, row in _more["ROWS"].items()}
WRONG = {kind: values for more in _FILES for kind, values in more["WRONG"].items()} | WRONG


for _name, _case in CASES.items():
    if " " not in _name:  # further calls of a function, such as "Gate of two", have their own arguments alone
        # an empty key leaves an argument to another row
        _kinds = bad_calls.arguments_of(_case.function) | _case.kinds
        _case.kinds = {_argument: _kind for _argument, _kind in _kinds.items() if _kind}


def functions_of(case: Case) -> set[Any]:
    """The function of a case, and the functions that it wraps."""
    functions, function = set(), case.function
    while function is not None:
        functions.add(getattr(function, "__func__", function))
        function = getattr(function, "__wrapped__", None)
    return functions


COVERED: dict[Any, set[str]] = {}
for _case in CASES.values():
    for _function in functions_of(_case):
        COVERED.setdefault(_function, set()).update(_case.kinds)
#: Layers without rows above, from their rows of the catalogue -> the row, the function, and what makes a call of it.
OF_LAYERS: dict[str, tuple[Any, Any, Callable[..., Any]]] = {}
for _layer in LAYERS:
    _name = _layer.name.partition(",")[0]
    for _call, _function, _make in (
        (_name, getattr(nn, _name), bad_calls.constructed),
        (f"{_name}.forward", getattr(nn, _name).forward, bad_calls.called),
    ):
        _arguments = set(bad_calls.arguments_of(_function))
        if _call not in CASES and _arguments - COVERED.get(_function, set()):
            OF_LAYERS[_call] = (_layer, _function, _make)
            COVERED.setdefault(_function, set()).update(_arguments)


def case_of(name: str) -> Case:
    """A row of the table, or the call of a row of the catalogue."""
    if name in CASES:
        return CASES[name]
    layer, function, make = OF_LAYERS[name]
    return Case(*make(layer), bad_calls.arguments_of(function))


#: Values of the table that an argument takes after all, with the reason.
TAKEN: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("explain", "module"): lambda value: value is None,  # a small product
    ("EdgeGeometry.forward", "cell"): lambda value: value is None,  # the shifts then are vectors
    ("GatedNonlinearity.forward", "added"): lambda value: value is None,  # nothing
    ("GatedNonlinearity.forward", "residual"): lambda value: value is None,
    ("RadialTable", "cutoff"): lambda value: value is None,  # that of the network
    ("RadialTable", "tolerance"): lambda value: value is None,
    ("compress", "species"): lambda value: value is None,  # all
    ("RadialTable.forward of functions", "basis"): lambda value: True,  # not read
    ("TensorSquare", "irreps_out"): lambda value: value is None,  # the irreps of the full product
    ("TensorSquare of irreps_out", "irreps_out"): lambda value: value is None,  # the irreps of the full product
    ("EquivariantAttention", "hidden"): lambda value: type(value) is int,  # channels of every degree
    ("NequIP", "embedding"): lambda value: value is None,  # as many as scalars
    ("MoleculeNetwork", "layers"): lambda value: type(value) is int and value == 0,  # no message at all
    ("Potential.set_statistics", "mean_neighbors"): lambda value: value is None,  # stays
    ("MoleculeNetwork.forward", "edge_index"): lambda value: getattr(value, "shape", None) == (2, 2),
    ("MoleculeNetwork.outputs", "edge_index"): lambda value: getattr(value, "shape", None) == (2, 2),
    ("TabledBasis", "cutoff"): lambda value: value is None,
    ("TabledBasis", "basis"): lambda value: callable(value) or value is None,
    ("Linear.forward", "bias"): lambda value: isinstance(value, torch.Tensor) and value.shape == (3,),
}


def rows(name: str, case: Case) -> list[tuple[str, Any]]:
    """The arguments of a case with each of their wrong values."""
    wrong = WRONG | case.own
    taken = {argument: TAKEN.get((name, argument), lambda value: False) for argument in case.kinds}
    return [(n, v) for n, kind in case.kinds.items() for v in wrong[kind] if not taken[n](v)]


#: Arguments that messages call by another name, which is that of the layer or of the function inside.
CALLED = {
    "normalization": "irrep_normalization", "cutoff_p": "p", "l": "irreps_out", "value": "irreps", "q": "quaternions",
    "name": "backend|activation", "gate": "activation", "even": "activation", "act": "activation",
    "act_scalars": "acts", "act_gates": "acts",
    "radial_hidden": "hidden", "irreps_in": "irreps", "irreps_sh": "irreps_in2", "tp": "module",
    "num_nodes": "num_src|num_dst",
}  # fmt: skip


def says(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[str, str]:
    """The fault of the error of a call, empty if its error is as it must be, and the text of the error."""
    try:
        result = function(**arguments)
    except EqlayersError as error:
        text = str(error)
        return ("" if GRAMMAR.match(text) else f"says: {text}"), text
    except Exception as error:
        return f"raises {type(error).__name__}: {error}", str(error)
    return f"gives {reprlib.repr(result)}", ""


def named(argument: str, texts: list[str]) -> bool:
    """Whether one of the texts names an argument."""
    words = "|".join(filter(None, (argument, CALLED.get(argument))))
    return any(re.search(rf"\b({words})\b", text) for text in texts)


@pytest.mark.filterwarnings("ignore:use irrep_normalization instead:DeprecationWarning")
@pytest.mark.parametrize("name", [*CASES, *OF_LAYERS])
def test_bad_calls(name: str) -> None:
    case = case_of(name)
    owner = getattr(case.function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        on_backend(owner, "torch")  # made with the table, before there were fixtures
    case.function(**case.good)
    wrong, texts = [], {}
    for argument, value in rows(name, case):
        answer, text = says(case.function, {**case.good, argument: value})
        texts.setdefault(argument, []).append(text)
        wrong += [f"{name}({argument}={repr(value)[:60]}) {answer}"] if answer else []
    wrong += [f"no message names {argument} of {name}" for argument in texts if not named(argument, texts[argument])]
    if wrong:
        grammar = "a typed error of eqlayers.errors must say what must be, what came, and the fix"
        pytest.fail("\n".join([f"{grammar}; its text must match {GRAMMAR.pattern}", *wrong]), pytrace=False)


#: Public names that the table leaves out, with the reason.
OTHERS = {
    "made by a function of the table": (
        "Channels", "Coverage", "DerivativeReport", "EdgeVectors", "EquivarianceReport", "KnotBasis", "Report", "Row",
        "TableError", "TabledWeights", "ForceCheck"),
    "the same function as sparse_mul": ("inner", "mat_t_vec", "scavec", "vecmat", "vecsca"),
    "the same function as SparseMul": (
        "SparseInner", "SparseMatTVec", "SparseOuter", "SparseProduct", "SparseScaVec", "SparseVecMat",
            "SparseVecSca"),
    "e3nn's": ("Irrep", "Irreps"),
    "without arguments": ("keep_memory", "release_memory"),
    "for backends, not for users": ("Backend", "register", "select", "verdicts"),
    "made by a function": ("CompressionReport", "CompressionRow", "SavedPotential"),
    "looked at by the potential that takes it": ("Structures",),
    "the same function as Potential.compile": ("Committee.compile", "MoleculeNetwork.compile"),
    "called by Potential, which looks at what it passes": (
        "Equiformer.forward", "MACE.forward", "NequIP.forward", "TFN.forward", "TabledBasis.between"),
    "tests/models/test_committee.py": ("load_committee",),
    "tests/models/test_saving.py": ("load_potential", "read_potential", "save_potential"),
    "tests/testing": ("PotentialReport", "PotentialRow", "ToyNetwork", "check_potential", "example_structures"),
    "tests/integrations": (
        "accelerate", "check_forces", "deaccelerate", "from_mace", "from_nequip", "to_mace", "to_nequip"),
}  # fmt: skip


#: Arguments that the table leaves out, with the reason; `*` is any callable.
LEFT = {
    "named in messages only": ("*.name",),
    "e3nn's, without effect": ("*._specialized_code", "*._optimize_einsums", "*.cueq_config", "*.oeq_config"),
    "handed on": ("*.args", "*.kwargs"),
    "by name in the table": ("*.operands", "*.named"),
    "made by the builders of infos": ("*.gather_index", "*.index_out"),
    "the infos of derivatives, looked at where they are used: tests/core": (
        "*.info_bwd", "*.info_bwd1", "*.info_bwd2"),
}  # fmt: skip


#: Methods that are asked by this package alone.
METHODS = (
    "extra_repr",
    "whole_call",
    "allocate_tables",
    "make_table",
    "at_pairs",
    "after_extension",
    "pooled_vector",
    "rows",
)
METHODS += ("made_of",)  # with parameters and buffers of the network, by the table itself
METHODS += ("functions",)  # of a basis, to be overridden
PARTS = (eq, functional, nn, models, testing, eq.integrations)


def wanted(part: Any) -> dict[str, tuple[Any, set[str]]]:
    """Exports of a part of the package, and the public methods of its classes -> the function, its arguments."""
    others = {prefix + name for names in OTHERS.values() for name in names for prefix in ("", "sparse_")}
    callables = {}
    for name in part.__all__:
        value = getattr(part, name)
        if not callable(value) or inspect.ismodule(value) or name in others:
            continue
        callables[name] = (value, set(inspect.signature(value).parameters))
        if not (isinstance(value, type) and issubclass(value, torch.nn.Module)):
            continue
        for method in dir(value):
            function = getattr(value, method)
            function = getattr(function, "__func__", function)
            ours = str(getattr(function, "__module__", "")).startswith("eqlayers")
            if method.startswith("_") or f"{name}.{method}" in others or not ours:
                continue
            if callable(function) and method not in METHODS:
                arguments = set(inspect.signature(function).parameters) - {"self", "cls"}
                callables[f"{name}.{method}"] = (function, arguments)
    return {name: row for name, row in callables.items() if row[1]}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_the_table_has_every_argument_of_every_public_callable(part: Any) -> None:
    """Methods as well, forwards above all; what a class inherits counts where any of its relatives stands."""
    left = {name.removeprefix("*.") for names in LEFT.values() for name in names}
    missing = {
        name: arguments - COVERED.get(function, set()) - left for name, (function, arguments) in wanted(part).items()
    }
    lines = [
        f"no wrong values of {', '.join(sorted(arguments))} of {part.__name__}.{name}: add them to the row "
        f'"{name}" of a file tests/bad_calls/*.py'
        for name, arguments in missing.items()
        if arguments
    ]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def test_the_table_has_every_public_name() -> None:
    known = {name.split(".")[0].split(" ")[0] for name in (*CASES, *OF_LAYERS)}
    known |= {prefix + name for names in OTHERS.values() for name in names for prefix in ("", "sparse_")}
    known |= {"PathGroup", "ProgramInfos", "infos_of"}  # of programs, which layers make
    for part in (eq, functional, nn, sparse, testing, eq.integrations):
        public = [one for one in part.__all__ if callable(value := getattr(part, one)) and not inspect.ismodule(value)]
        missing = [f"{part.__name__}.{name}" for name in public if name not in known]
        assert not missing, f"no row of {missing} in the table of bad calls: add one to a file tests/bad_calls/*.py"
    assert sum(len(rows(name, case)) for name, case in CASES.items()) > 2000
