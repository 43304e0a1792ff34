"""An implementation of one case: this package's or e3nn's layer, its columns, and signs of other coefficients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...core.graph import Graph
from ...irreps.algebra import wigner_3j
from ...testing.defaults import default_dtype
from ..cases import Refusal
from ..results import OURS
from .operands import Columns, Form, Function, Operands, layout_form
from .problems import Problem
from .suite import Case


@dataclass(frozen=True)
class Implementation:
    """A peer, or this package, made ready for one case."""

    name: str  # a key of PEERS, or 'eqlayers'
    layout: str  # of the features that it takes
    fn: Function  # from (x, y, w) in its columns to z
    form: Form  # its columns
    note: str = ""  # the backend or the method that runs
    cannot: dict[str, str] = field(default_factory=dict)  # direction to the reason why it has none


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
    """This package in one layout: ``TensorProduct``, or ``TensorProductConv`` with a graph that was sorted before."""
    x, index = operands.values["x"], operands.edge_index
    form = layout_form(case.problem, layout)
    kind = nn.TensorProduct if index is None else nn.TensorProductConv
    layer = kind(**case.problem.arguments(), layout=layout, backend=backend, **options).to(x.device)
    note = layer.selected_backend(x.device, x.dtype)
    if index is None:
        return Implementation(OURS, layout, layer, form, note)
    graph = Graph(index, operands.nodes, operands.nodes)
    return Implementation(OURS, layout, lambda x, y, w: layer(x, y, w, graph), form, note)


def path_signs(problem: Problem, theirs: Callable[[int, int, int], np.ndarray]) -> list[float]:
    """The sign of each path by which other Clebsch-Gordan coefficients differ from the installed e3nn's."""
    signs = []
    for degrees in problem.degrees:
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
