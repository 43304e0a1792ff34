"""Wrong calls of networks, see test_bad_calls.py."""

import tempfile
from typing import Any

import torch

import eqlayers
from eqlayers import models

SMALL = {"hidden": "2x0e + 2x1o", "radial_hidden": [2], "backend": "torch"}
MEMBERS = [models.Potential(models.TFN([1, 8], **SMALL), [1, 8]).eval() for _ in range(2)]
WATER = models.Structures(torch.tensor([8, 1]), torch.eye(3)[:2], torch.tensor([[0, 1], [1, 0]]))
COMMITTEE = models.Committee(MEMBERS)
PROGRAM = f"{tempfile.mkdtemp()}/potential.so"
OTHERS = [MEMBERS[0], models.Potential(models.TFN([1], **SMALL), [1])]
WRONG: dict[str, list[Any]] = {
    "members": [None, 1, "x", [], MEMBERS[:1], MEMBERS[0], [MEMBERS[0]] * 2, [*MEMBERS, None], OTHERS],
    "structures of two": [None, 1, "x", (), torch.ones(2), object(), WATER._replace(z=WATER.z + 1),
        WATER._replace(pos=None)],
    "potential of energies": [None, 1, "x", object(), MEMBERS[0].network, COMMITTEE],
    "ending": [None, 1, b"x", "a.pt", "", [], object()],
    "dtype of a program": [1, "float8", torch.int64, torch.float16, object()],
}  # fmt: skip
EQUIFORMER = {"species": [1, 8], "hidden": "4x0e + 4x1o", "layers": 1, "radial_hidden": [2], "attention_hidden": 2}

ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "Equiformer": (models.Equiformer, EQUIFORMER, {"embedding": "order"}),
    "Committee": (models.Committee, {"members": MEMBERS}, {"members": "members"}),
    "Committee.forward": (COMMITTEE.forward, {"structures": WATER}, {"structures": "structures of two"}),
    "Committee.each": (COMMITTEE.each, {"structures": WATER}, {"structures": "structures of two"}),
    "deploy": (eqlayers.deploy, {"potential": MEMBERS[0], "path": PROGRAM},
        {"potential": "potential of energies", "path": "ending", "dtype": "dtype of a program", "target": "choice"}),
    "Committee.hessian": (COMMITTEE.hessian, {"structures": WATER}, {"structures": "structures of two"}),
}  # fmt: skip
