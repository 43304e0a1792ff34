"""Calls of rotations, frames and Cartesian tensors, for the table of bad calls."""

from typing import Any

import torch

from eqlayers import functional, nn

NAN = float("nan")
IRREPS = "2x0e + 1o"

#: Kinds of wrong values that the common table lacks.
WRONG: dict[str, list[Any]] = {
    "degree to 12": [-1, 13, 1.5, "8", None, NAN, [8], torch.ones(2), 2.0, True],
    "quaternions": [None, 1.0, "x", torch.ones(3), torch.ones(()), torch.ones(4).long(), [1.0] * 4, object()],
    "matrices of rotations": [None, 1.0, "x", torch.ones(3), torch.ones(3, 4), torch.ones(3, 3).long(), object()],
    "vectors of edges": [None, 1.0, "x", torch.ones(4), torch.ones(()), torch.ones(5, 3).long(), [1.0] * 3, object()],
    "angles": [None, 1.0, "x", torch.ones(4).long(), [1.0], object()],
    "formula": [None, 1, "", "i=j=", "ij=jk", "ij=k", "ij=ik", "ii", "ij=jik", "1j=j1", "-ij=ji", "abcdefg", b"ij", []],
    "tensor": [None, 1.0, "x", torch.ones(3), torch.ones(3, 4), torch.ones(3, 3).long(), object()],
    "of a tensor": [None, 1.0, "x", torch.ones(5), torch.ones(()), torch.ones(6).long(), object()],
}

CARTESIAN, TURN, FULL = nn.CartesianTensor("ij=ji"), nn.RotateFeatures(IRREPS), nn.WignerD(IRREPS)
EYE, ONE = torch.eye(3), torch.tensor([1.0, 0.0, 0.0, 0.0])

#: Name -> the callable, arguments that work, and keys of wrong values that names and annotations do not imply.
ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "wigner_blocks": (functional.wigner_blocks, {"quaternions": ONE, "lmax": 2}, {"lmax": "degree to 12"}),
    "matrix_to_quaternion": (functional.matrix_to_quaternion, {"matrices": EYE}, {}),
    "angles_to_quaternion": (
        functional.angles_to_quaternion, dict.fromkeys(("alpha", "beta", "gamma"), torch.ones(2)),
        dict.fromkeys(("alpha", "beta", "gamma"), "angles")),
    "edge_frame": (functional.edge_frame, {"vectors": torch.ones(5, 3), "lmax": 2}, {"lmax": "degree to 12"}),
    "wigner_D": (functional.wigner_D, {"irreps": IRREPS, "rotation": EYE}, {}),
    "rotate": (functional.rotate, {"x": torch.ones(4, 5), "irreps": IRREPS, "rotation": EYE}, {}),
    "WignerD.D_from_matrix": (FULL.D_from_matrix, {"R": EYE}, {}),
    "WignerD.D_from_quaternion": (FULL.D_from_quaternion, {"q": ONE}, {"k": ""}),
    "EdgeFrame": (nn.EdgeFrame, {"lmax": 2}, {"lmax": "degree to 12"}),
    "CartesianTensor": (nn.CartesianTensor, {"formula": "ij=ji"}, {"formula": "formula"}),
    "CartesianTensor.from_cartesian": (CARTESIAN.from_cartesian, {"data": EYE}, {"data": "tensor"}),
    "CartesianTensor.to_cartesian": (CARTESIAN.to_cartesian, {"data": torch.ones(6)}, {"data": "of a tensor"}),
}  # fmt: skip
