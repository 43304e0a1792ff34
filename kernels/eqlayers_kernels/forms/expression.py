"""Values as a graph of sums and products: what formulas are made of, and how each value depends on those before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

#: Vectors whose squared length is not above count as zero, by the dtype of the sums: what is longer has third
#: derivatives that are finite.
SMALLEST_SQUARE = {"float32": 1e-18, "float64": 1e-100}


#: Functions of one number whose derivatives are polynomials of themselves.
FUNCTIONS = ("sigmoid", "tanh")


class Node(NamedTuple):
    """One value.

    Kinds are 'load' (operand, component), 'constant' (value), 'add' and 'multiply' (two nodes), 'inverse_length'
    (components of a vector; 0 of the zero vector), and the functions of one node in `FUNCTIONS`.
    """

    kind: str
    args: tuple[Any, ...]


class Expression:
    """Collects nodes; equal ones are one, sums with 0 and products with 0 and 1 are none."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: list[Node] = list(nodes)
        self._known = {node: number for number, node in enumerate(self.nodes)}
        self.zero, self.one = self.constant(0.0), self.constant(1.0)

    def _node(self, kind: str, *args: Any) -> int:
        node = Node(kind, args)
        number = self._known.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def load(self, operand: int, component: int) -> int:
        """A component of an operand."""
        return self._node("load", operand, component)

    def constant(self, value: float) -> int:
        """A number."""
        return self._node("constant", float(value))

    def add(self, *terms: int) -> int:
        """Sum, from the left."""
        total = self.zero
        for term in terms:
            if total == self.zero or term == self.zero:
                total = term if total == self.zero else total
            else:
                total = self._node("add", total, term)
        return total

    def multiply(self, *factors: int) -> int:
        """Product, from the left; numbers first."""
        product, number = self.one, 1.0
        for factor in factors:
            node = self.nodes[factor]
            if node.kind == "constant":
                number *= node.args[0]
            elif product == self.one:
                product = factor
            else:
                product = self._node("multiply", *sorted((product, factor)))
        if number == 0.0 or product == self.one or number == 1.0:
            return self.zero if number == 0.0 else self.constant(number) if product == self.one else product
        node = self.nodes[product]
        if node.kind == "multiply" and self.nodes[node.args[0]].kind == "constant":
            return self.multiply(self.constant(number * self.nodes[node.args[0]].args[0]), node.args[1])
        return self._node("multiply", self.constant(number), product)

    def scale(self, number: float, value: int) -> int:
        """Product with a number."""
        return self.multiply(self.constant(number), value)

    def inverse_length(self, *vector: int) -> int:
        """One over the length of a vector, 0 of the zero vector."""
        return self._node("inverse_length", *vector)

    def sigmoid(self, value: int) -> int:
        """1 / (1 + exp(-value))."""
        return self._node("sigmoid", value)

    def tanh(self, value: int) -> int:
        """Hyperbolic tangent."""
        return self._node("tanh", value)


def is_number(node: Node) -> bool:
    """Whether it depends on no other node."""
    return node.kind in ("load", "constant")


def partials(expr: Expression, node: Node, place: int) -> list[tuple[int, list[int]]]:
    """The factors of the derivative by each argument of a node."""
    if node.kind == "add":
        return [(arg, []) for arg in node.args]
    if node.kind == "multiply":
        return [(node.args[0], [node.args[1]]), (node.args[1], [node.args[0]])]
    if node.kind == "inverse_length":
        # d(1/r) = -(1/r)^2 u dv with the unit vector u: no power of 1/r comes before a small number has met it
        minus = expr.constant(-1.0)
        return [(arg, [place, place, minus, expr.multiply(arg, place)]) for arg in node.args]
    if node.kind == "sigmoid":
        return [(node.args[0], [place, expr.add(expr.one, expr.scale(-1.0, place))])]
    if node.kind == "tanh":
        return [(node.args[0], [expr.add(expr.one, expr.scale(-1.0, expr.multiply(place, place)))])]
    return []


def nested(expr: Expression, first: int, factors: Sequence[int]) -> int:
    """Product from the left: what is small meets each factor in turn."""
    for factor in factors:
        first = expr.multiply(first, factor)
    return first


def tangent_series(count: int) -> tuple[float, ...]:
    """Factors of the odd powers in the series of the hyperbolic tangent, from ``t' = 1 - t^2``, exactly."""
    factors = [Fraction(1)]
    for k in range(1, count):
        square = sum((factors[i] * factors[k - 1 - i] for i in range(k)), Fraction(0))
        factors.append(-square / (2 * k + 1))
    return tuple(map(float, factors))
