"""Operands of products, timed calls of the three directions, and their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...irreps.layout import to_ir_mul
from ..roofline import tensor_bytes
from .problems import GraphSpec, Problem

DIRECTIONS = ("fwd", "bwd", "double_bwd")
# direction -> results; the last letter names the operand of equal shape
RESULTS = {"fwd": ("z",), "bwd": ("gx", "gy", "gw"), "double_bwd": ("hx", "hy", "hw", "hz")}
# direction -> operands, with the cotangents gz, and a, b, c of gx, gy, gw
READS = {"fwd": ("x", "y", "w"), "bwd": ("x", "y", "w", "gz"), "double_bwd": ("x", "y", "w", "gz", "a", "b", "c")}
LIKE = {"x": "x", "y": "y", "w": "w", "gz": "z", "a": "x", "b": "y", "c": "w"}
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Operands:
    """Tensors of a case, in e3nn's layout and order."""

    #: x [N, in1], y [E, in2], w [E, weights] or [weights], gz [N, out], cotangents a, b, c; N is E for a product
    values: dict[str, Tensor]
    rows: dict[str, str]  # rows of x, y, w, z: 'edge', 'node' or 'shared'
    edge_index: Tensor | None  # [2, E] (src, dst) of a convolution
    nodes: int  # number of nodes; of edges for a product

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(self.values["y"].shape[0])

    def to(self, dtype: torch.dtype) -> Operands:
        """Copies of the operands in another dtype."""
        return replace(self, values={name: value.to(dtype) for name, value in self.values.items()})

    def part(self, start: int, stop: int) -> Operands:
        """Operands of a range of edges; operands of nodes and shared ones are not sliced."""
        values = {
            name: value[start:stop] if self.rows[LIKE[name]] == "edge" else value for name, value in self.values.items()
        }
        index = None if self.edge_index is None else self.edge_index[:, start:stop]
        return replace(self, values=values, edge_index=index)

    def moved_bytes(self, direction: str) -> int:
        """Bytes of all operands read once and of all results written once, indices included."""
        like = {"x": "x", "y": "y", "w": "w", "z": "gz"}
        tensors = [self.values[name] for name in READS[direction]]
        tensors += [self.values[like[result[-1]]] for result in RESULTS[direction]]
        return tensor_bytes(tensors if self.edge_index is None else [*tensors, self.edge_index])


def draw(
    problem: Problem, operation: str, graph: GraphSpec, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> Operands:
    """Draw normal random operands on a device, without the global random state.

    Example:
        >>> problem = Problem("small", "uvu", "4x0e+4x1o", "0e+1o", "0e+1o")
        >>> ops = draw(problem, "conv", GraphSpec("g", 5, 9), torch.float32, torch.device("cpu"))
        >>> ops.values["x"].shape, ops.values["w"].shape, ops.moved_bytes("fwd")
        (torch.Size([5, 16]), torch.Size([9, 16]), 1824)
    """
    generator = torch.Generator(device).manual_seed(seed)
    conv = operation == "conv"
    rows = {"x": "node" if conv else "edge", "y": "edge", "w": "shared" if problem.shared else "edge"}
    rows["z"] = rows["x"]
    lead = {"node": (graph.nodes,), "edge": (graph.edges,), "shared": ()}
    width = dict(zip("xyz", (irreps.dim for irreps in problem.irreps), strict=True)) | {"w": problem.weight_numel}
    values = {
        name: torch.randn((*lead[rows[like]], width[like]), generator=generator, dtype=dtype, device=device)
        for name, like in LIKE.items()
    }
    index = graph.edge_index(seed).to(device) if conv else None
    return Operands(values, rows, index, graph.nodes if conv else graph.edges)


class Columns(NamedTuple):
    """Order and signs of an implementation's columns: ``theirs = e3nn's[..., order] * sign``; None for identity."""

    order: Tensor | None = None
    sign: Tensor | None = None

    def into(self, t: Tensor) -> Tensor:
        """Convert a tensor from e3nn's columns to the implementation's."""
        t = t if self.order is None else t.index_select(-1, self.order.to(t.device))
        return t if self.sign is None else t * self.sign.to(t)

    def back(self, t: Tensor) -> Tensor:
        """Convert a tensor from the implementation's columns to e3nn's."""
        t = t if self.sign is None else t * self.sign.to(t)
        return t if self.order is None else t.index_select(-1, torch.argsort(self.order).to(t.device))


Form = dict[str, Columns]  # for x, y, w, z


def layout_form(problem: Problem, layout: str) -> Form:
    """Columns of all operands in a layout of this package."""
    if layout == "mul_ir":
        return dict.fromkeys("xywz", Columns())
    irreps = {"x": problem.irreps_in1, "y": problem.irreps_in2, "z": problem.irreps_out}
    return {"w": Columns()} | {k: Columns(to_ir_mul(torch.arange(r.dim), r)) for k, r in irreps.items()}


def into_form(values: dict[str, Tensor], form: Form) -> dict[str, Tensor]:
    """Convert operands and cotangents to the columns of an implementation."""
    return {name: form[LIKE[name]].into(value).contiguous() for name, value in values.items()}


def prepare(fn: Function, values: dict[str, Tensor], direction: str) -> Callable[[], tuple[Tensor, ...]]:
    """Prepare a direction, and return a function that runs only this direction.

    ``fwd`` computes z without gradients. ``bwd`` computes gx, gy, gw from gz. ``double_bwd`` computes the
    derivatives of <gx, a> + <gy, b> + <gw, c> with respect to x, y, w and gz.

    Example:
        >>> values = {k: torch.tensor([2.0]) for k in ("x", "y", "w", "gz", "a", "b", "c")}
        >>> [prepare(lambda x, y, w: x * y * w, values, d)()[0].item() for d in DIRECTIONS]
        [8.0, 8.0, 16.0]
    """
    if direction == "fwd":
        x, y, w = (values[name].detach() for name in "xyw")
        return lambda: (fn(x, y, w),)
    live = [values[name].detach().requires_grad_() for name in "xyw"]
    gz = values["gz"].detach().requires_grad_(direction == "double_bwd")
    z = fn(*live)
    if direction == "bwd":
        return lambda: torch.autograd.grad(z, live, gz, retain_graph=True)
    first = torch.autograd.grad(z, live, gz, create_graph=True)
    cotangents = [values[name] for name in "abc"]
    return lambda: torch.autograd.grad(first, [*live, gz], cotangents, retain_graph=True)
