"""Wrong calls of networks, see test_bad_calls.py."""

from typing import Any

from eqlayers import models

WRONG: dict[str, list[Any]] = {}
EQUIFORMER = {"species": [1, 8], "hidden": "4x0e + 4x1o", "layers": 1, "radial_hidden": [2], "attention_hidden": 2}

ROWS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "Equiformer": (models.Equiformer, EQUIFORMER, {
        "species": "elements", "hidden": "irreps", "heads": "width", "layers": "width", "mmax": "order",
        "num_basis": "width", "cutoff": "positive", "cutoff_p": "power", "radial_hidden": "widths",
        "attention_hidden": "width", "embedding": "order", "properties": "properties", "knots": "knots",
        "backend": "backend"}),
}  # fmt: skip
