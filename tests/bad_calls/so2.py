"""Calls of layers in the frames of edges, for the table of bad calls."""

from typing import Any

import torch

from eqlayers import functional, nn

NAN = float("nan")
IRREPS = "2x0e + 1o"
LAYER = {
    "irreps_in": "irreps", "irreps_out": "irreps", "mmax": "order", "parity": "choice", "internal_weights": "flag",
    "layout": "choice", "backend": "backend",
}  # fmt: skip
EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])

#: Kinds of wrong values that the common table lacks.
WRONG: dict[str, list[Any]] = {
    "order": [-1, 1.5, "8", NAN, [8], True, torch.ones(2), 2.0],
    "degree of frames": [-1, 0, 13, 1.5, "8", NAN, [8], torch.ones(2), 2.0, True],
    "factors": [1.0, "x", [1.0], torch.ones(3, 9), torch.ones(()), torch.ones(3, 4).long(), torch.ones(7, 4), object()],
    "factors of rows": [1.0, "x", [1.0], torch.ones(3, 1), torch.ones(()), torch.ones(3).long(), torch.ones(5)],
    "vectors": [None, 1.0, "x", torch.ones(3, 4), torch.ones(4, 3), torch.ones(3, 3).long(), torch.ones(3)],
    "matrices": [1.0, "x", torch.ones(3), torch.ones(()), torch.ones(2, 17), torch.ones(17).long(), [1.0], object()],
    "product": [None, 1, "x", torch.nn.Linear, torch.nn.Linear(2, 2), object()],
    "product behind": [1, "x", torch.nn.Linear, torch.nn.Linear(2, 2), object()],
}

LINEAR, CONV = nn.SO2Linear(IRREPS, "3x0e + 2x1o"), nn.SO2Convolution(IRREPS, "3x0e + 2x1o")
PRODUCT = nn.FullyConnectedTensorProduct(IRREPS, "0e + 1o", IRREPS)

#: Name -> the callable, arguments that work, and keys of wrong values that names and annotations do not imply.
ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "SO2Linear.forward": (LINEAR.forward, {"x": torch.ones(4, 5)}, {"scales": "factors", "weight": "matrices"}),
    "so2_linear": (functional.so2_linear, {"x": torch.ones(4, 5), "irreps_in": IRREPS, "irreps_out": IRREPS,
        "weight": torch.ones(nn.SO2Linear(IRREPS, IRREPS).weight_numel)}, {"scales": "factors",
        "weight": "given matrices", **{name: kind for name, kind in LAYER.items() if name != "internal_weights"}}),
    "SO2Convolution": (nn.SO2Convolution, {"irreps_in": IRREPS, "irreps_out": IRREPS}, {"lmax": "degree of frames"}),
    "SO2Convolution.forward": (CONV.forward, {"x": torch.ones(4, 5), "frames": torch.ones(3, 3), "edge_index": EDGES},
        {"frames": "vectors", "scales": "factors", "envelope": "factors of rows", "weight": "matrices"}),
    "SO2Convolution.from_tensor_product": (nn.SO2Convolution.from_tensor_product, {"tp": PRODUCT}, {"tp": "product",
        "linear": "product behind"}),
}  # fmt: skip
WRONG["given matrices"] = [None, *WRONG["matrices"]]
