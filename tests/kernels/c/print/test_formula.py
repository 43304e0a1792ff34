"""Formulas as C against their definition: layouts, ragged channels and rows, every walk, any number of chunks."""

import numpy as np
import pytest

from eqlayers_kernels.c.print.formula import FormulaKernel
from eqlayers_kernels.c.run import launch
from eqlayers_kernels.c.run.edges import graph_offsets, load
from eqlayers_kernels.forms.formula import Block, Expression, Operand, evaluate, formula
from tests.formulas import cubic, edges_of_points, functions
from tests.kernels.forms.test_formula import Primitives

pytestmark = pytest.mark.usefixtures("needs_a_compiler")

SIZES = (37, 4, 6)  # rows, senders, receivers; some nodes have no rows, some more than a vector has lanes
RNG = np.random.default_rng(0)
EDGES = np.stack([RNG.integers(0, 3, SIZES[0]), RNG.integers(1, 5, SIZES[0])])
TYPES = {"float32": (np.float32, 2.0**-24), "float64": (np.float64, 2.0**-53)}
COUNT = dict(zip(("each", "src", "dst"), SIZES, strict=False))


def data(base, dtype):
    rng = np.random.default_rng(1)
    return [rng.normal(size=(COUNT.get(one.rows, 1), one.width)).astype(dtype) for one in base.operands]


def expected(base, arrays):
    """Results in float64, and the largest sums of absolute values that rounding is relative to."""
    channels = max(base.channels, 1)
    index = {"each": np.arange(SIZES[0]), "one": np.zeros(SIZES[0], int), "src": EDGES[0], "dst": EDGES[1]}
    places = [one.columns(channels) for one in base.operands]
    rows = [a.astype(np.float64)[index[one.rows]] for a, one in zip(arrays, base.operands, strict=False)]
    parts = evaluate(base, lambda n, component: rows[n][:, places[n][component]], Primitives)
    out = []
    for one, components in zip(base.results, parts, strict=True):
        z = np.zeros((COUNT.get(one.rows, 1), one.width))
        for columns, value in zip(one.columns(channels), components, strict=True):
            value = np.zeros((SIZES[0], channels)) + (0.0 if value is None else value)
            np.add.at(z, (index[one.rows][:, None], columns), value)
        out.append(z)
    return out


def run(base, arrays, dtype, traversal, chunks, workers=1):
    compiled = launch.load(FormulaKernel(base, dtype, traversal))
    results, packed = [], []
    for a in arrays:
        packed += [a.ctypes.data, a.shape[1]]
    for one in base.results:
        rows = chunks if one.rows == "one" else COUNT[one.rows]
        results.append(np.zeros((rows, one.width), TYPES[dtype][0]))
        packed += [results[-1].ctypes.data, one.width]
    segments = SIZES[0]
    if traversal != "rows":
        place = graph_offsets(*SIZES)
        buffer = np.zeros(place.length, np.int64)
        edges = np.ascontiguousarray(EDGES)
        assert load("sort_edges")(edges.ctypes.data, *SIZES, buffer.ctypes.data) == -1
        packed += [buffer.ctypes.data + 8 * start for start in getattr(place, traversal)]
        segments, others = SIZES[1:] if traversal == "by_src" else SIZES[:0:-1]
        packed += [SIZES[0], others]
    compiled(segments, packed, chunks, workers)
    return [z.sum(0, keepdims=True) if one.rows == "one" else z for z, one in zip(results, base.results, strict=False)]


def assert_equal_to_rounding(found, want, base, dtype):
    bound = 4 * (base.operations + SIZES[0]) * TYPES[dtype][1]  # of values of order 1 to 100
    for f, w in zip(found, want, strict=True):
        np.testing.assert_allclose(f, w, atol=bound * max(np.abs(w).max(), 1.0), rtol=0)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", ["ir_mul", "mul_ir", "channels"])
