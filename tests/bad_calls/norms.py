"""Calls of norms, layers with functions of features, and layers that leave parts out, for the table of bad calls."""

from typing import Any

import numpy as np
import torch

from eqlayers import functional, nn

NAN = float("nan")
LAYER = {"layout": "choice", "backend": "backend"}
X = torch.ones(4, 5)
IRREPS = "2x0e + 1o"

#: Kinds of wrong values that the common table lacks.
WRONG: dict[str, list[Any]] = {
    "small": [-1.0, NAN, float("inf"), "x", None, [1e-5], True, torch.ones(2), 1j],
    "optional small": [0, -1.0, NAN, float("inf"), "x", [1e-5], True, torch.ones(2), 1j],
    "probability": [-0.1, 1.1, NAN, "0.5", None, [0.5], True, torch.ones(2), 1j],
    "act": [None, 1, "x", torch.ones(2), lambda x: None, lambda x: x.sum(), lambda x: 0 * x],
    "acts": [None, 1, "x", [], [torch.tanh] * 3, [torch.tanh, 1], ["tanh", None], [lambda x: 1.0, None],
        [lambda x: 0 * x, None], {"a": 1}],
    "two acts": [None, 1, "x", [], [torch.tanh] * 3, [torch.tanh, torch.tanh], ["tanh", None], {"a": 1}],
    "odd acts": [[torch.exp], [torch.nn.functional.silu]],
    "scalars": [None, 7, "8x", "1z", "1o", "0e + 1o", object(), torch.ones(2)],
    "gates": [None, 7, "8x", "1o", "0e", "3x0e", object(), torch.ones(2)],
    "gated": [None, 7, "8x", "3x1o", "0e", object(), torch.ones(2)],
    "signal": [None, 7, "8x", "1o", "2x0e", "0e + 2e", "0e + 1o + 2o", "1o + 0e", "", torch.ones(2)],
    "points": [None, 0, -2, 2, 9, 2.0, "8", [8], [8, 9, 1], (9, 9), (8, 0), (8, None), torch.ones(2)],
    "lmax": [-1, 1.5, "1", None, NAN, [1], True],
    "optional lmax": [-1, 1.5, "1", NAN, [1], True],
    "ratio": [0, -1.0, 0.1, NAN, "2", None, [2], True, torch.ones(2)],
    "given": [0.0, 1e-8, "x", [1e-5], True],
    "graphs": [1, "x", [0] * 4, torch.zeros(3).long(), torch.zeros(4), torch.zeros(4, 1).long(), torch.zeros(4).int()],
    "optional count": [0, -1, 1.5, "2", NAN, [2], True],
    "by copy": [1.0, "x", [1.0], torch.ones(4), torch.ones(()), torch.ones(1, 3), torch.ones(3).long(), object()],
    "any features": [None, 1.0, "x", [1.0], np.ones((4, 5)), torch.ones(()), torch.ones(4, 5).long(), object()],
    "axis": [5, -3, 1.5, "1", None, [1], True],
}  # fmt: skip

GATE = {"irreps_scalars": "2x0e", "act_scalars": [torch.tanh], "irreps_gates": "2x0e", "act_gates": [torch.tanh]}
GATE["irreps_gated"] = "2x1o"
ALL_GATE = {"irreps_scalars": "scalars", "irreps_gates": "gates", "irreps_gated": "gated", **LAYER}
S2 = {"irreps": "0e + 1o", "act": torch.tanh, "res": 6}
SO3 = {"lmax_in": 1, "lmax_out": 1, "act": torch.tanh, "resolution": 2}

#: Name -> the callable, arguments that work, and keys of wrong values that names and annotations do not imply.
ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "norm": (functional.norm, {"x": X, "irreps": IRREPS}, {}),
    "layer_norm": (functional.layer_norm, {"x": X, "irreps": IRREPS}, {"weight": "by copy", "bias": "by copy"}),
    "rms_norm": (functional.rms_norm, {"x": X, "irreps": IRREPS}, {"weight": "by copy"}),
    "Activation": (nn.Activation, {"irreps_in": IRREPS, "acts": [torch.tanh, None]}, {"acts": "two acts"}),
    "Activation of scalars": (nn.Activation, {"irreps_in": "2x0e + 1x0o", "acts": [None, None]}, {"acts": "acts"}),
    "Activation of odd scalars": (nn.Activation, {"irreps_in": "2x0o", "acts": [None]}, {"acts": "odd acts"}),
    "Activation.forward": (nn.Activation(IRREPS, [torch.tanh, None]).forward, {"features": X}, {"dim": "axis"}),
    "Gate": (nn.Gate, GATE, ALL_GATE),
    "Gate of two": (nn.Gate, {**GATE, "irreps_scalars": "1x0e + 1x0o", "act_scalars": [None, None]},
        {"act_scalars": "acts"}),
    "Gate of two gates": (nn.Gate, {**GATE, "irreps_gates": "1x0e + 1x0o", "act_gates": [None, None]},
        {"act_gates": "acts"}),
    "Gate.forward of vectors": (nn.Gate("1x0e", [torch.tanh], "0e", [torch.cos], "1o").forward, {"features": X},
        {"features": "features"}),
    "NormActivation": (nn.NormActivation, {"irreps_in": IRREPS, "scalar_nonlinearity": torch.sigmoid},
        {"scalar_nonlinearity": "function", "epsilon": "optional small"}),
    "NormActivation, not normalized": (nn.NormActivation, {
        "irreps_in": IRREPS, "scalar_nonlinearity": torch.sigmoid, "normalize": False}, {"epsilon": "given"}),
    "S2Activation": (nn.S2Activation, S2, {"irreps": "signal", "act": "act", "res": "points",
        "lmax_out": "optional lmax"}),
    "SO3Activation": (nn.SO3Activation, SO3, {"lmax_in": "lmax", "lmax_out": "lmax", "act": "act",
        "aspect_ratio": "ratio"}),
    "dropout": (functional.dropout, {"x": X, "irreps": IRREPS}, {}),
    "drop_path": (functional.drop_path, {"x": X, "batch": torch.tensor([0, 0, 1, 1])}, {"x": "any features",
        "batch": "graphs", "num_graphs": "optional count"}),
    "DropPath.forward": (nn.DropPath(0.5).forward, {"x": X, "batch": torch.tensor([0, 0, 1, 1])},
        {"x": "any features", "batch": "graphs", "num_graphs": "optional count"}),
}  # fmt: skip
