"""Sizes, views, panels and numbers of native programs."""

from __future__ import annotations

import pytest
import torch

from eqlayers.native.elements import formula, number
from eqlayers.native.operators import in_panels, strides_of
from eqlayers.native.sizes import ATOMS, EDGES, text_of
from eqlayers.native.values import steps


def test_sizes_in_c() -> None:
    assert text_of(3 * EDGES) == "(3 * E)"
    assert text_of(ATOMS) == "A"
    assert text_of(8 * EDGES + 2 * ATOMS + 7) == "(8 * E + 2 * A + 7)"


@pytest.mark.parametrize(
    ("shape", "strides", "new", "want"),
    [
        ([ATOMS, 12], [12, 1], [ATOMS, 3, 4], [12, 4, 1]),
        ([ATOMS, 3, 4], [12, 4, 1], [ATOMS, 12], [12, 1]),
        ([ATOMS, 3, 4], [20, 4, 1], [3 * ATOMS, 4], None),
        ([ATOMS, 1, 4], [20, 7, 1], [ATOMS, 4, 1], [20, 1, 0]),
        ([6], [2], [2, 3], [6, 2]),
        ([4, 3], [3, 1], [6, 2], [2, 1]),
        ([4, 3], [1, 4], [12], None),
        ([4, 9], [9, 1], [6, 6], [6, 1]),
    ],
)
def test_strides_of_views(shape: list[int], strides: list[int], new: list[int], want: list[int] | None) -> None:
    made_ = strides_of(shape, strides, new)
    assert made_ == want or (want is not None and made_ is None and strides == steps(shape)), made_


def test_panels() -> None:
    weight = torch.arange(3.0 * 37).view(3, 37)
    panels = in_panels(weight)
    assert panels.shape == (2, 3, 32)
    assert torch.equal(panels.permute(1, 0, 2).reshape(3, 64)[:, :37], weight)
    assert not panels[1, :, 5:].any()


def test_numbers_in_c() -> None:
    made_ = [number(value, torch.float64) for value in (0.1, float("nan"), float("inf"), float("-inf"))]
    assert made_ == ["((double)0.1)", "NAN", "INFINITY", "(-INFINITY)"]
    assert number(3, torch.float32) == "((float)3.0)"
    assert (number(3, torch.int64), number(True, torch.bool)) == ("INT64_C(3)", "1")
    assert formula("exp", ["x"], torch.float32) == "expf(x)"
    assert formula("remainder", ["x", "y"], torch.int64) == "(x % y + y) % y"
