"""Sample formulas, and what their kernels take of GPUs that are not there.

Run by test_aot.py in a process without the interpreter: reads cases as JSON from standard input and writes
one result per case.
"""

import itertools
import json
import sys
import time

import torch

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula
from eqlayers_kernels.triton.print.tuning import processor
from eqlayers_kernels.triton.run import aot
from eqlayers_kernels.triton.run.edges import pack, unpack
from eqlayers_kernels.triton.run.formula_run import FormulaRunner
from ptx_emulator.compiled import compile_formula
from tests.formulas import functions

ORDERS = {"l": [(l, m) for l in range(4) for m in range(-l, l + 1)]}


def columns(components: int, channels: int, layout: str) -> Block:
    if not channels:
        return Block(0, components)
    return Block(0, components, channels, 1) if layout == "component" else Block(0, components, 1, components)


def coupled(orders: list[tuple[int, int]], target: tuple[int, int]) -> bool:
    """Whether a product of real harmonics can have a part along another: parity, triangle, sum of the orders m."""
    degrees, numbers = zip(*orders, target, strict=True)
    if sum(degrees) % 2 or 2 * max(degrees) > sum(degrees) or sum(m < 0 for m in numbers) % 2:
        return False
    signs = itertools.product((1, -1), repeat=len(numbers))
    return any(sum(s * abs(m) for s, m in zip(sign, numbers, strict=True)) == 0 for sign in signs)


def polynomial(
    inputs: int,
    targets: list[tuple[int, int]],
    channels: int,
    layout: str = "component",
    rows: tuple[str, str, str] = ("each", "src", "each"),
    degree: int = 3,
) -> Formula:
    """Nested polynomials of the harmonics up to l = 3: what a symmetric contraction is, with a coefficient per term."""
    expr, count, outputs = Expression(), itertools.count(), []
    x = [expr.load(0, i) for i in range(inputs)]
    for target in targets:
        found = [
            term
            for size in range(1, degree + 1)
            for term in itertools.combinations_with_replacement(range(inputs), size)
            if coupled([ORDERS["l"][i] for i in term], target)
        ]
        number = {term: expr.load(1, next(count)) for term in found}
        begun = {term[:size] for term in found for size in range(degree + 1)}

        def nest(first: tuple[int, ...], number: dict = number, begun: set = begun) -> int:
            parts = [number[first]] if first in number else []
            parts += [
                expr.multiply(x[i], nest((*first, i)))
                for i in range(first[-1] if first else 0, inputs)
                if (*first, i) in begun
            ]
            return expr.add(*parts)

        outputs.append(nest(()))

    def operand(name: str, components: int, row: str) -> Operand:
        return Operand(name, components * max(channels, 1), (columns(components, channels, layout),), row)

    operands = [operand("x", inputs, rows[0]), operand("a", next(count), rows[1])]
    return formula(expr, operands, [operand("z", len(targets), rows[2])], [outputs], channels)


def contraction(channels: int = 128) -> Formula:
    """To a scalar and a vector of many channels, from l up to 3: about 420 coefficients."""
    return polynomial(16, [(0, 0), (1, -1), (1, 0), (1, 1)], channels)


def harmonics(degree: int) -> Formula:
    """Products of the components of a unit vector, of all degrees up to a last, weighted."""
    expr = Expression()
    vector = [expr.load(0, i) for i in range(3)]
    length = expr.inverse_length(*vector)
    unit = [expr.multiply(part, length) for part in vector]
    powers, outputs = {(): expr.one}, []
    for size in range(1, degree + 1):
        for term in itertools.combinations_with_replacement(range(3), size):
            powers[term] = expr.multiply(powers[term[:-1]], unit[term[-1]])
        degrees = [term for term in powers if len(term) == size]
        for number in range(2 * size + 1):
            some = [expr.scale(0.3 + i + number, powers[t]) for i, t in enumerate(degrees[number::3] or degrees)]
            outputs.append(expr.add(*some))
    count = len(outputs)
    rows = [Operand("vector", 3, (Block(0, 3),))]
    return formula(expr, rows, [Operand("harmonics", count + 1, (Block(1, count),))], [outputs])


