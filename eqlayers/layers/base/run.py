"""Forms of layers on tensors: row by row, or along the edges of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...core.apply import apply_form, as_rows
from ...core.backends import BACKENDS
from ...core.backends.forms import BY_DEVICE, chosen
from ...core.backends.rows import Ends, gathered, summed
from ...core.backends.whole import contract
from ...core.forms.program import Form, with_rows
from ...core.graph import Graph
from ...core.operator import call_form, sorted_edges


def run_rows(form: Form, x: Tensor, y: Tensor, lead: tuple[int, ...], backend: str | None) -> Tensor:
    """A product without weights row by row: operands ``[..., width]`` with leading axes that broadcast to ``lead``."""
    name = chosen(x.device.type, x.dtype, backend, form.key)
    z = apply_form((as_rows(x, lead), as_rows(y, lead), x.new_empty(0)), None, form, name)
    return z if len(lead) == 1 else z.reshape(*lead, z.shape[-1])


def run_along(
    form: Form,
    operands: Sequence[Tensor],
    rows: tuple[str, str, str, str],
    graph: Graph,
    backend: str | None,
    deterministic: bool = True,
) -> Tensor:
    """A form along the edges of a graph, whose operands may have rows of edges or of either end.

    Args:
        form: A program.
        operands: x, y and w, of one dtype and device, with the rows and the widths that the form wants.
        rows: Of x, y, w and of the result: 'each' (edge), 'src', 'dst' or 'one'.
        graph: The edges.
        backend: Name of a backend, or None for the first that accepts.
        deterministic: Whether sums must have a fixed order.

    Returns:
        ``[E, width]``, or a row for each node.
    """
    x = operands[0]
    name = chosen(x.device.type, x.dtype, backend, form.key)
    whole = BACKENDS[name].whole if form.program.paths else contract
    if whole is None:
        of_nodes = "src" in rows or "dst" in rows
        sizes = (graph.num_edges, graph.num_src, graph.num_dst) if of_nodes else (graph.num_edges, 0, 0)
        other = "" if name == BY_DEVICE.get(x.device.type) else name
        tables = graph.tables(sorted_edges) if of_nodes else None
        return call_form(operands, tables, *sizes, with_rows(form.key, *rows), other, deterministic)[0]
    ends = Ends(*graph.ends, graph.num_src, graph.num_dst)
    wide = [t if kind == "one" else gathered(kind, t, ends) for t, kind in zip(operands, rows, strict=False)]
    return summed(rows[3], whole(form.key, *wide), ends, deterministic)
