"""Bad calls of layers with a row in the catalogue: what is wrong follows from names and annotations of arguments."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import eqlayers.nn as nn

from .cases import Case

#: An argument, or an argument with its annotation -> the key of its wrong values in tests/wrong_values.py.
NAMES = {
    "R": "matrices of rotations", "backend": "backend", "biases": "biases", "chunk_size": "chunk", "cutoff": "positive",
    "cutoff_p": "power", "device": "device", "edge_index": "edges", "eps": "small", "filter_ir_out": "filter",
    "hidden": "irreps", "in_size": "size", "in1_size": "size", "in2_size": "size", "input": "sparse",
    "input1": "sparse", "input2": "sparse", "instructions: Sequence[tuple[int, int]] | None": "pairs",
    "instructions: Sequence[Instruction]": "ready instructions", "knots": "knots", "layout": "choice",
    "lengths": "lengths", "lmax: int": "size", "matrices: Tensor": "matrices of rotations", "mmax": "order",
    "momentum": "probability", "num_nodes": "nodes", "num_src": "size", "out_size: int": "size", "outputs": "outputs",
    "p: float": "probability", "p: int": "power", "p: int | None": "optional power", "product: str": "product",
    "properties": "properties", "q": "quaternions", "quaternions": "quaternions", "readout_hidden": "irreps",
    "rotation": "matrices of rotations", "seed": "count", "shifts: Mapping[Any, float]": "shifts",
    "shifts: Mapping[Any, float] | None": "shifts", "species: Sequence[int | str]": "elements", "start": "start",
    "terms: int": "count", "vectors: Tensor": "vectors of edges", "weight": "weight",
}  # fmt: skip
#: An annotation -> the same, for all other arguments.
ANNOTATIONS = {
    "bool": "flag", "bool | None": "option flag", "str": "choice", "str | None": "optional choice",
    "int": "width", "float": "positive", "Sequence[int]": "widths", "torch.dtype": "dtype",
    "Tensor": "features", "Tensor | None": "features", "torch.nn.Module": "module",
    "torch.nn.Module | None": "optional module", "SparseProductInfo": "info", "SparseScaleInfo": "info",
    "ProductPlan": "info", "Index": "index", "Scale": "scale", "Graph": "graph", "Potential": "potential",
    "float | Mapping[Any, float]": "scales",
}  # fmt: skip


def values_of(argument: inspect.Parameter) -> str | None:
    """The key of the wrong values of an argument; None if neither its name nor its annotation says."""
    for name in (argument.name, f"{argument.name}: {argument.annotation}"):
        if name in NAMES:
            return NAMES[name]
    return "irreps" if argument.name.startswith("irreps") else ANNOTATIONS.get(str(argument.annotation))


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """Arguments of a function or a constructor, with the keys of their wrong values."""
    keys = {name: values_of(argument) for name, argument in inspect.signature(function).parameters.items()}
    return {name: key for name, key in keys.items() if key is not None}


def constructed(case: Case) -> tuple[type[torch.nn.Module], dict[str, Any]]:
    """The class of a row, and the arguments that the row makes it with."""
    layer, calls = getattr(nn, case.name.partition(",")[0]), []
    init, signature = layer.__init__, inspect.signature(layer)

    def record(self: Any, *values: Any, **options: Any) -> None:
        calls.append(signature.bind(*values, **options).arguments)
        init(self, *values, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "__init__", record)
        case.make("mul_ir")
    return layer, calls[0]


def called(case: Case) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The forward of a layer of a row, and the arguments that the row calls it with."""
    return case.layer(dtype=torch.float32).forward, case.arguments(dtype=torch.float32)
