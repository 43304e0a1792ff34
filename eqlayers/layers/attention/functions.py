"""Attention over the edges of a graph: weights that vanish smoothly at a cutoff, and weighted sums by heads.

Each head has an equal share of the copies of every irrep.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...core.apply import run_program
from ...core.backends import check_backend
from ...core.backends.rows import Endpoints, gathered, summed
from ...core.checks import check_choice, check_flag, check_floating, check_integer, check_number, check_tensor, fixed
from ...core.dtypes import ACCUMULATE, device_error, of_one_dtype
from ...core.errors import IndexRangeError, IrrepsError, ShapeError
from ...core.forms.description import Form
from ...core.graph import Graph, as_graph
from ...core.torch_internals import is_plain, under_autocast
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, slots_of


def check_heads(name: str, irreps: Irreps, heads: int) -> Irreps:
    """The irreps, if every multiplicity is divisible by the number of heads; else IrrepsError."""
    if any(mul % heads for mul, _ in irreps):
        raise IrrepsError(
            f"{name} must have multiplicities that {heads} heads divide, got {irreps}. Change the number of heads, or "
            f"the multiplicities."
        )
    return irreps


def heads_program(irreps: Irreps, heads: int, layout: str) -> Program:
    """The program of features x times a number y ``[heads]`` for each head, without weights."""
    paths = []
    for slot in slots_of(irreps):
        if slot.mul and slot.dim:
            each = slot.mul // heads
            axes = _axes(Axis(heads, x=each, y=1, z=each), Axis(each, x=1, z=1))
            terms = tuple((m, 0, m, 1.0) for m in range(slot.dim))
            paths.append(Path(slot, Slot(0, heads, 1), slot, None, axes, terms))
    return Program(tuple(paths), (irreps.dim, heads, 0, irreps.dim), layout)


def dots_program(irreps: Irreps, heads: int, layout: str) -> Program:
    """The program of weighted scalar products of the copies of two features, summed over each head: z ``[heads]``.

    The factor is :math:`d^{-1/2}` for d components of a head, without a further :math:`(2l + 1)^{-1/2}`: products of
    normal numbers have unit variance for weights of 1.
    """
    paths, weight = [], 0
    factor = (irreps.dim / heads) ** -0.5 if irreps.dim else 0.0
    for slot in slots_of(irreps):
        if slot.mul and slot.dim:
            each = slot.mul // heads
            axes = _axes(Axis(heads, each, each, each, 1), Axis(each, 1, 1, 1, 0))
            terms = tuple((m, m, 0, factor) for m in range(slot.dim))
            paths.append(Path(slot, slot, Slot(0, heads, 1), weight, axes, terms))
        weight += slot.mul
    return Program(tuple(paths), (irreps.dim, irreps.dim, weight, heads), layout)


def _axes(*axes: Axis) -> tuple[Axis, ...]:
    return tuple(axis for axis in axes if axis.extent > 1)


def edge_softmax(
    logits: Tensor,
    edge_index: Any,
    num_nodes: int | None = None,
    envelope: Tensor | None = None,
    sink: Tensor | float = 0.0,
    *,
    deterministic: bool = True,
) -> Tensor:
    r"""Softmax over the edges into each node, with an envelope as a factor and a sink as one more term of each sum.

    .. math:: a_e = \frac{f_e\, e^{s_e}}{e^{s_0} + \sum_{k \to i} f_k\, e^{s_k}}

    An edge whose envelope :math:`f_e` goes to 0 leaves the weights of all edges of its node as if it were not there,
    with as many continuous derivatives as the envelope has. The sink, an edge of logit :math:`s_0` to nowhere, keeps
    the sum from vanishing, so this holds for the last edge of a node, too. Logits far above the sink move the
    fall towards the cutoff, to where :math:`f_e \approx e^{s_0 - s_e}`. The weights of a node add up to less than 1.

    The largest exponent of every node is subtracted first, so no logit overflows.

    Args:
        logits: ``[E, H]``, s, for H heads.
        edge_index: ``[2, E]`` (src, dst) int64 or int32, or a :class:`eqlayers.Graph`; sums are over edges with one
            dst.
        num_nodes: Number of receivers; may be left out for a graph.
        envelope: ``[E]``, f, 0 or more, such as of :class:`eqlayers.nn.PolynomialCutoff`; 1 if None.
        sink: Logit :math:`s_0`: a number, ``[H]`` or ``[num_nodes, H]``.
        deterministic: Whether a GPU must add in a fixed order.

    Returns:
        ``[E, H]`` weights.

    Raises:
        ShapeError, DTypeError, DeviceError: The inputs do not fit each other.
        IndexRangeError: An index of an edge is out of range (checked on the CPU only).

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, for the softmax; Xiao et al. 2024, arXiv:2309.17453, for sinks.

    Example:
        >>> import torch
        >>> edge_index = torch.tensor([[0, 1, 2], [2, 2, 0]])
        >>> edge_softmax(torch.zeros(3, 1), edge_index, 3, envelope=torch.tensor([1.0, 0.0, 1.0])).flatten()
        tensor([0.5000, 0.0000, 0.5000])
    """
    check_floating("logits", logits, "[E, H]")
    if logits.ndim != 2:
        raise ShapeError(f"logits must be [E, H], a column for each head, got {list(logits.shape)}. Add an axis.")
    graph = receivers(edge_index, num_nodes)
    operands: dict[str, Tensor] = {"logits": logits}
    if envelope is not None:
        operands["envelope"] = check_tensor("envelope", envelope, "[E]").unsqueeze(-1)
    if isinstance(sink, Tensor):
        operands["sink"] = sink
    else:
        number = check_number("sink", sink, fix="0.0 is usual.")
    operands = dict(zip(operands, of_one_dtype(**operands), strict=True))
    logits, heads = operands["logits"], logits.shape[1]
    for name, rows in (("logits", logits), ("envelope", operands.get("envelope"))):
        if rows is not None and (rows.ndim != 2 or rows.shape[0] != graph.num_edges):
            shape = f"[{graph.num_edges}{', H' if name == 'logits' else ''}]"
            shown = list(rows.shape if name == "logits" else rows.shape[:-1])
            raise ShapeError(f"{name} must be {shape}, a row for each edge, got {shown}. Check edge_index.")
    wide = operands["sink"] if "sink" in operands else logits.new_full((heads,), number)
    if wide.ndim not in (1, 2) or wide.shape[-1] != heads or (wide.ndim == 2 and wide.shape[0] != graph.num_dst):
        raise ShapeError(
            f"sink must be [{heads}] or [{graph.num_dst}, {heads}], got {list(wide.shape)}. Give a logit for each head."
        )
    if graph.edge_index.device != logits.device:
        raise device_error("edge_index", graph.edge_index, "logits", logits)
    endpoints, flag = Endpoints(*graph.ends, graph.num_src, graph.num_dst), check_flag("deterministic", deterministic)
    if envelope is not None and envelope.is_cpu and is_plain((envelope,)) and bool((envelope.detach() < 0).any()):
        raise IndexRangeError(
            f"envelope must be 0 or more, got {float(envelope.detach().min()):g}. Take one that ends at 0, such as "
            "eqlayers.nn.PolynomialCutoff."
        )
    envelope, dtype, inside = operands.get("envelope"), logits.dtype, ACCUMULATE[logits.dtype]
    if inside == dtype:
        return _softmax(logits, endpoints, envelope, wide, flag)
    envelope = None if envelope is None else envelope.to(inside)
    weights = _softmax(logits.to(inside), endpoints, envelope, wide.to(inside), flag)
    return weights if under_autocast(logits.device.type) else weights.to(dtype)  # as softmax of torch


def _softmax(
    logits: Tensor, endpoints: Endpoints, envelope: Tensor | None, sink: Tensor, deterministic: bool
) -> Tensor:
    """The softmax of checked operands; envelope ``[E, 1]``, sink ``[H]`` or ``[N, H]``."""
    tiny = torch.finfo(logits.dtype).tiny
    top, each = sink.detach().expand(endpoints.num_dst, -1), logits.detach()  # constants: they cancel
    if envelope is not None:
        f = envelope.detach()
        each = torch.where(f > 0, each + f.clamp(min=tiny).log(), -math.inf)
    top = top.scatter_reduce(0, endpoints.dst.unsqueeze(1).expand(-1, logits.shape[1]), each, "amax")
    exponent = logits - gathered("dst", top, endpoints)
    if envelope is None:
        parts = exponent.exp()
    else:
        most = -math.log(tiny)  # more can only be where f is 0, as exp(exponent) f is at most 1
        parts = torch.where(exponent > most, most, exponent).exp() * envelope
    total = (sink - top).exp() + summed("dst", parts, endpoints, deterministic)
    return parts / gathered("dst", total, endpoints)


def receivers(edge_index: Any, num_nodes: int | None) -> Graph:
    """The `Graph` of edges whose senders are not read; an error without edges, or without the number of receivers."""
    if isinstance(edge_index, Graph):
        return as_graph(edge_index, edge_index.num_src, num_nodes)
    if num_nodes is None:
        raise ShapeError(
            "num_nodes must be the number of receivers, got None. Pass it, or a Graph in place of the edges."
        )
    return as_graph(edge_index, num_nodes, num_nodes)


def check_rows(name: str, value: Tensor, rows: int, width: int) -> None:
    """Raise ShapeError or DTypeError unless a tensor has a row for each edge."""
    check_floating(name, value, f"[{rows}, {width}]")
    if value.shape != (rows, width):
        raise ShapeError(
            f"{name} must be [{rows}, {width}], a row for each edge, got {list(value.shape)}. Check edge_index and the "
            f"arguments of the layer."
        )


def run_aggregate(
    form: Form,
    values: Tensor,
    logits: Tensor,
    graph: Graph,
    heads: int,
    envelope: Tensor | None,
    sink: Tensor | float,
    deterministic: bool,
    backend: str | None,
) -> Tensor:
    """Sum the messages ``values`` at receivers, weighted by attention; ``form`` is of a `heads_program`."""
    check_rows("values", values, graph.num_edges, form.program.widths[0])
    check_rows("logits", logits, graph.num_edges, heads)
    weights = edge_softmax(logits, graph, None, envelope, sink, deterministic=deterministic)
    values, weights = of_one_dtype(values=values, logits=weights)
    operands = values, weights, values.new_empty(0)
    # edges are the senders of this graph, so kernels of convolutions sum rows of edges
    to_nodes = graph.halves()[1]
    return run_program(form.calls[True, True], operands, to_nodes, backend, deterministic)


@lru_cache(maxsize=256)
def _form(irreps: Irreps, heads: int, layout: str) -> Form:
    return Form(heads_program(check_heads("irreps", irreps, heads), heads, layout))


@torch.compiler.assume_constant_result
def _read(irreps: Any, heads: int, layout: str) -> Form:
    """The cached form of irreps and heads; compilers do not trace this."""
    heads = check_integer("heads", heads, 1, fix="4 is usual.")
    return _form(as_irreps(irreps), heads, check_choice("layout", layout, LAYOUTS))


def attention_aggregate(
    values: Tensor,
    logits: Tensor,
    irreps: Any,
    heads: int,
    edge_index: Any,
    num_nodes: int | None = None,
    envelope: Tensor | None = None,
    sink: Tensor | float = 0.0,
    *,
    deterministic: bool = True,
    layout: str = "mul_ir",
    backend: str | None = None,
) -> Tensor:
    """:class:`eqlayers.nn.AttentionAggregate` as a function, ``[E, irreps.dim]`` to ``[num_nodes, irreps.dim]``.

    Args:
        values, logits: ``[E, irreps.dim]``, the messages, and ``[E, heads]``.
        irreps, heads, layout, backend: See the layer, also for errors.
        edge_index, num_nodes, envelope, sink, deterministic: See `edge_softmax`.

    Example:
        >>> import torch
        >>> edge_index = torch.tensor([[0, 1, 2], [2, 2, 0]])
        >>> attention_aggregate(torch.ones(3, 10), torch.zeros(3, 2), "4x0e + 2x1o", 2, edge_index, 3)[:, 0]
        tensor([0.5000, 0.0000, 0.6667])
    """
    check_backend(backend)
    heads = fixed(heads)
    form, graph = _read(irreps, heads, layout), receivers(edge_index, num_nodes)
    return run_aggregate(form, values, logits, graph, heads, envelope, sink, deterministic, backend)
