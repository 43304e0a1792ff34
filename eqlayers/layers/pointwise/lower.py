"""Traces a Python function to a formula: it is called once, with values that record every operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from e3nn.o3 import Irreps

from eqlayers_kernels.forms.formula import Block, Expression, Formula, Operand, evaluate, formula

from ...core.checks import check_integer, got
from ...core.errors import ConfigError, IndexRangeError, IrrepsError, UnknownNameError
from ...core.forms.keys import register_formula
from ...irreps.algebra import representation_matrix
from ...irreps.layout import slots_of

#: With fewer channels than this, the lanes of a vector register hold rows, not channels.
FEWEST = 4

#: Largest relative error of equivariance that counts as rounding.
_ROUNDING = 1e-9


class Value:
    """A value of a formula while it is traced: supports sums, products, whole powers, and a few functions.

    Example:
        >>> expr = Expression()
        >>> x = Value(expr, expr.load(0, 0))
        >>> expr.nodes[(2 * x**2).node].op
        'multiply'
    """

    __slots__ = ("expr", "node")

    def __init__(self, expr: Expression, node: int) -> None:
        self.expr, self.node = expr, node

    def _of(self, other: Any) -> int:
        if isinstance(other, Value) and other.expr is self.expr:
            return other.node
        if isinstance(other, (int, float, np.integer, np.floating)) and not isinstance(other, bool):
            return self.expr.constant(float(other))
        raise ConfigError(
            f"a formula must be made of its operands and of numbers, got {got(other)}. Use +, -, *, whole powers, "
            f"division by numbers, and the methods of Value."
        )

    def __add__(self, other: Any) -> Value:
        return Value(self.expr, self.expr.add(self.node, self._of(other)))

    def __mul__(self, other: Any) -> Value:
        return Value(self.expr, self.expr.multiply(self.node, self._of(other)))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        return -1.0 * self

    def __sub__(self, other: Any) -> Value:
        return self + Value(self.expr, self.expr.scale(-1.0, self._of(other)))

    def __rsub__(self, other: Any) -> Value:
        return -self + other

    def __truediv__(self, other: Any) -> Value:
        number = self.expr.nodes[self._of(other)]
        if number.op != "constant" or number.args[0] == 0:
            raise ConfigError(
                "a formula must divide by numbers other than 0 only, got a value. Use inverse_length, which is smooth "
                "but at zero."
            )
        return self * (1.0 / number.args[0])

    def _refuse(self, *others: Any) -> Any:
        raise ConfigError(
            f"a formula must do the same for all values, got a comparison or another function of {got(self)}. "
            f"Use +, -, *, whole powers, division by numbers, and the methods of Value."
        )

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __abs__ = __float__ = __rtruediv__ = _refuse
    __rpow__ = __mod__ = __floordiv__ = __matmul__ = __int__ = __index__ = _refuse
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the method with the name of torch's function: ``torch.tanh(x[0])`` is ``x[0].tanh()``."""
        return getattr(next(value for value in args if isinstance(value, Value)), func.__name__)()

    def __getattr__(self, name: str) -> Any:
        functions = [key for key, value in vars(Value).items() if callable(value) and not key.startswith("_")]
        raise UnknownNameError(
            f"functions of a value in a formula must be among {', '.join(functions)}, which kernels know, got {name}. "
            f"Use these, sums and products, or apply {name} to the result of the layer in torch.",
            name=name,
        )

    def __pow__(self, power: Any) -> Value:
        product = Value(self.expr, self.expr.one)
        for _ in range(check_integer("power", power, 0, 64, what="a whole number")):
            product = product * self
        return product

    def sigmoid(self) -> Value:
        """1 / (1 + exp(-x))."""
        return Value(self.expr, self.expr.sigmoid(self.node))

    def tanh(self) -> Value:
        """Hyperbolic tangent."""
        return Value(self.expr, self.expr.tanh(self.node))

    def silu(self) -> Value:
        """The value times its sigmoid."""
        return self * self.sigmoid()

    def inverse_length(self, *others: Value) -> Value:
        """One over the length of the vector of this value and the others; 0 for the zero vector."""
        return Value(self.expr, self.expr.inverse_length(self.node, *map(self._of, others)))


class _Components(list[Value]):
    """The components of an operand, which the traced function indexes."""

    def __init__(self, spec: Rows, values: list[Value]) -> None:
        super().__init__(values)
        self.spec = spec

    def __getitem__(self, index: Any) -> Any:
        try:
            return super().__getitem__(index)
        except IndexError:
            single = Irreps([(1, ir) for _, ir in self.spec.irreps])
            raise IndexRangeError(
                f"a component of {self.spec.name} must lie in [0, {len(self)}), the components of a channel, {single}, "
                f"got {got(index)}. The function is called with one channel; the layer repeats it for all."
            ) from None


class Rows(NamedTuple):
    """An operand or a result: its name, irreps and rows."""

    name: str
    irreps: Irreps
    rows: str


