"""Calls of radial bases, cutoffs and attention, for the table of bad calls."""

from typing import Any

import numpy as np
import torch

from eqlayers import functional, nn

NAN = float("nan")
EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])

#: Kinds of wrong values that the common table lacks.
WRONG: dict[str, list[Any]] = {
    "start": [5.0, 9, NAN, float("inf"), "0", None, [0.0], True, torch.ones(2), 1j],
    "optional power": [1, -1, NAN, float("inf"), "6", [6], torch.ones(2)],
    "optional module": [1, "x", [], torch.nn.Linear, torch.ones(2), nn.CosineCutoff(3.0)],
    "network basis": [1, "x", [], torch.nn.Linear, torch.ones(2), torch.nn.ReLU()],
    "by edge": [1.0, "x", [1.0], np.ones((3, 2)), torch.ones(3), torch.ones(3, 9), torch.ones(4, 2),
        torch.ones(3, 2).long(), torch.ones(3, 2) * 1j, torch.ones(()), torch.ones(0), torch.ones(3, 2).double()],
    "envelope": [1.0, "x", [1.0], np.ones(3), torch.ones(4), torch.ones(3, 1), torch.ones(3).long(),
        torch.ones(()), torch.tensor([0.5, -0.1, 1.0]), torch.ones(3).double()],
    "sink": [None, "x", NAN, [1.0], np.ones(2), torch.ones(3), torch.ones(3, 2), torch.ones(2).long(), object()],
    "receivers": [-1, 1.5, "4", [4], torch.ones(2), NAN, True],
}  # fmt: skip

BASIS = {"num_basis": "width", "cutoff": "positive", "start": "start", "envelope": "optional module"}
SPACED = {**BASIS, "p": "optional power", "inside": "flag"}
SUMMED = {"values": torch.ones(3, 5), "logits": torch.ones(3, 1), "edge_index": EDGES, "num_nodes": 4}
R = {"lengths": torch.ones(4)}
CALL = {"x": torch.ones(4, 5), "edge_attr": torch.ones(3, 4), "edge_scalars": torch.ones(3, 2), "edge_index": EDGES}

#: Name -> the callable, arguments that work, and keys of wrong values that names and annotations do not imply.
ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "RadialBasis": (nn.RadialBasis, {}, {}),
    "BesselBasis of others": (nn.BesselBasis, {}, {"envelope": "optional module"}),
    "RadialNetwork of others": (nn.RadialNetwork, {"num_weights": 3}, {"basis": "network basis"}),
    "GaussianBasis": (nn.GaussianBasis, {}, SPACED),
    "CosineBasis": (nn.CosineBasis, {}, SPACED),
    "SmoothFiniteBasis": (nn.SmoothFiniteBasis, {}, SPACED),
    "FourierBasis": (nn.FourierBasis, {}, SPACED),
    "polynomial_cutoff": (functional.polynomial_cutoff, R, {"p": "power"}),
    "cosine_cutoff": (functional.cosine_cutoff, R, {}),
    "smooth_cutoff": (functional.smooth_cutoff, R, {}),
    "radial_basis": (functional.radial_basis, R, {}),
    "attention_aggregate": (functional.attention_aggregate, {**SUMMED, "irreps": "2x0e + 1x1o", "heads": 1},
        {"values": "by edge", "logits": "by edge", "num_nodes": "receivers", "envelope": "envelope", "sink": "sink"}),
    "edge_softmax": (functional.edge_softmax, {"logits": torch.ones(3, 2), "edge_index": EDGES, "num_nodes": 4},
        {"logits": "by edge logits", "num_nodes": "receivers", "envelope": "envelope", "sink": "sink"}),
    "AttentionAggregate.forward": (nn.AttentionAggregate("2x0e + 1x1o").forward, SUMMED, {"values": "by edge",
        "logits": "by edge", "num_nodes": "receivers", "envelope": "envelope"}),
    "EquivariantAttention.forward": (nn.EquivariantAttention("2x0e + 1x1o", "0e + 1o", "2x0e", 2, 1).forward, CALL,
        {"edge_attr": "by edge", "edge_scalars": "by edge scalars", "envelope": "envelope"}),
}  # fmt: skip
#: Of logits any number of columns is one of heads, and any dtype that of the call.
WRONG["by edge logits"] = [
    value
    for value in WRONG["by edge"]
    if getattr(value, "shape", ()) != (3, 9) and getattr(value, "dtype", None) != torch.float64
]
WRONG["by edge scalars"] = WRONG["by edge"]
