"""Printed Triton kernels: the order of statements, the cut into kernels, arguments, and resources of a processor."""

import ast
import itertools
import math
import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.forms.formula import Formula, evaluate
from eqlayers_kernels.forms.product import Reading
from eqlayers_kernels.triton.print import tuning
from eqlayers_kernels.triton.print.formula_plan import plan
from eqlayers_kernels.triton.print.printer import KernelText
from eqlayers_kernels.triton.print.schedule import Order, Slot, schedule, terms_of
from eqlayers_kernels.triton.print.tuning import PROCESSORS, Cost, attempts, processor
from tests.each import each
from tests.formulas import cubic, edges_of_points, functions

MADE = runpy.run_path(str(Path(__file__).parents[1] / "run" / "compile_formulas.py"))
polynomial, derivatives = MADE["polynomial"], MADE["derivatives"]
ON = tuning.PROCESSORS["cuda"]
SAMPLES = {"cubic": cubic(1), "edges": edges_of_points(), "functions": functions(1)}


class Primitives:
    """In numbers of Python."""

    @staticmethod
    def inverse_length(*vector: float) -> float:
        return 1 / math.hypot(*vector)

    @staticmethod
    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    tanh = staticmethod(math.tanh)


def load(operand: int, component: int) -> float:
    return math.sin(1 + 3 * operand + component)


def run(base: Formula, order: Order, stay: bool) -> tuple[dict[Slot, float], int]:
    """The sums of components of results, statement by statement, and the most values that are needed at once."""
    values: dict[Any, float] = {n: node.args[0] for n, node in enumerate(base.nodes) if node.op == "constant"}
    numbers, last, most = set(values), {}, 0
    for place, step in enumerate(order.steps):
        last |= dict.fromkeys(step.args, place) | ({step.node: place} if step.node >= 0 else {})
    for place, step in enumerate(order.steps):
        node, args = base.nodes[step.node], [values[arg] for arg in step.args]  # each is there before it is used
        target = step.slot if step.op in ("total", "store") else step.node
        if step.op == "load":
            assert target not in values, "a component is loaded once"
            values[target] = load(*node.args)
        elif step.op in ("add", "total"):
            assert step.follows == (target in values) or (stay and step.op == "total")
            values[target] = values.get(target, 0.0) + math.prod(args)
        elif step.op == "make":
            values[target] = math.prod(args) if node.op == "multiply" else getattr(Primitives, node.op)(*args)
        needed = {v for v in values if isinstance(v, tuple) or last.get(v, -1) > place} - numbers
        most = max(most, len(needed))
    return {slot: value for slot, value in values.items() if isinstance(slot, tuple)}, most


@each("name", SAMPLES)
def test_the_statements_compute_the_formula(name: str) -> None:
    """Values and two derivatives; a part of the terms of a sum is computed as well."""
    for base in derivatives(SAMPLES[name]).values():
        outputs = evaluate(base, load, Primitives)
        wanted = {(r, c): value for r, part in enumerate(outputs) for c, value in enumerate(part) if value is not None}
        terms = terms_of(base, list(wanted))
        for stay in (False, True):
            order = schedule(base, terms, stay)
            sums, most = run(base, order, stay)
            assert sums == pytest.approx(wanted, rel=1e-12, abs=1e-13)
            assert order.alive >= most - (0 if stay else len(sums))
            ops = [step.op for step in order.steps]
            assert order.operations == len(ops) - ops.count("load") - ops.count("store")
            assert order.accesses == ops.count("load") + len(wanted)
            assert ops.count("store") == (0 if stay else len(wanted))
        halves = [{slot: parts[half::2] for slot, parts in terms.items() if parts[half::2]} for half in (0, 1)]
        parts = [run(base, schedule(base, some), False)[0] for some in halves]
        assert {slot: sum(part.get(slot, 0.0) for part in parts) for slot in wanted} == pytest.approx(wanted, abs=1e-12)


def test_orders_keep_few_values_alive() -> None:
    """A contraction's gradients hold operands, results and a few sums, however many coefficients there are."""
    made = derivatives(MADE["contraction"]())
    alive = {}
    for order, base in made.items():
        slots = [(r, c) for r, one in enumerate(base.results) if one.rows == "each" for c in range(one.components)]
        alive[order] = schedule(base, terms_of(base, slots)).alive
    assert alive == {"values": 20, "gradients": 39, "second gradients": 60}


@pytest.mark.parametrize(("order", "channels"), [("values", 128), ("gradients", 128), ("second gradients", 32)])
def test_kernels_of_a_contraction_repeat_little(order: str, channels: int) -> None:
    """With many channels, kernels of several channels a thread are planned as well."""
    base = derivatives(MADE["contraction"](channels))[order]
    kernels, whole = plan(base, False, ON), 0
    for traversal in {kernel.text.traversal for kernel in kernels}:
        stay = traversal == "by_src"
        slots = [
            (r, c)
            for r, one in enumerate(base.results)
            if (one.rows == "src") == stay
            for c, node in enumerate(base.outputs[r])
            if node is not None
        ]
        whole += schedule(base, terms_of(base, slots), stay).operations
    assert whole <= sum(kernel.text.order.operations for kernel in kernels) < 1.15 * whole


