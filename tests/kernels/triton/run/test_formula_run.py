"""Printed kernels of formulas against NumPy, node by node, in the interpreter."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from eqlayers_kernels.forms.expression import SMALLEST_SQUARE
from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, evaluate, formula
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.print.formula_plan import plan
from eqlayers_kernels.triton.run import edges as sorting
from eqlayers_kernels.triton.run.edges import pack, unpack
from eqlayers_kernels.triton.run.formula_run import FormulaRunner
from tests.kernels.triton.seas import DEVICE, results_in_seas, sea

MADE = runpy.run_path(str(Path(__file__).with_name("compile_formulas.py")))
polynomial, harmonics, geometry, derivatives = (
    MADE[name] for name in ("polynomial", "harmonics", "geometry", "derivatives")
)
needs_kernels = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
ON = tuning.PROCESSORS["cuda"]
#: Senders and receivers of the rows, and how many of each there are; some have no rows, one has many.
ENDS = ([0, 3, 1, 0, 3, 3, 3], [2, 0, 0, 2, 2, 4, 2], 5, 6)


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
        self.smallest = SMALLEST_SQUARE["float64" if double else "float32"]

    def inverse_length(self, *vector: Bounded) -> Bounded:
        square = sum(part.value * part.value for part in vector)
        there = square > self.smallest
        square = np.where(there, square, 1.0)
        value = np.where(there, 1.0 / np.sqrt(square), 0.0)
        grown = sum(np.abs(part.value) * part.size for part in vector) / square
        return Bounded(value, value * np.maximum(grown, 1.0), max(part.count for part in vector) + len(vector) + 4)


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


def draw(base: Formula, rows: int, ends: Any, dtype: torch.dtype, seed: int = 0) -> list[np.ndarray]:
    """Operands that the dtype holds exactly, so that only what is computed is rounded."""
    rng = np.random.default_rng(seed)
    count = {"each": (rows,), "one": (), "src": (ends[2],), "dst": (ends[3],)}
    drawn = [rng.normal(size=(*count[one.rows], one.width)) for one in base.operands]
    return [torch.from_numpy(a).to(dtype).double().numpy() for a in drawn]


def check(
    base: Formula,
    dtype: torch.dtype = torch.float64,
    ends: Any = ENDS,
    on: tuning.Processor = ON,
    arrays: list[np.ndarray] | None = None,
) -> list[torch.Tensor]:
    """Run, and compare with float64 within the rounding bound of every element."""
    rows = len(ends[0])
    arrays = draw(base, rows, ends, dtype) if arrays is None else arrays
    tensors = [sea(torch.from_numpy(a).to(DEVICE, dtype), torch.nan) for a in arrays]
    index = torch.tensor(ends[:2], dtype=torch.int64, device=DEVICE)
    tables = unpack(pack(index, *ends[2:]), rows, *ends[2:])
    with results_in_seas():
        got = FormulaRunner(base, dtype, on)(tensors, tables, rows, ends[2:])
    double = dtype == torch.float64
    eps = np.finfo("float64" if double else "float32").eps
    half = torch.finfo(dtype) if dtype in (torch.float16, torch.bfloat16) else None
    more = half.eps if half else 0.0  # the interpreter truncates
    least = half.eps * half.smallest_normal if half else 0.0  # distance of the smallest numbers
    for one, value, want in zip(base.results, got, expected(base, arrays, rows, ends, double), strict=True):
        assert value.dtype == dtype
        assert value.shape == want.value.shape
        error = np.abs(value.double().cpu().numpy() - want.value)
        # 1.1: for the squares of the roundings, which the count leaves out
        off = ~(error <= 1.1 * (eps * want.count + more) * want.size + least)
        assert not off.any(), f"{one.name}: {off.sum()} of {off.size} elements are off, the worst by {np.nanmax(error)}"
        assert (error[want.size == 0] == 0).all(), f"{one.name}: what nothing is computed for must be zero"
    return got


@needs_kernels
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_harmonics(order: str, dtype: torch.dtype) -> None:
    """Products of up to six components of a unit vector; a vector of zero has none."""
    base = derivatives(harmonics(6 if order != "second gradients" else 4))[order]
    arrays = draw(base, len(ENDS[0]), ENDS, dtype)
    arrays[0][4] = 0.0
    assert {kernel.text.traversal for kernel in plan(base, False, ON)} == {"lanes"}
    check(base, dtype, arrays=arrays)


@needs_kernels
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
def test_geometry(order: str) -> None:
    """Operands of both ends without channels; their gradients are summed by senders and by receivers."""
    check(derivatives(geometry())[order])


@pytest.mark.thinned(5)
@needs_kernels
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
@pytest.mark.parametrize("channels", [1, 5, 64, 130])
@pytest.mark.parametrize("layout", ["component", "channel"])
def test_polynomials(channels: int, layout: str, order: str) -> None:
    base = polynomial(4, [(0, 0), (1, 1)], channels, layout)
    check(derivatives(base)[order])


@needs_kernels
@pytest.mark.parametrize("channels", [0, 40])
@pytest.mark.parametrize("order", ["values", "gradients", "second gradients"])
def test_one_row_for_all(channels: int, order: str) -> None:
    """The gradient of what has one row is a sum over all rows."""
    base = polynomial(4, [(0, 0)], channels, rows=("dst", "one", "each"))
    check(derivatives(base)[order])


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(monkeypatch: Any, dtype: torch.dtype) -> None:
    """Half precision is summed in float32, also where several kernels add to one result."""
    monkeypatch.setattr(tuning, "FORMULA_ACCESSES", 12)
    base = derivatives(polynomial(4, [(0, 0), (1, 1)], 40))["gradients"]
    assert any(kernel.text.begun for kernel in plan(base, False, ON))
    check(base, dtype)
    check(derivatives(geometry())["gradients"], dtype)


@pytest.mark.thinned(3)
@needs_kernels
@pytest.mark.parametrize("sample", ["polynomial", "one", "geometry"])
@pytest.mark.parametrize("order", ["values", "second gradients"])
def test_many_small_kernels_give_the_same(monkeypatch: Any, sample: str, order: str) -> None:
    """Where little fits into one kernel, a kernel adds to what another has stored; nothing is computed twice in all."""
    made = {
        "polynomial": lambda: polynomial(4, [(0, 0), (1, 1)], 40),
        "one": lambda: polynomial(3, [(0, 0)], 0, rows=("each", "one", "dst")),
        "geometry": geometry,
    }
    base = derivatives(made[sample]())[order]
    whole = plan(base, True, ON)
    monkeypatch.setattr(tuning, "FORMULA_ACCESSES", 9)
    cut = plan(base, True, ON)
    assert len(cut) > len(whole)
    assert any(kernel.text.begun for kernel in cut)
    check(base)


@needs_kernels
@pytest.mark.parametrize("run", [1, 3])
@pytest.mark.parametrize("channels", [0, 40])
def test_branches_that_are_never_taken_change_nothing(monkeypatch: Any, channels: int, run: int) -> None:
    base = derivatives(polynomial(4, [(0, 0), (1, 1)], channels))["gradients"]
    monkeypatch.setattr(tuning, "FORMULA_RUN", run)
    texts = [kernel.text for kernel in plan(base, True, ON)]
    assert all("< never:" in text.source for text in texts)
    check(base)


@pytest.mark.thinned(3)
@needs_kernels
@pytest.mark.parametrize("name", tuning.PROCESSORS)
def test_every_row_of_processors(name: str) -> None:
    """Programs have the lanes of a warp of the processor, or several per thread, and channels that do not fill them."""
    base = derivatives(polynomial(4, [(0, 0)], 2 * tuning.PROCESSORS[name].lanes + 6))["gradients"]
    few = tuning.PROCESSORS[name]._replace(registers=1, wide=1)
    assert {kernel.block for kernel in plan(base, False, few)} == {few.lanes}
    for on in (tuning.PROCESSORS[name], few):
        check(base, on=on)


@needs_kernels
@pytest.mark.parametrize("channels", [0, 40])
def test_rows_of_one_node_are_cut(monkeypatch: Any, channels: int) -> None:
    monkeypatch.setattr(sorting, "LEAST", 2)
    check(derivatives(polynomial(4, [(0, 0)], channels, rows=("dst", "src", "each")))["gradients"])


@needs_kernels
def test_rows_are_cut_into_few_partial_sums(monkeypatch: Any) -> None:
    monkeypatch.setattr(tuning, "SUMMED_CHUNKS", 3)
    check(derivatives(polynomial(4, [(0, 0)], 40, rows=("each", "one", "each")))["gradients"])


@needs_kernels
@pytest.mark.parametrize("channels", [0, 40])
@pytest.mark.parametrize("nodes", [(3, 2), (0, 0)])
def test_nothing_at_all(channels: int, nodes: tuple[int, int]) -> None:
    """No rows: sums over none are 0."""
    for rows in (("dst", "src", "each"), ("each", "one", "each")):
        base = derivatives(polynomial(4, [(0, 0)], channels, rows=rows))["gradients"]
        assert all(not value.any() for value in check(base, ends=([], [], *nodes)))


@needs_kernels
@pytest.mark.parametrize("channels", [0, 3])
@pytest.mark.parametrize("rows", ["each", "one", "src"])
def test_outputs_that_are_numbers_or_nothing(channels: int, rows: str) -> None:
    """Constants, values of operands, one value twice, components without output, and columns between blocks."""
    expr = Expression()
    x = [expr.load(0, i) for i in range(2)]
    half = expr.constant(0.5)
    outputs = [half, x[0], expr.add(half, x[1]), None, x[0], expr.add(x[1], x[1]), expr.multiply(x[0], half)]
    step = max(channels, 1)
    operands = [Operand("x", 2 * step, (Block(0, 2, step, bool(channels)),), "dst")]
    places = (Block(1, 4, step, bool(channels)), Block(4 * step + 2, 3, step, bool(channels)))
    results = [Operand("z", 8 * step + 3, places, rows), Operand("nothing", step, (places[0]._replace(dim=0),), rows)]
    check(formula(expr, operands, results, [outputs, []], channels))
