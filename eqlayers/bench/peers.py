"""Who is timed: this package and its peers, one row each, and how each is built for a case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from .. import nn
from ..algebra import wigner_3j
from ..info.graph import Graph
from .operands import Columns, Form, Function, Operands, layout_form
from .problems import Problem
from .suite import Case

OURS = "eqlayers"


class Refusal(Exception):
    """An implementation cannot run a case; the text says why and becomes part of the report."""


@dataclass(frozen=True)
class Implementation:
    """A peer, or this package, made ready for one case.

    Attributes:
        name: Row of ``PEERS``, or 'eqlayers'.
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


# ---- this package --------------------------------------------------------------------------------------------------


def ours(case: Case, operands: Operands, layout: str, backend: str | None = None) -> Implementation:
    """This package in one layout: ``TensorProduct``, or ``TensorProductConv`` with a graph that was sorted before."""
    x = operands.values["x"]
    form = layout_form(case.problem, layout)
    kind = nn.TensorProduct if operands.edge_index is None else nn.TensorProductConv
    layer = kind(**case.problem.arguments(), layout=layout, backend=backend).to(x.device)
    note = layer.selected_backend(x.device, x.dtype)
    if operands.edge_index is None:
        return Implementation(OURS, layout, layer, form, note)
    graph = Graph(operands.edge_index, operands.nodes, operands.nodes)
    return Implementation(OURS, layout, lambda x, y, w: layer(x, y, w, graph), form, note)


# ---- peers ---------------------------------------------------------------------------------------------------------


def _e3nn_function(case: Case, operands: Operands) -> Function:
    x = operands.values["x"]
    return gathered(e3nn_layer(case.problem, x.dtype, x.device), operands)


def _e3nn(case: Case, operands: Operands) -> Implementation:
    form = layout_form(case.problem, "mul_ir")
    return Implementation("e3nn", "mul_ir", _e3nn_function(case, operands), form, "eager")


NO_DOUBLE = "torch.compile has no double backward (AOTAutograd does not support it)"


def _e3nn_compiled(case: Case, operands: Operands) -> Implementation:
    if operands.values["x"].device.type == "cuda" and find_spec("triton") is None:
        raise Refusal("torch.compile needs triton on a GPU, which is not installed")
    torch.compiler.reset()  # a graph of an earlier case must not count towards the limit of recompilations
    fn: Function = torch.compile(_e3nn_function(case, operands), dynamic=False)
    form = layout_form(case.problem, "mul_ir")
    return Implementation("e3nn-compiled", "mul_ir", fn, form, "inductor", {"double_bwd": NO_DOUBLE})