@each("channels, double", [(0, False), (40, False), (70, True), (128, False)])
def test_kernels_that_are_cut_hold_each_term_once(channels: int, double: bool) -> None:
    """A kernel adds to what one before it stored of the same component, and begins all others."""
    base = derivatives(polynomial(4, [(0, 0), (1, 1)], channels))["gradients"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "FORMULA_ACCESSES", 9)
        kernels = plan(base, double, ON)
    assert len(kernels) > 2
    slots = [(r, c) for r, part in enumerate(base.outputs) for c, node in enumerate(part) if node is not None]
    wanted = Counter(slot for slot, terms in terms_of(base, slots).items() for _ in terms)
    stored: dict[str, set[tuple[int, int]]] = {}
    totals: Counter[tuple[int, int]] = Counter()
    for kernel in kernels:
        before = stored.setdefault(kernel.text.traversal, set())
        assert kernel.text.begun == before
        before |= set(kernel.text.slots)
        totals.update(step.slot for step in kernel.text.order.steps if step.op == "total")
        if channels:
            assert kernel.block * (kernel.blocks - 1) < channels <= kernel.block * kernel.blocks
            assert kernel.text.masked == (channels < kernel.block * kernel.blocks)
    assert totals == wanted


FORWARD, BACKWARD = Task(0, ("z",)), Task(1, ("x", "y", "w"))
SPECS = (("uvu", (5, 1, 0), (3, 3, 1)), ("uvu", (5, 1, 0), (1, 3, 3)))
SIZES = ["segments", "start", "sums", "rows", "count", "spare", "chunk"]
SORTED = ["nodes", "firsts", "stops", "places", "edges", "others"]


def text(programs: Any, task: Task, traversal: str, **options: Any) -> KernelText:
    program = programs.random_program("ir_mul", True, SPECS)
    return KernelText(program, program.paths, task, traversal, **{"shared": False, "masked": True} | options)


def rows_of(kernel: KernelText) -> dict[str, str]:
    """The row at which each pointer stands."""
    return dict(re.findall(r"^ *(\w+)_n = \1 \+ \((.*)\) \* \d+$", kernel.source, flags=re.MULTILINE))


@each(
    "task, traversal, workspaces, tables",
    [
        (FORWARD, "rows", [], []),
        (FORWARD, "by_dst", ["z_room"], SORTED),
        (BACKWARD, "by_dst", [], SORTED),
        (BACKWARD, "by_src", ["gx_room"], SORTED),
        (Task(1, ("t",), (), ("x", "y", "t", "c")), "by_place", ["gt_room"], [*SORTED, "ends"]),
        (Task(1, ("c",), (), ("x", "y", "t", "c")), "by_dst", [], [*SORTED, "ends"]),
    ],
)
def test_arguments_are_pointers_rooms_tables_sizes_and_parts(
    programs: Any, task: Task, traversal: str, workspaces: list[str], tables: list[str]
) -> None:
    reading = Reading(4, 1) if "t" in task.factors else None
    kernel = text(programs, task, traversal, reading=reading, stored=True)
    (function,) = (node for node in ast.parse(kernel.source).body if isinstance(node, ast.FunctionDef))
    pointers = [name for name, _ in task.pointers]
    parts = [f"{name}_part" for name in pointers[len(pointers) - len(task.results) :]]
    arguments = [one.arg for one in function.args.args]
    assert arguments == [*pointers, *workspaces, *tables, *SIZES, *parts, "ACC", "BLOCK", "STAGES"]
    assert function.name == f"{('forward', 'backward')[task.order]}_{traversal}"


def test_rows_are_where_a_walk_finds_them(programs: Any) -> None:
    """Receivers are the nodes of one walk and the other ends of the next; edges have y and weights."""
    by_dst, by_src = (rows_of(text(programs, BACKWARD, traversal)) for traversal in ("by_dst", "by_src"))
    assert (by_dst["x"], by_dst["g"], by_dst["y"], by_dst["w"]) == ("other", "node", "edge", "edge")
    assert (by_src["x"], by_src["g"], by_src["y"], by_src["w"]) == ("node", "other", "edge", "edge")
    assert by_src["gx"] == "place + gx_part * count_long"
    assert by_src["gw"] == "edge + gw_part * rows_long"
    assert by_src["gy"] == "edge + (gy_part + block) * rows_long", "every block of channels has a part of a sum"
    plain = rows_of(text(programs, FORWARD, "rows"))
    assert set(plain.values()) == {"step", "step + z_part * rows_long"}
    shared = rows_of(text(programs, BACKWARD, "by_src", shared=True))
    assert (shared["w"], shared["gw"]) == ("0", "slot + gw_part * sums_long")


