"""Graphs of sums and products, of which formulas are made, and the partial derivatives of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import partialmethod
from typing import Any, NamedTuple

#: Largest squared length of a vector that counts as zero, by the dtype of the sums: third derivatives of the length of
#: longer vectors are finite.
SMALLEST_SQUARE = {"float32": 1e-18, "float64": 1e-100}


#: Functions of one number: 1 / (1 + exp(-x)), the hyperbolic tangent, the smaller of x and 1, and 1 where x is below 1,
#: else 0. NaN stays NaN, except in the last, which is 0.
FUNCTIONS = ("sigmoid", "tanh", "at_most_one", "below_one")


class Node(NamedTuple):
    """One node of the graph: an operation and its arguments.

    ``op`` is 'load' (operand, component), 'constant' (value), 'add' or 'multiply' (two nodes), 'inverse_length'
    (components of a vector; 0 of the zero vector), or a function of one node in `FUNCTIONS`.
    """

    op: str
    args: tuple[Any, ...]


class Expression:
    """Builds a graph of nodes: equal nodes are shared; sums with 0 and products with 0 or 1 add no node."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: list[Node] = list(nodes)
        self._known = {node: number for number, node in enumerate(self.nodes)}
        self.zero, self.one = self.constant(0.0), self.constant(1.0)

    def _node(self, op: str, *args: Any) -> int:
        node = Node(op, args)
        number = self._known.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def load(self, operand: int, component: int) -> int:
        """The node of a component of an operand."""
        return self._node("load", operand, component)

    def constant(self, value: float) -> int:
        """The node of a number."""
        return self._node("constant", float(value))

    def add(self, *terms: int) -> int:
        """The node of a sum, added from the left."""
        total = self.zero
        for term in terms:
            if total == self.zero or term == self.zero:
                total = term if total == self.zero else total
            else:
                total = self._node("add", total, term)
        return total

    def multiply(self, *factors: int) -> int:
        """The node of a product, multiplied from the left; constants are combined into one factor."""
        product, number = self.one, 1.0
        for factor in factors:
            node = self.nodes[factor]
            if node.op == "constant":
                number *= node.args[0]
            elif product == self.one:
                product = factor
            else:
                product = self._node("multiply", *sorted((product, factor)))
        if number == 0.0 or product == self.one or number == 1.0:
            return self.zero if number == 0.0 else self.constant(number) if product == self.one else product
        node = self.nodes[product]
        if node.op == "multiply" and self.nodes[node.args[0]].op == "constant":
            return self.multiply(self.constant(number * self.nodes[node.args[0]].args[0]), node.args[1])
        return self._node("multiply", self.constant(number), product)

    def scale(self, number: float, value: int) -> int:
        """The node of a product with a number."""
        return self.multiply(self.constant(number), value)

    def inverse_length(self, *vector: int) -> int:
        """The node of 1 over the length of a vector; 0 for the zero vector."""
        return self._node("inverse_length", *vector)

    # the nodes of `FUNCTIONS` of a node; the derivative of the last is 0
    sigmoid, tanh = partialmethod(_node, "sigmoid"), partialmethod(_node, "tanh")
    at_most_one, below_one = partialmethod(_node, "at_most_one"), partialmethod(_node, "below_one")


def is_number(node: Node) -> bool:
    """Whether a node is a load or a constant, and so depends on no other node."""
    return node.op in ("load", "constant")


def partials(expr: Expression, node: Node, index: int) -> list[tuple[int, list[int]]]:
    """(argument, factors of the partial derivative by it) of each argument of the node number ``index``."""
    if node.op == "add":
        return [(arg, []) for arg in node.args]
    if node.op == "multiply":
        return [(node.args[0], [node.args[1]]), (node.args[1], [node.args[0]])]
    if node.op == "inverse_length":
        # d(1/r) = -(1/r)^2 u dv with the unit vector u: powers of 1/r are multiplied by small numbers first
        minus = expr.constant(-1.0)
        return [(arg, [index, index, minus, expr.multiply(arg, index)]) for arg in node.args]
    if node.op == "sigmoid":
        return [(node.args[0], [index, expr.add(expr.one, expr.scale(-1.0, index))])]
    if node.op == "tanh":
        return [(node.args[0], [expr.add(expr.one, expr.scale(-1.0, expr.multiply(index, index)))])]
    if node.op == "at_most_one":
        return [(node.args[0], [expr.below_one(node.args[0])])]
    return []


def nested(expr: Expression, first: int, factors: Sequence[int]) -> int:
    """The node of ``first`` times all factors, one by one: a small first factor prevents overflow."""
    for factor in factors:
        first = expr.multiply(first, factor)
    return first


def tangent_series(count: int) -> tuple[float, ...]:
    """Coefficients of the odd powers in the Taylor series of tanh, exact rationals from ``t' = 1 - t^2``."""
    factors = [Fraction(1)]
    for k in range(1, count):
        square = sum((factors[i] * factors[k - 1 - i] for i in range(k)), Fraction(0))
        factors.append(-square / (2 * k + 1))
    return tuple(map(float, factors))