def traced_formula(
    function: Callable[..., Any], operands: Sequence[Rows], results: Sequence[Rows], layout: str, several: bool
) -> Formula:
    """The formula of a function of the components of one channel.

    The function takes the components of each operand, in the order of its irreps, and returns the list of the
    components of the result, or a list for each result if there are ``several``. ConfigError for something else, or if
    multiplicities differ.

    Example:
        >>> x, z = Rows("x", Irreps("8x1o"), "each"), Rows("z", Irreps("8x0e"), "each")
        >>> traced_formula(lambda x: [x[0] ** 2 + x[1] ** 2 + x[2] ** 2], [x], [z], "mul_ir", False).channels
        8
    """
    muls = {mul for spec in (*operands, *results) for mul, _ in spec.irreps}
    if len(muls) != 1 or 0 in muls:
        raise ConfigError(
            f"irreps of operands and results must have one multiplicity, the number of channels, got "
            f"{[str(spec.irreps) for spec in (*operands, *results)]}. For products of features and single irreps use "
            f"eqlayers.TensorProduct."
        )
    copies = muls.pop()
    channels = copies if copies >= FEWEST else 0
    expr = Expression()
    outputs: list[list[int]] = [[] for _ in results]
    for copy in range(1 if channels else copies):  # few channels are components: lanes are rows then
        widths = [sum(ir.dim for _, ir in spec.irreps) for spec in operands]
        values = [
            _Components(spec, [Value(expr, expr.load(number, copy * width + i)) for i in range(width)])
            for number, (spec, width) in enumerate(zip(operands, widths, strict=True))
        ]
        returned = function(*values)
        for target, spec, part in zip(outputs, results, _lists(returned, len(results), several), strict=True):
            target += _nodes(expr, spec, part)
    parts = [
        Operand(spec.name, spec.irreps.dim, _blocks(spec.irreps, copies, channels, layout), spec.rows)
        for spec in (*operands, *results)
    ]
    return register_formula(formula(expr, parts[: len(operands)], parts[len(operands) :], outputs, channels))


def _lists(returned: Any, count: int, several: bool) -> Sequence[Any]:
    parts = returned if several else [returned]
    if not isinstance(parts, (list, tuple)) or len(parts) != count:
        raise ConfigError(f"function must return {count} lists, one for each result, got {got(parts)}. Return a tuple.")
    return parts


def _nodes(expr: Expression, spec: Rows, part: Any) -> list[int]:
    """The nodes of the values that a function returned for a result; ConfigError for a wrong number of values."""
    count = sum(ir.dim for _, ir in spec.irreps)
    if not isinstance(part, (list, tuple)) or len(part) != count:
        shown = len(part) if isinstance(part, (list, tuple)) else got(part)
        raise ConfigError(
            f"function must return a list of the {count} components of one channel of {spec.name}, {spec.irreps}, got "
            f"{shown}. Order them as the irreps."
        )
    return [(Value(expr, expr.zero) + value).node for value in part]


def _blocks(irreps: Irreps, copies: int, channels: int, layout: str) -> tuple[Block, ...]:
    slots = slots_of(irreps)
    if channels:
        steps = [(slot.mul, 1) if layout == "ir_mul" else (1, slot.dim) for slot in slots]
        return tuple(Block(slot.start, slot.dim, *step) for slot, step in zip(slots, steps, strict=True))
    return tuple(
        Block(slot.start + copy, slot.dim, slot.mul)
        if layout == "ir_mul"
        else Block(slot.start + copy * slot.dim, slot.dim)
        for copy in range(copies)
        for slot in slots
    )


class _Numbers:
    """The functions of formulas for numpy arrays, to evaluate a formula without kernels."""

    @staticmethod
    def inverse_length(*vector: Any) -> Any:
        return 1.0 / np.sqrt(sum(v * v for v in vector))

    @staticmethod
    def sigmoid(value: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-value))

    @staticmethod
    def tanh(value: Any) -> Any:
        return np.tanh(value)


def check_equivariance(base: Formula, operands: Sequence[Rows], results: Sequence[Rows]) -> None:
    """Raise IrrepsError unless the formula is equivariant, by one rotation and the inversion of random rows."""
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    single = [Irreps([(1, ir) for _, ir in spec.irreps]) for spec in (*operands, *results)]
    inputs = [generator.normal(size=(irreps.dim, 5)) for irreps in single[: len(operands)]]

    def run(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        def load(operand: int, component: int) -> np.ndarray:
            return values[operand][component % len(values[operand])]  # the same for all channels

        results_of_all = evaluate(base, load, _Numbers)
        parts = [part[: irreps.dim] for part, irreps in zip(results_of_all, single[len(operands) :], strict=True)]
        return [np.stack([np.zeros(5) if v is None else np.broadcast_to(v, (5,)) for v in part]) for part in parts]

    plain = run(inputs)
    for what, matrix in (("rotations", rotation), ("the inversion", -rotation)):
        matrices = [representation_matrix(irreps, matrix).numpy() for irreps in single]
        after = run([m @ value for m, value in zip(matrices, inputs, strict=False)])
        for spec, m, a, b in zip(results, matrices[len(operands) :], after, plain, strict=True):
            difference = np.abs(a - m @ b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1.0)
            if not difference <= _ROUNDING:
                raise IrrepsError(
                    f"function must commute with {what}, got {spec.name} off by {difference:.2g} of its size. Correct "
                    f"it or the irreps, or pass check=False."
                )
