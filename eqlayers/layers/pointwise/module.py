"""A layer from a Python function of components, which is traced to a formula: called once, with recording values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.formula import ROWS, Expression, Formula, Operand, evaluate, formula

from ...core.apply import as_rows
from ...core.checks import (
    check_choice,
    check_flag,
    check_function,
    check_integer,
    check_items,
    check_type,
    got,
)
from ...core.dtypes import broadcast_lead, of_one_dtype
from ...core.errors import ConfigError, IndexRangeError, IrrepsError, ShapeError, UnknownNameError
from ...core.forms.description import register_formula
from ...core.graph import Graph, as_graph
from ...irreps.algebra import as_irreps, representation_matrix
from ...irreps.layout import LAYOUTS, FlatLayout, slots_of
from ..base.columns import block_of
from ..base.module import FormulaModule, run_formula

#: With fewer channels than this, the lanes of a vector register hold rows, not channels.
FEWEST = 4

#: Largest relative error of equivariance that counts as rounding.
_ROUNDING = 1e-9


class Value:
    """A value of a formula while it is traced: supports sums, products, whole powers, and a few functions."""

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
        lists = returned if several else [returned]
        if not isinstance(lists, (list, tuple)) or len(lists) != len(results):
            raise ConfigError(
                f"function must return {len(results)} lists, one for each result, got {got(lists)}. Return a tuple."
            )
        for target, spec, part in zip(outputs, results, lists, strict=True):
            target += _nodes(expr, spec, part)
    parts, firsts = [], range(1 if channels else copies)
    for spec in (*operands, *results):
        blocks = [block_of(slot, layout, channels > 0, first) for first in firsts for slot in slots_of(spec.irreps)]
        parts.append(Operand(spec.name, spec.irreps.dim, tuple(blocks), spec.rows))
    return register_formula(formula(expr, parts[: len(operands)], parts[len(operands) :], outputs, channels))


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


#: The functions of formulas for numpy arrays, to evaluate a formula without kernels.
_OF_ARRAYS = SimpleNamespace(
    inverse_length=lambda *vector: 1.0 / np.sqrt(sum(v * v for v in vector)),
    sigmoid=lambda value: 1.0 / (1.0 + np.exp(-value)),
    tanh=np.tanh,
)


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

        results_of_all = evaluate(base, load, _OF_ARRAYS)
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


class FormulaLayer(FormulaModule):
    r"""Evaluates a function of the components of one channel for every row and channel, in one kernel.

    The function is called once, when the layer is made, with a list of components for each operand, in the order of its
    irreps, and returns the components of the result. It may add, multiply, take whole powers, divide by numbers, and
    call ``v.sigmoid()``, ``v.tanh()``, ``v.silu()`` and ``v.inverse_length(*others)``, one over the length of the
    vector of all. These operations become a kernel for each backend and order of derivative; the function is not
    stored.

    With rows of senders and receivers it is a step of message passing: operands are read at senders or receivers, a
    result with rows 'dst' is summed over the edges of each receiver.

    Args:
        function: From lists of values to a list; to a tuple of lists for several results.
        operands: Name of each argument of the function -> its irreps. All groups of operands and results have the same
            multiplicity, the number of channels.
        irreps_out: Irreps of the result, or a list of irreps for several.
        rows: Operand -> 'each' (a row for each of the batch, or edge; the default), 'one' (one row for all, as a weight
            has), 'src' or 'dst' (rows of nodes, read at the senders or the receivers of edges).
        rows_out: 'each', 'one' (summed over the batch), 'src' or 'dst' (summed over the edges of each node); a list for
            several results.
        check: Whether to check at construction that the function is equivariant, with random numbers.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        irreps_in: Irreps of each operand.
        irreps_out: Irreps of the result, or a list of irreps for several.

    Raises:
        IrrepsError: The function does not commute with rotations or the inversion.
        ConfigError: Invalid operands or rows, or a function with other operations.

    Example:
        >>> import torch
        >>> def cross(x, y):
        ...     return [x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]]
        >>> layer = FormulaLayer(cross, {"x": "8x1o", "y": "8x1o"}, "8x1e")
        >>> x, y = torch.randn(2, 5, 24)
        >>> torch.allclose(layer(x, y).view(5, 8, 3), torch.linalg.cross(x.view(5, 8, 3), y.view(5, 8, 3)), atol=1e-6)
        True
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Mapping[str, Any],
        irreps_out: Any,
        *,
        rows: Mapping[str, str] | None = None,
        rows_out: str | Sequence[str] = "each",
        check: bool = True,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(check_choice("layout", layout, LAYOUTS), backend)
        check_function("function", function)
        fix = "Write {'x': '8x1o', 'y': '8x1o'}."
        check_type("operands", operands, Mapping, "a mapping from names to irreps", fix)
        if rows is not None:
            check_type("rows", rows, Mapping, "a mapping from operands to rows, or None", "Write {'x': 'src'}.")
        self._operands = [
            Rows(name, as_irreps(irreps, name), check_choice(f"rows of {name}", (rows or {}).get(name, "each"), ROWS))
            for name, irreps in operands.items()
        ]
        unknown = [name for name in rows or {} if name not in operands]
        if unknown or all(op.rows == "one" for op in self._operands):
            what = f"rows of {unknown}" if unknown else f"only rows 'one' of {list(operands)}"
            raise ConfigError(
                f"rows must name operands, one of which has a row for each of the batch, got {what}. Name rows of "
                f"operands=."
            )
        several = isinstance(irreps_out, (list, tuple)) and not isinstance(irreps_out, Irreps) and len(irreps_out) > 0
        self._several = several and all(isinstance(op, (str, Irreps)) for op in irreps_out)  # irreps may be pairs
        outs = list(irreps_out) if self._several else [irreps_out]
        fix = "Give one text, or one for each."
        what = "a text, or a list of them"
        rows_of = [rows_out] * len(outs) if isinstance(rows_out, str) else rows_out
        rows_of = check_items("rows_out", rows_of, what, fix, count=len(outs))
        names = [f"result {n}" if self._several else "the result" for n in range(len(outs))]
        self._results = [
            Rows(name, as_irreps(irreps, "irreps_out"), check_choice("rows_out", rows_name, ROWS))
            for name, irreps, rows_name in zip(names, outs, rows_of, strict=True)
        ]
        self.irreps_in = {op.name: op.irreps for op in self._operands}
        self.irreps_out = [op.irreps for op in self._results] if self._several else self._results[0].irreps
        base = traced_formula(function, self._operands, self._results, layout, self._several)
        if check_flag("check", check):
            check_equivariance(base, self._operands, self._results)
        self._formulas = [base]
        self._flat = {op.name: FlatLayout(op.irreps, layout) for op in self._operands}
        self._of_nodes = base.of_nodes

    def forward(self, *operands: Tensor, graph: Graph | Tensor | None = None, **named: Tensor) -> Any:
        """The results.

        Args:
            operands: ``[..., dim]`` each, in their order or by name; ``[dim]`` of rows 'one'; of a layer on a graph
                ``[N, dim]`` of rows 'src' and 'dst' and ``[E, dim]`` of rows 'each'.
            graph: ``[2, E]`` (src, dst), or a :class:`eqlayers.Graph`, where rows of nodes are.
            named: Operands by name.

        Returns:
            ``[..., irreps_out.dim]``, or a tuple of several; ``[irreps_out.dim]`` of rows 'one',
            ``[N, irreps_out.dim]`` of rows 'src' and 'dst'.

        Raises:
            ShapeError, DTypeError, DeviceError, IndexRangeError: The operands do not fit the layer or each other.
        """
        tensors = self._read(operands, named)
        if (graph is None) == self._of_nodes:
            expected = "a graph or edge_index [2, E]" if self._of_nodes else "None, no operand has rows of nodes"
            raise ShapeError(f"graph must be {expected}, got {got(graph)}. Call the layer with what its rows say.")
        for op in self._operands:
            self._flat[op.name].check(op.name, tensors[op.name])
        tensors = dict(zip(tensors, of_one_dtype(**tensors), strict=True))
        lead: tuple[int, ...] = ()
        if graph is None:
            each = {op.name: tensors[op.name] for op in self._operands if op.rows == "each"}
            lead = broadcast_lead(**{name: value.shape[:-1] for name, value in each.items()})
            tensors |= {name: as_rows(value, lead) for name, value in each.items()}
        for op in self._operands:
            axes = 1 if op.rows == "one" else 2
            if tensors[op.name].ndim != axes:
                shape = f"[{op.irreps.dim}]" if axes == 1 else f"[N, {op.irreps.dim}]"
                raise ShapeError(
                    f"{op.name} must be {shape}, its rows are {op.rows!r}, got {list(tensors[op.name].shape)}. "
                    f"Flatten its leading axes, or give other rows."
                )
        results = run_formula(self._formulas[0], list(tensors.values()), self._graph(graph, tensors), self.backend)
        shaped = [
            z.reshape(*lead, z.shape[-1]) if graph is None and op.rows == "each" and len(lead) != 1 else z
            for z, op in zip(results, self._results, strict=True)
        ]
        return tuple(shaped) if self._several else shaped[0]

    def _read(self, operands: tuple[Tensor, ...], named: dict[str, Tensor]) -> dict[str, Tensor]:
        """Operands of a call by name, in the order of the layer; ShapeError for a wrong number or names."""
        names = [op.name for op in self._operands]
        tensors = dict(zip(names, operands, strict=False)) | named
        if len(operands) + len(named) != len(names) or set(tensors) != set(names):
            raise ShapeError(
                f"operands must be {', '.join(names)}, got {len(operands)} and {sorted(named)}. Pass each once."
            )
        return {name: tensors[name] for name in names}

    def _graph(self, graph: Graph | Tensor | None, tensors: dict[str, Tensor]) -> Graph | None:
        if graph is None or isinstance(graph, Graph):
            return graph
        num_nodes = {op.rows: tensors[op.name].shape[0] for op in self._operands if op.rows in ("src", "dst")}
        if not num_nodes:
            raise ShapeError(
                "graph must be a Graph, which says how many nodes there are, got edge_index. Use "
                "eqlayers.Graph(edge_index, num_src)."
            )
        src = num_nodes.get("src", num_nodes.get("dst", 0))
        return as_graph(graph, src, num_nodes.get("dst", src))

    def extra_repr(self) -> str:
        """Irreps, rows that are not 'each', and backend."""
        texts = [", ".join(_text(op) for op in part) for part in (self._operands, self._results)]
        return f"{texts[0]} -> {texts[1]} | {self._formulas[0].operations} operations | {self._kind()}"


def _text(op: Rows) -> str:
    return str(op.irreps) if op.rows == "each" else f"{op.irreps} ({op.rows})"
