"""Calls of linear maps, layers that reshape, and layers of a user's own function, for the table of bad calls."""

from typing import Any

import numpy as np
import torch

from eqlayers import nn

LAYER = {"layout": "choice", "backend": "backend"}
X, Y = torch.ones(4, 5), torch.ones(4, 4)
IRREPS = "2x0e + 1o"
LIST = [None, 1, "0e", b"x", [None], ["8x"], {"a": 1}, torch.ones(())]

#: Kinds of wrong values that the common table lacks.
WRONG: dict[str, list[Any]] = {
    "list of irreps": LIST,
    "any dtype": [None, 1.0, "x", [1.0], np.ones((4, 5)), torch.ones(4, 6), torch.ones(()), torch.ones(0), object()],
    "groups": [None, 1, "x", [None], [1], [("a",)], [(0.5,)], [(9,)], [(0,), (1,)], {"a": 1}],
    "irrep": [None, 1.5, "x", "2x0e", b"0e", object(), torch.ones(2)],
    "parts": [None, 1, "0e", [None], [1], [1.5], ["8x"], [-1, -1], [-2, 5], [9], ["1o", -1], {"a": 1}],
    "modules": [None, 1, "x", [], [None], [1, None], [torch.nn.Linear, None], [nn.Linear("1o", "1o"), None], {"a": 1}],
    "basis": [None, 1, "polar_x", torch.ones(3, 3), torch.eye(2), {"a": 1}, {"1o": 1}, {"1o": [[1.0]]}, {"1o": "x"},
        {"a": torch.ones(3, 3)}],
    "channels": [-1, 1.5, "8", float("nan"), [1], [1, -1], [1, None], {"a": 1}, torch.ones(2)],
    "triples": [1, "x", [], [1], [None], [(0, 0)], [(0, 0, 9)], [(0, "0", 0)], [(-1, 0, 0)], {"a": 1}],
    "second": [7, 1.5, "8x", "1z", b"0e", "2x0e", "1o + 2x0e", "3x0e + 1o", object()],
    "operands": [None, 1, "x", [], ["4x0e"], {}, {"x": None}, {"x": "a"}, {"x": "2x0e"}],
    "rows": [1, "src", ["src"], {"x": "a"}, {"x": None}, {"x": ["src"]}, {"y": "src"}, {"x": "one"}],
    "rows out": [None, 1, "a", [], ["a"], ["each", "each"], [None], {"a": 1}],
    "functions": [None, 1, "x", torch.ones(2), lambda x: x[0], lambda x: None, lambda x: [*x, *x],
        lambda x: ["a"], lambda x: [x[0] + "a"],
        lambda x: [x[0] / 0], lambda x: [x[0] / x[0]], lambda x: [x[0] ** 0.5], lambda x: [None]],
}  # fmt: skip

EXTRACT = {"irreps_in": IRREPS, "irreps_outs": ["1o"], "instructions": [(1,)]}
FORMULA = {"function": lambda x: [x[0]], "operands": {"x": "4x0e"}, "irreps_out": "4x0e"}

#: Name -> the callable, arguments that work, and keys of wrong values that names and annotations do not imply.
ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "Extract": (nn.Extract, EXTRACT, {"irreps_outs": "list of irreps", "instructions": "groups"}),
    "ExtractIr": (nn.ExtractIr, {"irreps_in": IRREPS, "ir": "1o"}, {"ir": "irrep"}),
    "Split": (nn.Split, {"irreps": IRREPS, "parts": [1, -1]}, {"parts": "parts"}),
    "Merge": (nn.Merge, {"irreps": ["2x0e", "1o"]}, {"irreps": "list of irreps"}),
    "Separable": (nn.Separable, {"irreps": IRREPS, "parts": ["2x0e", "1o"], "modules": [None, None]},
        {"parts": "parts", "modules": "modules"}),
    "ChangeOfBasis": (nn.ChangeOfBasis, {"irreps": IRREPS}, {"basis": "basis"}),
    "IrrepwiseLinear": (nn.IrrepwiseLinear, {"irreps_in": IRREPS}, {"channels_out": "channels", **LAYER}),
    "SO3Linear": (nn.SO3Linear, {"irreps_in": "2x0e + 2x1o", "irreps_edge": "0e + 1o", "irreps_out": "2x1o"},
        {"paths": "triples", **LAYER}),
    "TensorDot": (nn.TensorDot, {"irreps_in1": IRREPS}, {"irreps_in2": "second", **LAYER}),
    "FormulaLayer": (nn.FormulaLayer, FORMULA, {"function": "functions", "operands": "operands", "rows": "rows",
        "rows_out": "rows out"}),
    "Extract.forward": (nn.Extract(**EXTRACT).forward, {"x": X}, {"x": "any dtype"}),
    "Split.forward": (nn.Split(IRREPS, [1, -1]).forward, {"x": X}, {"x": "any dtype"}),
    "Sort.forward": (nn.Sort(IRREPS).forward, {"x": X}, {"x": "any dtype"}),
    "Sort.back": (nn.Sort(IRREPS).back, {"x": X}, {"x": "any dtype"}),
    "Identity.forward": (nn.Identity(IRREPS, IRREPS).forward, {"features": X}, {"features": "any dtype"}),
    "FormulaLayer.forward": (nn.FormulaLayer(lambda x: [x[0]], {"x": "5x0e"}, "5x0e").forward, {"x": X},
        {"x": "features"}),
}  # fmt: skip
