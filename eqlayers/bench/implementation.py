"""Implementations made ready for one case: this package's, and e3nn's pieces that others need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from .. import nn
from ..algebra import wigner_3j
from ..errors import EqlayersError
from ..graph import Graph
from .operands import Columns, Form, Function, Operands, layout_form
from .problems import Problem
from .suite import Case

#: This package, and how the names of its variants begin.
OURS = "eqlayers"


class Refusal(Exception):
    """An implementation cannot run a case; the text says why and becomes part of the report."""


def why_refused(name: str, error: Exception) -> str:
    """The reason for a report: whatever a peer raises is its result, and this package's own errors are.

    Raises:
        Exception: The error itself, where this package did not mean it.
    """
    known = isinstance(error, (Refusal, EqlayersError))
    if name == OURS and not known:
        raise error
    return ("" if known else f"{type(error).__name__}: ") + " ".join(str(error).split())[:300]


@dataclass(frozen=True)
class Implementation:
    """A peer, or this package, made ready for one case.

    Attributes:
        name: Of a peer (a row of :data:`eqlayers.bench.peers.PEERS`), or 'eqlayers'.
        layout: Layout of the features that it takes.
        fn: From (x, y, w) in its columns to z.
        form: Its columns.
        note: What runs inside, e.g. the backend.
        cannot: Direction to the reason why it has none.
    """

    name: str
    layout: str
    fn: Function
    form: Form
    note: str = ""
    cannot: dict[str, str] = field(default_factory=dict)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """e3nn rounds its constants to the default dtype of the moment when a layer is made."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def convolve(layer: Function, x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor, nodes: int) -> Tensor:
    """Gather by src, product, sum at dst, as networks with e3nn's layers do it."""
    src, dst = edge_index
    messages = layer(x.index_select(0, src), y, w)
    return messages.new_zeros(nodes, messages.shape[-1]).index_add(0, dst, messages)


def gathered(layer: Function, operands: Operands) -> Function:
    """A product as it is, or between a gather by src and a sum at dst if there are edges."""
    index, nodes = operands.edge_index, operands.nodes
    return layer if index is None else lambda x, y, w: convolve(layer, x, y, w, index, nodes)


def e3nn_layer(problem: Problem, dtype: torch.dtype, device: torch.device) -> Function:
    """e3nn's layer with constants in a dtype."""
    with default_dtype(dtype):
        layer: Function = o3.TensorProduct(**problem.arguments()).to(device)
    return layer


def ours(case: Case, operands: Operands, layout: str, backend: str | None = None, **options: Any) -> Implementation:
    """This package in one layout: ``TensorProduct``, or ``TensorProductConv`` with a graph that was sorted before.

    Args:
        case, operands: The case.
        layout, backend: Of the layer.
        **options: Its further arguments.
    """
    x = operands.values["x"]
    form = layout_form(case.problem, layout)
    kind = nn.TensorProduct if operands.edge_index is None else nn.TensorProductConv
    layer = kind(**case.problem.arguments(), layout=layout, backend=backend, **options).to(x.device)
    note = layer.selected_backend(x.device, x.dtype)
    if operands.edge_index is None:
        return Implementation(OURS, layout, layer, form, note)
    graph = Graph(operands.edge_index, operands.nodes, operands.nodes)
    return Implementation(OURS, layout, lambda x, y, w: layer(x, y, w, graph), form, note)


def path_signs(problem: Problem, theirs: Callable[[int, int, int], np.ndarray]) -> list[float]:
    """For each path, the sign by which other Clebsch-Gordan coefficients differ from the installed e3nn's.

    Raises:
        Refusal: They differ by more than a sign and a factor.
    """
    irreps = (problem.irreps_in1, problem.irreps_in2, problem.irreps_out)
    signs = []
    for ins in problem.instructions:
        degrees = tuple(r[index].ir.l for r, index in zip(irreps, ins[:3], strict=True))
        a, b = wigner_3j(*degrees), np.asarray(theirs(*degrees), dtype=np.float64)
        overlap = float((a * b).sum() / np.linalg.norm(b))
        if abs(abs(overlap) - 1) > 1e-6:
            raise Refusal(f"its Clebsch-Gordan coefficients of {degrees} are not e3nn's")
        signs.append(float(np.sign(overlap)))
    return signs


def weight_columns(problem: Problem, signs: Sequence[float], order: Tensor | None = None) -> Columns:
    """The columns of weights for a sign per path, and for another order: ``theirs = e3nn's[..., order]``."""
    sign = torch.from_numpy(np.repeat(signs, problem.path_weights))
    return Columns(order, sign if order is None else sign[order])
