"""Printed kernels of formulas against NumPy, node by node, in the interpreter; and compiled, within their budgets."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from eqlayers_kernels.formula import Block, Formula, Graph, Operand, evaluate, formula
from eqlayers_kernels.triton import aot, availability, launch, tuning
from eqlayers_kernels.triton.edges import pack, unpack
from eqlayers_kernels.triton.formula import SMALLEST_SQUARE, plan
from eqlayers_kernels.triton.formula_run import FormulaRunner
from eqlayers_kernels.triton.schedule import schedule, terms_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("compile_formulas.py")
MADE = runpy.run_path(str(SCRIPT))
polynomial, harmonics, geometry, derivatives = (
    MADE[name] for name in ("polynomial", "harmonics", "geometry", "derivatives")
)
needs_kernels = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
ON = tuning.PROCESSORS["cuda"]
SENTINEL = 1234.0
#: Senders and receivers of the rows, and how many of each there are; some have no rows, one has many.
ENDS = ([0, 3, 1, 0, 3, 3, 2, 3, 3, 3, 3], [2, 0, 0, 2, 2, 4, 2, 2, 2, 1, 2], 5, 6)


class Bounded:
    """A value, the sum of the magnitudes of its terms, and how many roundings each has seen (Higham 2002, 3.1)."""

    def __init__(self, value: Any, size: Any, count: int) -> None:
        self.value, self.size, self.count = value, size, count

    @staticmethod
    def of(value: Any) -> Bounded:
        return value if isinstance(value, Bounded) else Bounded(value, abs(value), 1)

    def __add__(self, other: Any) -> Bounded:
        other = self.of(other)
        return Bounded(self.value + other.value, self.size + other.size, max(self.count, other.count) + 1)

    def __mul__(self, other: Any) -> Bounded:
        other = self.of(other)
        return Bounded(self.value * other.value, self.size * other.size, self.count + other.count + 1)

    __radd__, __rmul__ = __add__, __mul__


class Primitives:
    def __init__(self, double: bool) -> None:
        self.smallest = SMALLEST_SQUARE[double]

    def inverse_length(self, *vector: Bounded) -> Bounded:
        square = sum(part.value * part.value for part in vector)
        there = square > self.smallest
        square = np.where(there, square, 1.0)
        value = np.where(there, 1.0 / np.sqrt(square), 0.0)
        grown = sum(np.abs(part.value) * part.size for part in vector) / square
        return Bounded(value, value * np.maximum(grown, 1.0), max(part.count for part in vector) + len(vector) + 4)

    @staticmethod
    def is_positive(value: Bounded) -> Bounded:
        return Bounded(np.where(value.value > 0, 1.0, 0.0), np.where(value.value > 0, 1.0, 0.0), 0)


def expected(base: Formula, arrays: list[np.ndarray], rows: int, ends: Any, double: bool) -> list[Bounded]:
    """Results in float64, with the bounds of their rounding errors."""
    src, dst = np.array(ends[0], dtype=int), np.array(ends[1], dtype=int)
    channels = max(base.channels, 1)
    index = {"each": slice(None), "one": np.zeros(rows, dtype=int), "src": src, "dst": dst}
    spread = [np.atleast_2d(a)[index[one.rows]] for one, a in zip(base.operands, arrays, strict=True)]
    places = [one.columns(channels) for one in base.operands]
    outputs = evaluate(base, lambda o, c: Bounded.of(spread[o][:, places[o][c]]), Primitives(double))
    out = []
    for one, parts in zip(base.results, outputs, strict=True):
        value, size, count = np.zeros((rows, one.width)), np.zeros((rows, one.width)), 0
        for part, where in zip(parts, one.columns(channels), strict=True):
            if part is not None:
                part = Bounded.of(part)
                value[:, where], size[:, where], count = part.value, part.size, max(count, part.count)
        if one.rows == "one":
            value, size = value.sum(0), size.sum(0)
        elif one.rows != "each":
            into = np.zeros((2, ends[2 + (one.rows == "dst")], one.width))
            np.add.at(into[0], src if one.rows == "src" else dst, value)
            np.add.at(into[1], src if one.rows == "src" else dst, size)
            value, size = into
        out.append(Bounded(value, size, count + rows * (one.rows != "each")))
    return out


def sea(values: torch.Tensor, filled: float) -> torch.Tensor:
    """A contiguous copy in the middle of a buffer that holds ``filled``: who reads or writes beside it shows."""
    buffer = torch.full((values.numel() + 128,), filled, dtype=values.dtype, device=values.device)
    inside = buffer[64 : 64 + values.numel()].view(values.shape)
    return inside.copy_(values)


def draw(base: Formula, rows: int, ends: Any, dtype: torch.dtype, seed: int = 0) -> list[np.ndarray]:
    """Operands that the dtype holds exactly, so that only what is computed is rounded."""
    rng = np.random.default_rng(seed)
    count = {"each": (rows,), "one": (), "src": (ends[2],), "dst": (ends[3],)}
    drawn = [rng.normal(size=(*count[one.rows], one.width)) for one in base.operands]
    return [torch.from_numpy(a).to(dtype).double().numpy() for a in drawn]


def check(
    monkeypatch: Any,
    base: Formula,
    dtype: torch.dtype = torch.float64,
    ends: Any = ENDS,
    on: tuning.Processor = ON,
    arrays: list[np.ndarray] | None = None,
) -> list[torch.Tensor]:
    """Run, and compare with float64 within the rounding bound of every element."""
    rows = len(ends[0])
    arrays = draw(base, rows, ends, dtype) if arrays is None else arrays
    buffers = []

    def allocate(like: Any, shape: Any, dtype: Any, fill: bool) -> torch.Tensor:
        buffers.append(sea(torch.full(shape, 0.0 if fill else torch.nan, dtype=dtype, device=DEVICE), SENTINEL))
        return buffers[-1]

    monkeypatch.setattr(launch, "allocate", allocate)
    tensors = [sea(torch.from_numpy(a).to(DEVICE, dtype), torch.nan) for a in arrays]
    index = torch.tensor(ends[:2], dtype=torch.int64, device=DEVICE)
    tables = unpack(pack(index, *ends[2:]), rows, *ends[2:])
    got = FormulaRunner(base, dtype, on)(tensors, tables, rows, ends[2:])
    for flat in (buffer._base for buffer in buffers):
        assert (flat[:64] == SENTINEL).all(), "written before a result"
        assert (flat[-64:] == SENTINEL).all(), "written behind a result"
    double = dtype == torch.float64
    eps = np.finfo("float64" if double else "float32").eps
    more = torch.finfo(dtype).eps if dtype in (torch.float16, torch.bfloat16) else 0.0  # the interpreter truncates
    for one, value, want in zip(base.results, got, expected(base, arrays, rows, ends, double), strict=True):
        assert value.dtype == dtype
        assert value.shape == want.value.shape
        error = np.abs(value.double().cpu().numpy() - want.value)
        # 1.1: for the squares of the roundings, which the count leaves out
        off = ~(error <= 1.1 * (eps * want.count + more) * want.size)
        assert not off.any(), f"{one.name}: {off.sum()} of {off.size} elements are off, the worst by {np.nanmax(error)}"
        assert (error[want.size == 0] == 0).all(), f"{one.name}: what nothing is computed for must be zero"
    return got


@needs_kernels
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_harmonics(monkeypatch: Any, order: str, dtype: torch.dtype) -> None:
    """Products of up to six components of a unit vector; a vector of zero has none."""
    base = derivatives(harmonics(6 if order != "second gradients" else 4))[order]
    arrays = draw(base, 11, ENDS, dtype)
    arrays[0][4] = 0.0
    assert {piece.text.walk for piece in plan(base, False, ON)} == {"lanes"}
    check(monkeypatch, base, dtype, arrays=arrays)


@needs_kernels
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
def test_geometry(monkeypatch: Any, order: str) -> None:
    """Operands of both ends without channels; their gradients are summed by senders and by receivers."""
    check(monkeypatch, derivatives(geometry())[order])


LAYOUTS = ("component", "channel")


@needs_kernels
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
@pytest.mark.parametrize(("channels", "layout"), [(1, "component"), (5, "channel"), (64, "component"), (130, "channel")])
def test_polynomials(monkeypatch: Any, channels: int, layout: str, order: str) -> None:
    base = polynomial(4, [(0, 0), (1, 1)], channels, layout)
    check(monkeypatch, derivatives(base)[order])


@needs_kernels
@pytest.mark.parametrize("channels", [0, 40])
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
def test_one_row_for_all(monkeypatch: Any, channels: int, order: str) -> None:
    """The gradient of what has one row is a sum over all rows."""
    base = polynomial(4, [(0, 0)], channels, rows=("dst", "one", "each"))
    check(monkeypatch, derivatives(base)[order])