def path_signs(problem: Problem, theirs: Callable[[int, int, int], np.ndarray]) -> list[float]:
    """For each path, the sign by which other Clebsch-Gordan coefficients differ from those of the installed e3nn.

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


def _needs_channelwise(problem: Problem) -> None:
    if problem.mode != "uvu" or problem.shared or any(mul != 1 for mul, _ in problem.irreps_in2):
        raise Refusal("only channelwise products with weights per edge are compared with it")


def _cuequivariance(case: Case, operands: Operands) -> Implementation:
    cue, cuet = import_module("cuequivariance"), import_module("cuequivariance_torch")
    problem, x = case.problem, operands.values["x"]
    _needs_channelwise(problem)
    as_cue = {name: cue.Irreps(cue.O3, str(r)) for name, r in zip("xy", _inputs(problem), strict=True)}
    keep = [mul_ir.ir for mul_ir in cue.Irreps(cue.O3, problem.out)]
    layer = cuet.ChannelWiseTensorProduct(
        as_cue["x"],
        as_cue["y"],
        keep,
        layout=cue.ir_mul,
        shared_weights=False,
        internal_weights=False,
        device=x.device,
        dtype=x.dtype,
        method=None if x.device.type == "cuda" else "naive",
    )
    signs = path_signs(problem, lambda *ls: cue.clebsch_gordan(*(cue.SO3(l) for l in ls))[0])
    paths = [(problem.irreps_in1[i].mul, problem.irreps_out[k].ir, k) for i, _, k, *_ in problem.instructions]
    # its outputs and weights stand in its own order of irreps: degree, then parity (-1)^l before the other
    order = sorted(range(len(paths)), key=lambda p: (paths[p][1].l, -paths[p][1].p * (-1) ** paths[p][1].l))
    starts = np.cumsum([0, *(mul for mul, *_ in paths)])
    slices = problem.irreps_out.slices()
    weights = np.concatenate([np.arange(starts[p], starts[p + 1]) for p in order])
    sign = np.concatenate([np.full(paths[p][0], signs[p]) for p in order])
    columns = [np.arange(slices[paths[p][2]].start, slices[paths[p][2]].stop) for p in order]
    out = np.concatenate([c.reshape(paths[p][0], -1).T.ravel() for c, p in zip(columns, order, strict=True)])
    form = layout_form(problem, "ir_mul")
    form |= {"z": Columns(torch.from_numpy(out)), "w": Columns(torch.from_numpy(weights), torch.from_numpy(sign))}
    fn: Function = layer
    if operands.edge_index is not None:
        src, dst = operands.edge_index
        nodes = operands.nodes

        def fn(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            z: Tensor = layer(x, y, w, indices_1=src, indices_out=dst, size_out=nodes)
            return z

    return Implementation("cuequivariance", "ir_mul", fn, form, str(getattr(layer, "method", "")))


def _inputs(problem: Problem) -> tuple[o3.Irreps, o3.Irreps]:
    return problem.irreps_in1, problem.irreps_in2


def _openequivariance(case: Case, operands: Operands) -> Implementation:
    problem, x = case.problem, operands.values["x"]
    if x.device.type != "cuda":
        raise Refusal("it runs on GPUs only")
    _needs_channelwise(problem)
    oeq = import_module("openequivariance")
    their_wigner_3j = import_module("openequivariance.core.e3nn_lite").wigner_3j
    dtype = np.float64 if x.dtype == torch.float64 else np.float32
    config = oeq.TPProblem(
        *(str(irreps) for irreps in (*_inputs(problem), problem.irreps_out)),
        problem.instructions,
        shared_weights=False,
        internal_weights=False,
        irrep_dtype=dtype,
        weight_dtype=dtype,
    )
    muls = [problem.irreps_in1[i].mul for i, *_ in problem.instructions]
    sign = np.repeat(path_signs(problem, their_wigner_3j), muls)
    form = layout_form(problem, "mul_ir") | {"w": Columns(None, torch.from_numpy(sign))}
    if operands.edge_index is None:
        return Implementation("openequivariance", "mul_ir", oeq.TensorProduct(config), form)
    src, dst = operands.edge_index
    by_sender = torch.from_numpy(np.lexsort((dst.cpu().numpy(), src.cpu().numpy()))).to(src.device)
    conv = oeq.TensorProductConv(config, deterministic=True)  # our edges are sorted by dst: its faster variant
    arguments = (dst.contiguous(), src.contiguous(), by_sender)
    return Implementation("openequivariance", "mul_ir", lambda x, y, w: conv(x, y, w, *arguments), form, "sorted")


@dataclass(frozen=True)
class Peer:
    """One row of the table of peers.

    Attributes:
        about: What it is.
        packages: Packages that it needs besides this one's.
        build: Makes it ready for a case, or raises :class:`Refusal`.
    """

    about: str
    packages: tuple[str, ...]
    build: Callable[[Case, Operands], Implementation]


PEERS: dict[str, Peer] = {
    "e3nn": Peer("e3nn, eager", (), _e3nn),
    "e3nn-compiled": Peer("torch.compile of e3nn; compiling takes minutes for large problems", (), _e3nn_compiled),
    "cuequivariance": Peer("cuEquivariance, channelwise", ("cuequivariance", "cuequivariance_torch"), _cuequivariance),
    "openequivariance": Peer("OpenEquivariance", ("openequivariance",), _openequivariance),
}


def build_peer(name: str, case: Case, operands: Operands) -> Implementation:
    """Make a peer ready for a case.

    Raises:
        Refusal: It is not installed, or cannot run the case.
    """
    peer = PEERS[name]
    missing = [package for package in peer.packages if find_spec(package) is None]
    if missing:
        raise Refusal(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
    return peer.build(case, operands)
