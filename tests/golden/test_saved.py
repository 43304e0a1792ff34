"""Files that an earlier commit saved load, with the keys and the numbers that they had."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.catalogue.cases import on_backend
from tests.golden import saved

pytest.importorskip("vesin")  # potentials count neighbours
OLD = saved.stored()
#: A kind of file that holds no layer -> its numbers.
RESULTS = {
    "accelerated": saved.of_network,
    "molecule": saved.of_molecule,
    "potential": saved.of_potential,
    "whole": saved.of_potential,
}
LAYERS = {case.name: case for case in saved.CASES}
#: The first file of a kind runs as it was saved; `tests/catalogue` compares the kernels of every layer.
WITH_KERNELS = {next(name for name in OLD if name.startswith(kind)) for kind in ("layer", "accelerated", "potential")}


def compared(name: str) -> str | None:
    """None, or how a file differs from what was saved."""
    content, keys, numbers = OLD[name]
    kind, _, rest = name.partition(" ")
    try:
        loaded: Any = saved.from_file(content) if kind == "potential" else saved.unpickled(content)
        if name not in WITH_KERNELS:
            on_backend(loaded, "torch")
        results = saved.of_layer(LAYERS[rest], loaded) if kind == "layer" else RESULTS[kind](loaded)
    except Exception as error:  # every file is looked at before the test fails
        return f"{name}: {type(error).__name__}: {error}"
    if list(loaded.state_dict()) != keys:
        return f"{name}: the keys {keys} became {list(loaded.state_dict())}"
    for old, new in zip(numbers, results, strict=True):
        size = max(1.0, float(old.abs().max())) if old.numel() else 1.0
        if not torch.allclose(old, new, rtol=0.0, atol=2000 * torch.finfo(torch.float64).eps * size):
            return f"{name}: numbers differ by {float((old - new).abs().max())}"
    return None


def test_files_of_an_earlier_commit_load_with_equal_numbers() -> None:
    wrong = [line for name in OLD if (line := compared(name)) is not None]
    assert not wrong, "\n".join(wrong)


def test_every_layer_has_a_file() -> None:
    assert {f"layer {name}" for name in LAYERS} <= set(OLD), "run `python -m tests.golden.saved`"


def test_keys_of_new_layers_are_those_of_saved_ones() -> None:
    wrong = [name for name, case in LAYERS.items() if list(case.layer().state_dict()) != OLD[f"layer {name}"][1]]
    assert not wrong, wrong
