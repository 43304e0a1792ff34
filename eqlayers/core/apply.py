"""One form on rows of operands, by a backend that is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from .backends import BACKENDS
from .backends.forms import BY_DEVICE
from .backends.whole import contract
from .forms.program import Form
from .graph import Graph
from .operator import call_form, sorted_edges


def apply_form(
    operands: Sequence[Tensor], graph: Graph | None, form: Form, backend: str, deterministic: bool = True
) -> Tensor:
    """Run a form.

    Args:
        operands: x, y and w of the program, ``[N, width]`` each; ``[width]`` of weights that serve all. With a graph x
            has a row per sender, the others have one per edge.
        graph: None, or the edges of a graph, for backends with kernels of forms.
        form: The program.
        backend: Name of the backend that runs it.
        deterministic: Whether sums must have a fixed order.

    Returns:
        ``[N, width]``; with a graph a row per receiver.
    """
    whole = BACKENDS[backend].whole if form.program.paths else contract
    if whole is not None:
        return whole(form.key, *operands)
    key = Form.key_of(form, graph is not None, operands[2].ndim == 1)  # compilers guard no methods of constants
    sizes = (operands[1].shape[0], 0, 0) if graph is None else (graph.num_edges, graph.num_src, graph.num_dst)
    tables = None if graph is None else graph.tables(sorted_edges)
    own = backend == BY_DEVICE.get(operands[0].device.type)
    return call_form(operands, tables, *sizes, key, "" if own else backend, deterministic)[0]


def as_rows(t: Tensor, lead: tuple[int, ...]) -> Tensor:
    """``[..., d]`` to ``[N, d]``, one row for all as a view of stride 0."""
    if t.ndim == 2 and len(lead) == 1 and t.shape[0] == lead[0]:
        return t
    expanded = t.expand(*lead, t.shape[-1])
    return expanded if len(lead) == 1 else expanded.reshape(math.prod(lead), t.shape[-1])
