"""Kernels that read weights from a table, for `sanitized.py`: right numbers, and forged tables refused or inside."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise, product
from typing import Any

import numpy as np

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.print.printer import Kernel
from eqlayers_kernels.c.run import edges, launch
from eqlayers_kernels.forms.program import LAYOUTS

READS, ORDERS, PLACES = 4, 2, 5
FACTORS = ("x", "y", "t", "c")
#: What is asked of kernels that read weights from a table.
TABLED = (
    ("by_dst", Task(0, ("z",), (), FACTORS)),
    ("by_src", Task(1, ("x", "y", "c"), (), FACTORS)),
    ("by_place", Task(1, ("t",), (), FACTORS)),
    ("by_dst", Task(2, ("z",), ("x", "y", "c"), FACTORS)),
    ("by_src", Task(2, ("x", "y", "c"), ("x", "y", "c"), FACTORS)),
    ("to_src", Task(1, ("x", "y", "c"), (), FACTORS)),
    ("by_place", Task(2, ("t",), ("x", "y", "c"), FACTORS)),
)


def tabled(cases: Any, graphs: Callable[..., Any], fitted: Callable[..., Any]) -> int:
    """All that is asked of them on every graph; the number of runs."""
    count, rng = 0, np.random.default_rng(3)
    for (traversal, task), layout_ in product(TABLED, LAYOUTS):
        program = fitted(cases.random_program(layout_, True, cases.SPECS[:5], gap=0))
        kernel = Kernel(program, task, "float64", traversal, False, READS)
        for graph in graphs(cases):
            arrays = cases.draw(program, "float64", 0, False, graph)
            number, width = arrays["y"].shape[0], program.widths[2]
            arrays |= {name: rng.standard_normal((number, READS)) for name in ("c", "dc")}
            arrays["t"] = rng.standard_normal((ORDERS * (PLACES - 1) + READS, width))
            place = rng.integers(0, PLACES, number)
            tables = places_of(graph, place)
            got = run_tabled(cases, kernel, arrays, graph, tables, 1 + count % 4, 1 + count % 3)
            for name, wanted in expected_of(cases, kernel, arrays, graph, place).items():
                np.testing.assert_allclose(got[name], wanted, rtol=1e-9, atol=1e-9)
            for _ in range(10 if number else 0):
                forged_ = [np.array(table) for table in tables]
                table = forged_[rng.integers(len(forged_))]
                table[rng.integers(table.size)] = rng.choice([-(2**63), -1, 0, 3, PLACES, 8, 39, 40, 2**40])
                with suppress(IndexError):
                    run_tabled(cases, kernel, arrays, graph, forged_, 1, 1)
                count += 1
            count += 1
    return count


def places_of(graph: Any, place: np.ndarray) -> list[np.ndarray]:
    """The tables of places of a graph's edges: their begins, edges, senders, receivers, and the place of each edge."""
    index = np.stack([graph.src, graph.dst]).astype(np.int64)
    found = edges.interval_offsets(place.size, PLACES)
    out = np.empty(found.length, np.int64)
    where = np.ascontiguousarray(place, dtype=np.int64)
    wrong = edges.load("sort_places")(
        index.ctypes.data, where.ctypes.data, place.size, graph.senders, PLACES, out.ctypes.data
    )
    assert wrong == -1
    return [np.array(out[a:b]) for a, b in pairwise(found)]


def run_tabled(
    cases: Any, kernel: Kernel, arrays: Any, graph: Any, places: list[np.ndarray], chunks: int, workers: int
) -> dict[str, np.ndarray]:
    """Results by operand; every buffer is as long as its rows."""
    program, task = kernel.program, kernel.task
    widths = dict(zip("xywz", program.widths, strict=True)) | {"t": READS * program.widths[2], "c": READS}
    rows = {"x": graph.senders, "y": graph.src.size, "c": graph.src.size, "z": graph.receivers, "t": PLACES}
    inputs, results, packed = dict(arrays), {}, []
    for operand in kernel.transposed:
        turn = launch.load_import(program, operand, kernel.dtype)
        for name in [n for n, o in task.pointers if o == operand and n in inputs]:
            turned = np.empty_like(inputs[name])
            turn(turned.shape[0], [*cases.rows_of(inputs[name]), *cases.rows_of(turned)], 1, 1)
            inputs[name] = turned
    for name, operand in task.pointers:
        if name in inputs:
            address, step = cases.rows_of(inputs[name])
            packed += (address, step * (ORDERS if name == "t" else 1))
        else:
            results[operand] = np.full((rows[operand], widths[operand]), np.nan)
            packed += cases.rows_of(results[operand])
    ptr, numbers, senders, receivers, place = places
    if kernel.traversal == "by_place":
        held, sizes, far = [ptr, numbers, senders], [graph.src.size, graph.senders], (receivers, graph.receivers)
    else:
        held = [np.ascontiguousarray(table) for table in graph.tables(kernel.traversal)]
        sizes, far = [graph.src.size, graph.others(kernel.traversal)], (place, PLACES)
    more = [*(table.ctypes.data for table in held), *sizes, far[0].ctypes.data, far[1]]
    launch.load(kernel)(held[0].size - 2, [*packed, *more], chunks, 1 if kernel.traversal == "to_src" else workers)
    return results


def expected_of(cases: Any, kernel: Kernel, arrays: Any, graph: Any, place: np.ndarray) -> dict[str, np.ndarray]:
    """Results from stored weights, by the interpreter of programs."""
    width = kernel.program.widths[2]
    rows = arrays["t"][ORDERS * place[:, None] + np.arange(READS)]  # [E, reads, W]
    inputs = {name: value for name, value in arrays.items() if name not in ("t", "c", "dc")}
    inputs |= {"w": np.einsum("er,erw->ew", arrays["c"], rows), "dw": np.einsum("er,erw->ew", arrays["dc"], rows)}
    task = kernel.task.of_paths
    found = {name: value for name, (value, *_) in cases.expected(kernel.program, task, inputs, graph).items()}
    if "w" not in found:
        return found
    own = found.pop("w")
    if "c" in kernel.task.results:
        found["c"] = np.einsum("ew,erw->er", own, rows)
        return found
    each = arrays["c"][:, :, None] * own[:, None, :]
    if kernel.task.order == 2:
        (first, *_) = cases.expected(kernel.program, Task(1, ("w",)), inputs, graph)["w"]
        each = each + arrays["dc"][:, :, None] * first[:, None, :]
    total = np.zeros((PLACES, READS, width))
    np.add.at(total, place, each)
    return {"t": total.reshape(PLACES, READS * width)}
