"""Implementations of a product, and column orders and signs by which they differ from e3nn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...core.dtypes import default_dtype
from ...core.graph import Graph
from ...irreps.algebra import wigner_3j
from ..cases import Refusal
from ..results import OURS
from .operands import Columns, Form, Function, Operands, layout_form
from .problems import Problem
from .suite import Case


@dataclass(frozen=True)
class Implementation:
    """A layer of a peer or of this package for one case."""

    name: str  # a key of PEERS, or 'eqlayers'
    layout: str  # layout of its features
    fn: Function  # function from (x, y, w) in its column order to z
    form: Form  # its column order
    note: str = ""  # backend or method
    cannot: dict[str, str] = field(default_factory=dict)  # unsupported direction -> reason


def convolve(layer: Function, x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor, nodes: int) -> Tensor:
    """Convolution by gather, product and index_add, as in networks of e3nn."""
    src, dst = edge_index
    messages = layer(x.index_select(0, src), y, w)
    return messages.new_zeros(nodes, messages.shape[-1]).index_add(0, dst, messages)


def gathered(layer: Function, operands: Operands) -> Function:
    """The function ``layer(x, y, w)``, or its convolution over the edges of the operands if they have any."""
    index, nodes = operands.edge_index, operands.nodes
    return layer if index is None else lambda x, y, w: convolve(layer, x, y, w, index, nodes)


def e3nn_layer(problem: Problem, dtype: torch.dtype, device: torch.device) -> Function:
    """e3nn's TensorProduct with constants in a dtype."""
    with default_dtype(dtype):
        layer: Function = o3.TensorProduct(**problem.arguments()).to(device)
    return layer


def ours(case: Case, operands: Operands, layout: str, backend: str | None = None, **options: Any) -> Implementation:
    """This package in one layout: ``TensorProduct``, or ``TensorProductConv`` with a prepared graph."""
    x, index = operands.values["x"], operands.edge_index
    form = layout_form(case.problem, layout)
    layer_class = nn.TensorProduct if index is None else nn.TensorProductConv
    layer = layer_class(**case.problem.arguments(), layout=layout, backend=backend, **options).to(x.device)
    note = layer.selected_backend(x.device, x.dtype)
    if index is None:
        return Implementation(OURS, layout, layer, form, note)
    graph = Graph(index, operands.nodes, operands.nodes)
    return Implementation(OURS, layout, lambda x, y, w: layer(x, y, w, graph), form, note)


def path_signs(problem: Problem, theirs: Callable[[int, int, int], np.ndarray]) -> list[float]:
    """Sign of each path by which Clebsch-Gordan coefficients of a peer differ from e3nn's."""
    signs = []
    for degrees in problem.degrees:
        a, b = wigner_3j(*degrees), np.asarray(theirs(*degrees), dtype=np.float64)
        overlap = float((a * b).sum() / np.linalg.norm(b))
        if abs(abs(overlap) - 1) > 1e-6:
            raise Refusal(f"its Clebsch-Gordan coefficients of {degrees} are not e3nn's")
        signs.append(float(np.sign(overlap)))
    return signs


def weight_columns(problem: Problem, signs: Sequence[float], order: Tensor | None = None) -> Columns:
    """Columns of weights with a sign per path and optionally another order: ``theirs = e3nn's[..., order]``."""
    sign = torch.from_numpy(np.repeat(signs, problem.path_weights))
    return Columns(order, sign if order is None else sign[order])