@pytest.mark.parametrize(("channels", "chunks"), [(1, 1), (5, 3), (16, 1), (35, 4)])
def test_channels(dtype, layout, channels, chunks):
    base = cubic(channels, layout)
    arrays = data(base, TYPES[dtype][0])
    assert_equal_to_rounding(run(base, arrays, dtype, "by_src", chunks), expected(base, arrays), base, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("channels", [0, 35])
def test_functions_of_one_number(dtype, channels):
    base = functions(channels)
    arrays = data(base, TYPES[dtype][0])
    assert_equal_to_rounding(run(base, arrays, dtype, "rows", 2), expected(base, arrays), base, dtype)
    op, eps = TYPES[dtype][0], 2 * TYPES[dtype][1]
    far = 80.0 if dtype == "float32" else 700.0
    sizes = np.concatenate([np.logspace(-30, np.log10(far), 3000), np.linspace(0.1, 3, 3000)]).astype(op)
    numbers = np.concatenate([sizes, -sizes])
    base = functions(1)
    for start in range(0, len(numbers), SIZES[0]):
        row = np.resize(numbers[start : start + SIZES[0]], SIZES[0])
        (z,) = run(base, [np.repeat(row[:, None], 3, 1)], dtype, "rows", 1)
        wide = row.astype(np.float64)
        assert np.abs(z[:, 3] * (1 + np.exp(-wide)) - 1).max() <= 3 * eps
        assert np.abs(z[:, 1] / np.tanh(wide) - 1).max() <= 3 * eps


def test_functions_of_infinities_and_of_what_is_no_number():
    base, numbers = functions(1), np.array([np.inf, -np.inf, np.nan, 0.0, 1e5, -1e5])
    numbers = np.resize(numbers, SIZES[0])
    (z,) = run(base, [np.repeat(numbers[:, None], 3, 1)], "float64", "rows", 1)
    np.testing.assert_allclose(z[:, 1], np.tanh(numbers), rtol=1e-15)
    np.testing.assert_allclose(z[:, 3], np.resize([1, 0, np.nan, 0.5, 1, 0], SIZES[0]), atol=1e-300)


@pytest.mark.parametrize("layout", ["ir_mul", "mul_ir"])
@pytest.mark.parametrize("rows", ["src", "one", "each"])
def test_sums_over_the_rows_of_a_node_and_over_all(layout, rows):
    base = cubic(19, layout, rows).vjp([True], [True, True])
    arrays = data(base, np.float64)
    for chunks in (1, 3):
        found = run(base, arrays, "float64", "by_src" if rows == "src" else "rows", chunks)
        assert_equal_to_rounding(found, expected(base, arrays), base, "float64")


def wide(dim, channels, layout, inputs, made):
    """Components times a factor of the row: x of these rows to z of those."""
    expr = Expression()
    blocks = (Block(1, dim, *((1, dim) if layout == "mul_ir" else (max(channels, 1), int(channels > 0)))),)
    width = 2 + dim * max(channels, 1)  # a margin at both ends
    operands = [
        Operand("x", width, blocks, inputs),
        Operand("s", max(channels, 1), (Block(0, 1, 1, int(channels > 0)),)),
    ]
    factor = expr.load(1, 0)
    outputs = [expr.scale(0.5 + i, expr.multiply(expr.load(0, i), factor)) for i in range(dim)]
    return formula(expr, operands, [Operand("z", width, blocks, made)], [outputs], channels)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [2, 15, 16, 17, 40])
@pytest.mark.parametrize("channels", [0, 1, 21])
@pytest.mark.parametrize("layout", ["ir_mul", "mul_ir"])
@pytest.mark.parametrize(
    ("traversal", "inputs", "made"),
    [("rows", "each", "each"), ("rows", "one", "each"), ("rows", "each", "one"), ("by_dst", "src", "dst"),
     ("by_src", "dst", "each"), ("by_src", "each", "src")],
)  # fmt: skip
def test_blocks_of_many_components(dtype, dim, channels, layout, traversal, inputs, made):
    """They come to lanes in squares, of which the last may overlap the one before, or in a function of their own."""
    base = wide(dim, channels, layout, inputs, made)
    arrays = data(base, TYPES[dtype][0])
    for chunks in (1, 2):
        found = run(base, arrays, dtype, traversal, chunks)
        assert_equal_to_rounding(found, expected(base, arrays), base, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("traversal", ["by_src", "by_dst"])
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_rows_without_channels(dtype, traversal, chunks):
    base = edges_of_points()
    arrays = data(base, TYPES[dtype][0])
    assert_equal_to_rounding(run(base, arrays, dtype, traversal, chunks), expected(base, arrays), base, dtype)
    wanted = [traversal == "by_src", traversal == "by_dst", True]
    back = base.vjp([True] * 3, wanted)
    arrays = data(back, TYPES[dtype][0])
    found = run(back, arrays, dtype, traversal, chunks)
    # gradients grow with the inverse length of the shortest vector, and errors with its square
    bound = 64 * TYPES[dtype][1] * 100
    for f, w in zip(found, expected(back, arrays), strict=True):
        np.testing.assert_allclose(f, w, atol=bound * np.abs(w).max(), rtol=0)


@pytest.mark.parametrize("chunks", [1, 3])
def test_rows_without_channels_and_without_a_graph(chunks):
    base = edges_of_points().with_rows(("each", "one", "each"))
    arrays = data(base, np.float64)
    assert_equal_to_rounding(run(base, arrays, "float64", "rows", chunks), expected(base, arrays), base, "float64")
    back = base.vjp([True] * 3, [True] * 3)
    arrays = data(back, np.float64)
    for f, w in zip(run(back, arrays, "float64", "rows", chunks), expected(back, arrays), strict=True):
        np.testing.assert_allclose(f, w, atol=1e-12 * np.abs(w).max(), rtol=0)


def test_tables_of_another_graph_are_refused():
    base = cubic(4)
    compiled = launch.load(FormulaKernel(base, "float64", "by_src"))
    arrays = [np.zeros((SIZES[0], base.operands[0].width)), np.zeros((SIZES[1], base.operands[1].width))]
    out, wrong = np.zeros((SIZES[0], 8)), np.zeros(100, np.int64)
    packed = [number for a in (*arrays, out) for number in (a.ctypes.data, a.shape[1])]
    address = wrong.ctypes.data
    with pytest.raises(IndexError, match="tables of a graph"):
        compiled(SIZES[1], [*packed, address, address, address, SIZES[0], SIZES[2]])
    edges, place = np.ascontiguousarray(EDGES), graph_offsets(*SIZES)
    right = np.zeros(place.length, np.int64)
    assert load("sort_edges")(edges.ctypes.data, *SIZES, right.ctypes.data) == -1
    right[place.by_src[1] + 2] = SIZES[0]  # an edge that is not there
    with pytest.raises(IndexError, match="tables of a graph"):
        compiled(SIZES[1], [*packed, *(right.ctypes.data + 8 * s for s in place.by_src), SIZES[0], SIZES[2]])
