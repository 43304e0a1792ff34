"""Bad calls of layers with a row in the catalogue: what is wrong follows from names and annotations of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import eqlayers.nn as nn

from .cases import Case

#: An argument, or an argument with its annotation -> the key of its wrong values in tests/wrong_values.py.
NAMES = {
    "backend": "backend", "cutoff": "positive", "edge_index": "edges", "eps": "small", "lengths": "lengths",
    "mmax": "order", "momentum": "probability", "p: int": "power", "p: int | None": "optional power",
    "start": "start", "weight": "weight",
}  # fmt: skip
#: An annotation -> the same, for all other arguments.
ANNOTATIONS = {
    "bool": "flag", "bool | None": "option flag", "str": "choice", "str | None": "optional choice",
    "int": "width", "float": "positive", "Sequence[int]": "widths", "torch.dtype": "dtype",
    "Tensor": "features", "Tensor | None": "features", "torch.nn.Module": "module",
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
