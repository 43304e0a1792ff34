"""A layer from a function of components: kernels and derivatives of every order follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.formula import ROWS

from ...core.apply import as_rows
from ...core.checks import check_choice, check_flag, check_function, check_items, check_optional, check_type, got
from ...core.dtypes import broadcast_lead, of_one_dtype
from ...core.errors import ConfigError, ShapeError
from ...core.graph import Graph, as_graph
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, FlatLayout
from ..base.module import FormulaModule
from .lower import Rows, check_equivariance, traced_formula
from .run import run_formula


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
        check_optional(_check_mapping, "rows", rows)
        self._operands = [Rows(name, as_irreps(irreps, name), "each") for name, irreps in operands.items()]
        self._operands = [op._replace(rows=self._rows(op.name, rows)) for op in self._operands]
        unknown = [name for name in rows or {} if name not in operands]
        if unknown or all(op.rows == "one" for op in self._operands):
            what = f"rows of {unknown}" if unknown else f"only rows 'one' of {list(operands)}"
            raise ConfigError(
                f"rows must name operands, one of which has a row for each of the batch, got {what}. Name rows of "
                f"operands=."
            )
        self._several = _are_several(irreps_out)
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

    def _rows(self, name: str, rows: Any) -> str:
        return check_choice(f"rows of {name}", (rows or {}).get(name, "each"), ROWS)

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


def _check_mapping(name: str, value: Any) -> Any:
    return check_type(name, value, Mapping, "a mapping from operands to rows, or None", "Write {'x': 'src'}.")


def _are_several(irreps: Any) -> bool:
    """Whether ``irreps`` is a list of several irreps; irreps themselves may be a list of pairs."""
    if isinstance(irreps, Irreps) or not isinstance(irreps, (list, tuple)) or not irreps:
        return False
    return all(isinstance(op, (str, Irreps)) for op in irreps)
