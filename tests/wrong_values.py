"""Values of every kind that no argument takes, for the table of bad calls, which runs this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

NAN = float("nan")
META = torch.zeros(2, 3, device="meta")

#: Values that no argument of a kind takes.
WRONG: dict[str, list[Any]] = {
    "flag": ["no", b"x", NAN, 2, 0.5, [], [True], torch.ones(2), object()],
    "option flag": ["no", "x", b"x", NAN, 2, [], torch.ones(2)],
    "choice": ["", "foo", b"norm", 1, NAN, [], ["norm"], torch.ones(2)],
    "optional choice": ["foo", b"norm", 1, NAN, ["norm"], torch.ones(2)],
    "irreps": [None, 7, 1.5, "8x", "1z", "2x0e 1o", b"0e", [1, 2], object(), torch.ones(2), lambda: 0, {"a": 1}],
    "filter": ["q", ["q"], 3, [None], [1.5], "0e", b"0e", {"0e": 1}, torch.ones(2)],
    "backend": [[], 1, "", "cuda", b"cpu", True, torch.ones(2), object()],
    "width": [0, -1, 1.5, "8", None, NAN, True, [8], torch.ones(2), 2.0],
    "count": [-1, 1.5, "8", None, NAN, [8], torch.ones(2), 2.0, True],
    "knots": [0, -1, 5, 1 << 15, 64.5, "64", NAN, True, [64], torch.ones(2), 64.0],
    "positive": [0, -1.0, NAN, float("inf"), "5", None, [5.0], True, torch.ones(2), 1j],
    "power": [1, -1, NAN, float("inf"), "6", None, [6], torch.ones(2)],
    "widths": [64, "64", [0], [-1], [1.5], ["8"], [None], None, {"a": 1}, torch.tensor(3)],
    "variances": [1.0, "1", [], [1.0] * 7, [NAN] * 2, [-1.0] * 2, ["a"] * 2, [None] * 2, {"a": 1}, [[1.0]] * 2],
    "properties": [None, 1, "energy", [], ["foo"], [1], [None], [["energy"]], {"a": 1}, torch.ones(2)],
    "elements": [None, 8, "H", [0], [-1], [119], [1.5], ["o"], [1, "H"], [None], [True], {"a": 1}, torch.ones(2)],
    "device": ["foo", "cuda:99", 1.5, [], "cpu:x", object()],
    "dtype": ["float32", torch.int64, torch.complex64, None, 32, np.float32],
    "classes": [1, b"a.B", "Network", "a b.C", ["a.B", 3], [None], int, [int], {"a.B": 1}, torch.ones(2), object()],
    "module": [None, "torch", 1, [], torch.nn.Linear, torch.ones(2), object()],
    "instructions": [
        None, 1, "uvw", [1], [()], [(0, 0, 0)], [(0, 0, 0, "uvw", "no")], [(0, 0, 0, "uvw", NAN)], {"a": 1},
        [(0, 0, 0, "foo", True)], [(0, 0, 0, None, True)], [(None, 0, 0, "uvw", True)], [("0", 0, 0, "uvw", True)],
        [(0, 0.0, 0, "uvw", True)], [(0, 0, 9, "uvw", True)], [(0, 0, -1, "uvw", True)], [(0, 0, 0, "uvw", True, "x")],
        [(0, 0, 0, "uvw", True, NAN)], [(0, 0, 0, "uvw", True, None)], [(0, 0, 0, "uvw", True, -1)], torch.ones(2)],
    "pairs": [1, "00", [0], [(0,)], [(0, 0, 0)], [(0, 9)], [(-1, 0)], [("0", 0)], [(0.0, 0)], [None], {"a": 1}],
    "biases": ["x", 1.5, NAN, [True], ["x", "y"], [None, None], b"x", {"a": 1}, object()],
    "features": [None, 1.0, "x", [1.0], np.ones((4, 5)), torch.ones(4, 6), torch.ones(()), torch.ones(4, 5).long(),
                 torch.ones(4, 5).bool(), torch.ones(4, 5) * 1j, torch.ones(0), object()],
    "lengths": [None, 1.0, "x", [1.0], np.ones(4), torch.ones(4).long(), torch.ones(4) * 1j, object()],
    "weight": [1.0, "x", np.ones(4), torch.ones(3), torch.ones(()), torch.ones(4, 3), [1.0], [None], ["x"],
        [torch.ones(1)] * 9, object()],
    "edges": [None, 1, "x", [[0], [1]], np.zeros((2, 3), int), torch.zeros(3, 2).long(), torch.zeros(2, 3),
        torch.zeros(2, 3).bool(), torch.zeros(2, 2).long(), torch.full((2, 3), 9), torch.full((2, 3), -1),
        torch.zeros(6).long(), object()],
    "degrees": [None, -1, 1.5, "8x", "1z", "1o + 1e", "2o", [], [-1], [1.5], [None], [True], 21, [0, 21], object(),
        {"a": 1}, torch.ones(2), lambda: 0],
    "vector irreps": ["0e", "2e", "2x1o", "1o + 1o", 1, "x", object(), torch.ones(2)],
    "numbers": [1, "x", [0] * 4, torch.zeros(3).long(), torch.zeros(4), torch.full((4,), 2), torch.full((4,), -1)],
    "nodes": [-1, 1.5, "4", [4], torch.ones(2), NAN, True],
    "index": [None, 1, "x", [0.5, 1.0], [9, 9], [-1, 0], [[0, 1]], [None, 1], ["a", "b"], [1j, 1], torch.ones(2),
        torch.zeros(1, 2).long(), [0]],
    "scale": ["x", [1.0], [1.0, "x"], [None, 1.0], [1j, 1.0], torch.ones(2, requires_grad=True), torch.ones(3),
        [[1.0, 1.0]], object()],
    "size": [-1, 2.5, "3", None, NAN, [3], True, torch.ones(2)],
    "info": [None, 1, "x", (None,) * 7, torch.ones(2), object()],
    "values": [None, "x", [NAN], [None, 1.0, 1.0], [1.0] * 2, ["1"] * 3, 1j, [[1.0] * 3], True, {"a": 1},
        torch.ones(3, requires_grad=True)],
    "sparse": [None, 1.0, "x", [1.0], np.ones((4, 2, 1)), torch.ones(4, 2, 1).long(), torch.ones(4, 2, 1) * 1j,
        torch.ones(()), object()],
    "product": ["foo", "", "u,v", "u,v->w", None, 1, "u,v->uv->u", "uu,v->v", object()],
    "matrix": [None, "x", 1.0, torch.ones(3, 3), torch.eye(2), np.ones((3, 3)), torch.zeros(3, 3), [[1.0]]],
    "function": [None, 1, "x", torch.ones(2)],
    "irrep list": [None, 1, "x", ["8x"], [None], [], {"a": 1}, ["1o"] * 5],
    "irrep texts": [None, 1, "x", ["8x"], [None], {"a": 1}],
    "ready instructions": [None, 1, "x", [1], [None], [(0, 0)], {"a": 1}],
    "degree": [-1, 1.5, "1", None, NAN, [1], True, 7],
    "determinant": [0, 2, 1.5, "1", None, True, NAN, [1]],
    "name": ["", "a b", "1a", None, 1, b"a", "outer", object()],
    "channels": ["foo", "", "u,v", "u,v->w", "uu,v->v", None, 1, b"u,u->u", object()],
    "info scale": ["x", 1.0, [1.0], torch.ones(2).long(), torch.ones(2, 2), torch.ones(9), torch.ones(2,
        requires_grad=True)],
    "info index": ["x", 1, [0, 1], torch.ones(2), torch.zeros(2, 2).long(), torch.tensor([-1, 9])],
    "out size": [-1, 1.5, "2", NAN, [2], 0],
    "tensors": [None, 1, "x", [], [None], [1.0], [torch.ones(1)], [torch.ones(1).long()], {"a": 1}],
    "optional tensors": [1, "x", [], [None], [1.0], [torch.ones(4)], [torch.ones(4, 3).long()], {"a": 1}],
    "rows": [None, 1, "345", [3], [3, 4, 5, 6], [0, 1, 1], [-1, 1, 1], [1.5, 1, 1], ["3", 4, 5], {"a": 1}],
    "two flags": [None, True, "no", [True], [True] * 3, ["no", "no"], [None, None], {"a": 1}],
    "extents": [1, "u", [3], {"u": 0}, {"u": "3"}, {"u": None}],
}  # fmt: skip