def test_gradients_of_senders_are_added_or_stored_for_each_edge(programs: Any) -> None:
    """Along receivers other programs have the same sender: sums in memory have no order of their own."""
    added, stored = (text(programs, BACKWARD, "by_dst", stored=stored) for stored in (False, True))
    assert (added.added, stored.added) == ({"x"}, set())
    assert added.source.count("tl.atomic_add(gx_n") == 4  # components of x
    assert "atomic" not in stored.source
    assert (rows_of(added)["gx"], rows_of(stored)["gx"]) == ("other", "edge + gx_part * rows_long")
    first = stored.paths[0].x.start
    again = text(programs, BACKWARD, "by_dst", stored=True, begun=frozenset({first}))
    assert again.source.count("tl.load(gx_n") == 3, "the slot of three components has gradients already"
    assert "tl.load(gx_n" not in stored.source
    assert ("inside = u < 5" in stored.source, stored.channels) == (True, 5)


def test_numbers_of_two_bytes_and_second_derivatives_have_fewer_registers() -> None:
    """Values held beside the counted ones: reads without a pipeline, and derivatives beside values."""
    for name, row in tuning.PROCESSORS.items():
        planned = {(order, size): row.planned(order, size).registers for order in (0, 1, 2) for size in (2, 4, 8)}
        assert planned[0, 4] == planned[1, 8] == row.registers, name
        assert planned[2, 4] == row.second, name
        assert planned[0, 2] == row.narrow, name
        assert planned[2, 2] == min(row.narrow, row.second), name
    older, newer = (tuning.processor("cuda", arch) for arch in (90, 120))
    assert newer.registers < older.registers
    assert newer.narrow < older.narrow


@each("name", PROCESSORS)
def test_attempts_have_fewer_registers_and_at_last_no_options(name: str) -> None:
    first, second, third = attempts(PROCESSORS[name])
    assert first is PROCESSORS[name]
    for share, row in ((2 / 3, second), (1 / 2, third)):
        for field in ("registers", "wide", "second", "narrow"):
            assert share * getattr(first, field) - 1 < getattr(row, field) <= share * getattr(first, field)
        assert (row.lanes, row.accesses, row.shared_bytes) == (first.lanes, first.accesses, first.shared_bytes)
    assert second.options == first.options
    assert third.options == {}
    assert tuning.formula_options(first, True, 0).get("maxnreg", 0) <= first.most_registers
    assert ("maxnreg" in tuning.formula_options(first, True, 0)) == ("maxnreg" in first.options)


def test_processors_are_found_by_their_number_and_the_release_of_triton() -> None:
    assert processor("cuda", 90) == processor("cuda", "80") == PROCESSORS["cuda"]
    assert processor("cuda", 100) == processor("cuda", 120, (3, 7)) == PROCESSORS["sm_100"]
    assert processor("hip", "gfx942", (3, 6)) == PROCESSORS["hip"]
    older = processor("cuda", 100, (3, 6, 1))
    assert not older.fused
    assert older.registers < PROCESSORS["sm_100"].registers
    assert processor("cuda", 90, (3, 6)).fused


def test_blocks_are_powers_of_two_within_their_bounds() -> None:
    """Tiles of the segment kernel, pieces of sums over the batch, and channels of a program."""
    for op, u, v, batched, double in itertools.product(tuning.TABLE, (1, 7, 64, 1000), (1, 5), (0, 1), (0, 1)):
        row, tile = tuning.TABLE[op], tuning.blocks(op, u, v, batched=bool(batched), double=bool(double))
        assert all(size & (size - 1) == 0 for size in tile[:3])
        assert tile.u <= row.block_u
        assert tile.v <= row.block_v
        assert tile.u == row.block_u or u <= tile.u < 2 * u
        assert tile.n == 1 or tile.n * tile.u * tile.v * (2 if double else 1) <= row.elements
    assert [tuning.chunks(tiles, 1) for tiles in (0, 1, 4, 5, 10**6)] == [1, 1, 1, 2, tuning.PROGRAMS]
    assert tuning.chunks(10**6, 2 * tuning.PROGRAMS) == 1
    for on in PROCESSORS.values():
        sizes = itertools.product((5, 40, 90, 300), (0, 20, 60), (1, 33, 64, 500), (False, True))
        for vectors, loads, channels, double in sizes:
            cost = Cost(vectors, 10, 9, loads=loads)
            per_thread = tuning.channel_block(cost, channels, double, on) // on.lanes
            assert per_thread in (1, 2, 4)
            if per_thread > 1:
                assert cost.registers(per_thread, double) <= on.registers
                assert cost.shared(per_thread, double, on) <= on.shared_bytes
                assert per_thread * on.lanes < 2 * channels, "lanes without channels"
    assert Cost(3, 2, 0).registers(2, True) == 2 * (3 * 2 + 2)
