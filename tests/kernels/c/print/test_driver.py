"""Loops of kernels: over rows in regions, and over the edges of receivers and of senders, against gathered rows."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.print import driver
from eqlayers_kernels.c.print.printer import Kernel
from eqlayers_kernels.c.run import launch
from eqlayers_kernels.forms.program import LAYOUTS

SPECS = (
    ("uvu", (17, 1, 0), (3, 5, 3)),
    ("uvw", (2, 1, 9), (1, 3, 3)),
    ("uuu", (4, 4, 0), (3, 1, 3)),
    ("uvu", (64, 1, 0), (3, 3, 1)),  # channels that fill vectors
)
KINDS = {
    "values": ("by_dst", Task(0, ("z",))),
    "gradients": ("by_src", Task(1, ("x", "y", "w"))),
    "second gradients": ("by_src", Task(2, ("x", "y", "w"), ("x", "y", "w"))),
    "tangents": ("by_dst", Task(2, ("z",), ("x", "y", "w"))),
}
# (senders, receivers) of every edge; numbers of nodes
GRAPHS = {
    "unsorted": ([5, 0, 3, 3, 5, 0, 1, 5, 3, 3, 0, 5], [2, 2, 0, 5, 2, 1, 5, 0, 0, 5, 2, 2], 6, 6),
    "more receivers": ([1, 0, 1, 1], [8, 3, 3, 0], 2, 11),
    "more senders": ([8, 3, 3, 0], [1, 0, 1, 1], 11, 2),
    "one star": ([0] * 9, [2] * 9, 1, 4),
    "no edges": ([], [], 3, 5),
    "no edges, no nodes": ([], [], 0, 0),
}


def edges_of(kernels: Any, name: str) -> Any:
    src, dst, senders, receivers = GRAPHS[name]
    return kernels.Edges(np.array(src, dtype=np.int64), np.array(dst, dtype=np.int64), senders, receivers)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_convolution_is_gather_product_and_sum(kernels: Any, layout: str, what: str) -> None:
    """For every graph, in any number of chunks, to the last bit."""
    traversal, task = KINDS[what]
    program = kernels.random_program(layout, False, SPECS)
    kernel = Kernel(program, task, "float64", traversal)
    assert kernel.transposed == (("x", "z") if layout == "mul_ir" else ())
    for name in GRAPHS:
        edges = edges_of(kernels, name)
        arrays = kernels.draw(program, "float64", edges=edges)
        once = kernels.check(kernel, arrays, edges)
        if traversal == "by_src":
            along = kernels.check(Kernel(program, task, "float64", "to_src"), arrays, edges)
            assert all((once[result] == along[result]).all() for result in task.results)
        for chunks, workers in product((2, 5, 40), (1, 2, 4)):
            again = kernels.run(kernel, arrays, edges, chunks=chunks, workers=workers, past=True)
            assert all((once[result] == again[result]).all() for result in task.results)
        joined = {"x": edges.src, "z": edges.dst}
        for result in set(task.results) & {"x", "z"}:
            lonely = np.setdiff1d(np.arange(edges.rows(result)), joined[result])
            assert (once[result][lonely] == 0).all(), "nodes without edges have zeros"


@pytest.mark.parametrize("what", ["gradients", "second gradients"])
def test_the_gradient_of_shared_weights_is_summed_over_all_edges(kernels: Any, what: str) -> None:
    traversal, task = KINDS[what]
    program = kernels.random_program("ir_mul", True, SPECS)
    kernel = Kernel(program, task, "float32", traversal, shared=True)
    for name in ("unsorted", "more senders", "no edges"):
        edges = edges_of(kernels, name)
        arrays = kernels.draw(program, "float32", shared=True, edges=edges)
        for chunks in (1, 16):
            kernels.check(kernel, arrays, edges, chunks=chunks, workers=2)


def test_a_nan_in_one_sender_reaches_its_receivers_only(kernels: Any) -> None:
    program = kernels.random_program("mul_ir", False, SPECS)
    edges = edges_of(kernels, "unsorted")
    arrays = kernels.draw(program, "float64", edges=edges)
    path = program.paths[0]
    arrays["x"][1, path.x.columns("mul_ir")[path.terms[0][0], 3]] = np.nan
    want = kernels.expected(program, KINDS["values"][1], arrays, edges)["z"][0]
    got = kernels.run(Kernel(program, KINDS["values"][1], "float64", "by_dst"), arrays, edges)["z"]
    assert np.isnan(want).any(1).nonzero()[0].tolist() == [5]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize(("traversal", "wanted"), [("by_dst", "z"), ("by_src", "y"), ("to_src", "y")])
def test_numbers_of_edges_and_nodes_beyond_32_bits(kernels: Any, traversal: str, wanted: str) -> None:
    """The tables name rows from 2^33 on, and addresses are given as if there were rows before: none is touched."""
    far = 2**33
    task = Task(0, ("z",)) if wanted == "z" else Task(1, ("y",))
    program = kernels.random_program("ir_mul", False, SPECS)
    kernel = Kernel(program, task, "float64", traversal)
    edges = edges_of(kernels, "unsorted")
    arrays = kernels.draw(program, "float64", edges=edges)
    ptr, order, others = edges.tables(traversal)
    result = np.full((edges.rows(wanted), program.widths["xywz".index(wanted)]), np.nan)
    packed = []
    for name, operand in kernel.task.pointers:
        address, step = kernels.rows_of(arrays.get(name, result))
        node_of_segment = operand == {"by_dst": "z", "by_src": "x", "to_src": "z"}[traversal]
        packed += (address if node_of_segment else address - far * step * 8, step)
    ptr[-1] -= far
    tables, sizes = [ptr, order + far, others + far], [far + order.size, far + edges.others(traversal)]
    launch.load(kernel)(ptr.size - 2, [*packed, *(t.ctypes.data for t in tables), *sizes], chunks=3)
    np.testing.assert_array_equal(result, kernels.run(kernel, arrays, edges)[wanted])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("what", "graph"), [("values", None), ("gradients", None), ("values", "unsorted")])
def test_regions_and_streamed_weights(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, what: str, graph: str | None, layout: str
) -> None:
    """Rows of z larger than a region, slots larger than one, gaps between; some gradients of weights streamed."""
    traversal, task = KINDS[what]
    edges = edges_of(kernels, graph) if graph else None
    program = kernels.random_program(layout, True, SPECS, seed=3, gap=40)
    arrays = kernels.draw(program, "float64", edges=edges)
    make = (program, task, "float64", traversal if graph else "rows")
    whole = kernels.run(Kernel(*make), arrays, edges)
    monkeypatch.setattr(driver, "REGION_BYTES", 256)
    monkeypatch.setattr(driver, "STREAMED_WEIGHTS", range(5, 18))
    kernel = Kernel(*make)
    if what == "values":
        assert kernel.sources[0].count("T *const z_ = ") > 3
    else:
        assert kernel.sources[0].count("store_past_caches(s_gw") == 2  # of 17, 18, 4 and 17
    for past in (False, True):
        got = kernels.check(kernel, arrays, edges, chunks=2, past=past)
        assert all((got[name] == whole[name]).all() for name in task.results)
