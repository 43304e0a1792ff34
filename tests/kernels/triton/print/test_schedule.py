"""Statements of a formula are in an order that computes it, with few values alive at once."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from eqlayers_kernels.forms.formula import Formula, evaluate
from eqlayers_kernels.triton.print.schedule import Order, Slot, schedule, terms_of
from tests.each import each
from tests.formulas import cubic, edges_of_points, functions

MADE = runpy.run_path(str(Path(__file__).parents[1] / "run" / "compile_formulas.py"))
derivatives = MADE["derivatives"]
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
