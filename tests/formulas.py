"""Formulas to test with: every map of rows, channels and none, every kind of node."""

from collections.abc import Sequence

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, formula


def edges_of_points() -> Formula:
    """Vector, length and a few harmonics between two points: rows of senders and receivers, no channels."""
    expr = Expression()
    ends = [[expr.load(operand, i) for i in range(3)] for operand in range(3)]
    vector = [expr.add(b, expr.scale(-1.0, a), s) for a, b, s in zip(*ends, strict=True)]
    inverse = expr.inverse_length(*vector)
    x, y, z = (expr.multiply(v, inverse) for v in vector)
    length = expr.multiply(expr.add(*(expr.multiply(v, v) for v in vector)), inverse)
    harmonics = [
        expr.one,
        *(x, y, z),
        expr.scale(1.5, expr.multiply(x, y)),
        expr.add(
            expr.scale(1.5, expr.multiply(z, z)),
            expr.scale(-0.5, expr.add(*(expr.multiply(u, u) for u in (x, y, z)))),
        ),
        None,
    ]
    row = (Block(0, 3),)
    operands = [Operand("from", 3, row, "src"), Operand("to", 3, row, "dst"), Operand("shift", 4, row)]
    results = [Operand("vector", 3, row), Operand("length", 1, (Block(0, 1),)), Operand("harmonics", 9, (Block(1, 7),))]
    return formula(expr, operands, results, [vector, [length], harmonics])


def cubic(channels: int, layout: str = "ir_mul", rows: str = "src", components: Sequence[int] = (1, 3)) -> Formula:
    """Scalars and a vector of powers 1 to 3 with coefficients, per channel.

    Args:
        channels: Of every operand.
        layout: Of x and of the result: 'ir_mul', 'mul_ir', or 'channels' for rows ``[channels, components]``.
        rows: Of the coefficients.
        components: Of the irreps of x.
    """
    expr, count = Expression(), sum(components)
    x = [expr.load(0, i) for i in range(count)]
    number, outputs = 0, []
    for k in range(2):
        total = expr.zero
        for i in range(count):
            inner = expr.load(1, number)
            number += 1
            for j in range(i, count, 1 + k):
                last = [expr.multiply(x[m], expr.load(1, number + m - j)) for m in range(j, count)]
                number += len(last)
                inner = expr.add(inner, expr.multiply(x[j], expr.add(*last)))
            total = expr.add(total, expr.multiply(x[i], inner))
        outputs.append(total)

    def blocks(dims: Sequence[int]) -> tuple[Block, ...]:
        if layout == "channels":
            return (Block(0, sum(dims), 1, sum(dims)),)
        starts = [channels * sum(dims[:i]) for i in range(len(dims))]
        steps = [(channels, 1) if layout == "ir_mul" else (1, dim) for dim in dims]
        return tuple(Block(start, dim, *step) for start, dim, step in zip(starts, dims, steps, strict=True))

    operands = [
        Operand("x", channels * count, blocks(components)),
        Operand("coefficients", channels * number, (Block(0, number, channels, 1),), rows),
    ]
    results = [Operand("z", channels * 2, blocks((1, 1)))]
    return formula(expr, operands, results, [outputs], channels)


def functions(channels: int) -> Formula:
    """Functions of one number, alone and in products."""
    expr = Expression()
    a, b, c = (expr.load(0, i) for i in range(3))
    gate = expr.sigmoid(b)
    outputs = [expr.multiply(a, expr.sigmoid(a)), expr.tanh(b), expr.multiply(gate, c, expr.tanh(c)), gate]
    block = Block(0, 3, max(channels, 1), int(channels > 0))
    operand, result = Operand("x", 3 * max(channels, 1), (block,)), Operand("z", 4 * max(channels, 1), ())
    return formula(expr, [operand], [result._replace(blocks=(block._replace(dim=4),))], [outputs], channels)