def geometry() -> Formula:
    """From positions of both ends: the vector, its length, and its direction."""
    expr = Expression()
    ends = [[expr.load(number, i) for i in range(3)] for number in range(2)]
    vector = [expr.add(b, expr.scale(-1.0, a)) for a, b in zip(*ends, strict=True)]
    inverse = expr.inverse_length(*vector)
    square = expr.add(*(expr.multiply(part, part) for part in vector))
    operands = [Operand("from", 3, (Block(0, 3),), "src"), Operand("to", 4, (Block(1, 3),), "dst")]
    results = [Operand("vector", 3, (Block(0, 3),)), Operand("rest", 5, (Block(0, 5),))]
    up = expr.multiply(inverse, vector[0])
    rest = [expr.multiply(square, inverse), *(expr.multiply(part, inverse) for part in vector), up]
    return formula(expr, operands, results, [vector, rest])


def derivatives(base: Formula) -> dict[str, Formula]:
    """Derivatives of the first and second order, by all operands."""
    first = base.vjp([True] * len(base.results), [True] * len(base.operands))
    second = first.vjp([True] * len(first.results), [True] * len(first.operands))
    return {"values": base, "gradients": first, "second gradients": second}


SAMPLES = {
    "contraction": contraction, "small": lambda: polynomial(4, [(0, 0)], 70), "harmonics": lambda: harmonics(3),
    "geometry": geometry, "functions": lambda: functions(70),
}  # fmt: skip


def compiled(sample: str, order: str, dtype: str, target: str) -> dict:
    """Resources that the kernels take, as lists."""
    base, start = derivatives(SAMPLES[sample]())[order], time.perf_counter()
    with aot.target(target):
        found = [
            (planned, aot.resources(kernel)) for planned, kernel in compile_formula(base, getattr(torch, dtype), jobs=2)
        ]
    return {
        "kernels": len(found),
        "traversals": [planned.text.traversal for planned, _ in found],
        "blocks": [planned.block for planned, _ in found],
        "alive": [planned.text.order.alive for planned, _ in found],
        "operations": [planned.text.order.operations for planned, _ in found],
        "registers": [used.registers for _, used in found],
        "spill_bytes": [used.spill_bytes for _, used in found],
        "shared_bytes": [used.shared_bytes for _, used in found],
        "seconds": time.perf_counter() - start,
    }


def same(sample: str, order: str, target: str, sizes: list[tuple[int, int, int]]) -> list[int]:
    """Into how many kernels each piece compiles for batches of several sizes, (rows, senders, receivers)."""
    base = derivatives(SAMPLES[sample]())[order]
    runner = FormulaRunner(base, torch.float32, processor(*aot.TARGETS[target][:2]))
    kernels: list[set[int]] = [set() for _ in runner.kernels]
    with aot.target(target):
        for rows, senders, receivers in sizes:
            count = {"each": rows, "src": senders, "dst": receivers}
            tensors = [torch.empty(count[one.rows], one.width) for one in base.operands]
            packed = pack(torch.zeros(2, rows, dtype=torch.int64), senders, receivers)
            _, calls = runner.prepare(tensors, unpack(packed, rows, senders, receivers), rows)
            for found, call in zip(kernels, calls, strict=True):
                found.add(id(call.kernel.warmup(*call.args, grid=call.grid, **call.meta)))
    return [len(found) for found in kernels]


if __name__ == "__main__":
    import triton

    request = json.load(sys.stdin)
    answer = {
        "triton": triton.__version__,
        "compiled": [compiled(**case) for case in request.get("cases", [])],
        "same": [same(**case) for case in request.get("same", [])],
    }
    json.dump(answer, sys.stdout)
