"""Cases of `eqlayers bench layers`, each a layer with its peers: read, checked against float64, and timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...core.backends.forms import chosen
from ...core.dtypes import default_dtype
from ...core.graph import Graph
from ...irreps.algebra import as_irreps
from ..cases import NO_DOUBLE, SUITE, Suite, Verdict, case_name, short
from ..config import Field, Known, check_known, read_fields, read_goals, read_settings
from ..measure import Call
from ..results import OURS, Record
from ..roofline import tensor_bytes
from . import PAIRS
from .pair import PLAIN

#: Timed directions: forward; forward and all gradients; forward and gradients of forces.
LAYER_DIRECTIONS = ("fwd", "fwd+bwd", "fwd+double")
LAYER_DTYPES = ("float32", "float64")
LAYER_GOALS = ("ratio", "memory")
#: Name of a peer -> description.
LAYER_PEERS = {
    "e3nn": "its harmonics, which are TorchScript, and plain torch for vectors and lengths",
    "e3nn-compiled": "torch.compile of the same",
    "mace-torch": "its symmetric contraction",
    "einsum": "the symmetric contraction by einsum with dense coupling tensors, as MACE computes it",
    PLAIN: "the plainest form in torch, for what e3nn has not",
}
OPTIONS: dict[str, tuple[Field, Any]] = {
    "dtypes": (Known("texts", "dtype", LAYER_DTYPES), ["float32"]),
    "directions": (Known("texts", "direction", LAYER_DIRECTIONS), list(LAYER_DIRECTIONS)),
    "runs": ("count", None),
    "goals": (Known("mapping", "goal", LAYER_GOALS), {}),
}
Outputs = tuple[Tensor, ...]
ROUNDINGS = 64


@dataclass(frozen=True)
class LayerCase:
    """One layer with the size of its operands, its peers and goals."""

    group: str  # name in the configuration
    layer: str  # a key of PAIRS
    rows: int  # vectors, edges or atoms
    dtype: str = "float32"
    peers: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # the layer's own fields
    directions: tuple[str, ...] = LAYER_DIRECTIONS
    goals: dict[str, dict[str, float]] = field(default_factory=dict)  # quantity to direction to value
    runs: int | None = None  # None: the suite's

    @property
    def problem(self) -> str:
        """Short name of the computation, without its size."""
        if "out" in self.options:
            return f"{self.options['out']}-c{self.options['correlation']}"
        return f"l{self.options['lmax']}" if "lmax" in self.options else self.layer

    @property
    def about(self) -> str:
        """Description of the computation.

        Example:
            >>> LayerCase("sweep", "SphericalHarmonics", 10, options={"lmax": 3}).about
            'SphericalHarmonics of degrees 0 to 3'
        """
        options = self.options
        if "lmax" in options:
            return f"{self.layer} of degrees 0 to {options['lmax']}"
        if "irreps" in options:
            return f"{self.layer}, {options['irreps']}"
        sizes = f"correlation {options['correlation']}, {options['channels']} channels, {options['elements']} species"
        return f"{self.layer} of {options['in']} to {options['out']}, {sizes}"

    @property
    def size(self) -> str:
        """Number of rows, with the letter E for edges and vectors, N for nodes."""
        return f"{'E' if PAIRS[self.layer].of_edges else 'N'}{self.rows}"

    @property
    def name(self) -> str:
        """Name: group, problem, size, and dtype unless float32."""
        return case_name(self.group, self.problem, self.size, self.dtype)


def read_layer_suite(name: str = "layers") -> Suite:
    """Read a suite of layers, given by path or by name in `configs/bench`.

    Example:
        >>> [case.name for case in read_layer_suite().cases][:2]
        ['harmonics/l3/E2000', 'degrees/l1/E2000']
    """
    path, top = read_settings(name, SUITE)
    cases = tuple(
        case for group, entries in top["cases"].items() for case in _read_group(f"{path}, {group}", str(group), entries)
    )
    return Suite(path.stem, top["device"], top["threads"], top["runs"], (), cases, "layers")


def _read_group(where: str, group: str, entries: Any) -> Iterator[LayerCase]:
    layer = entries.get("layer") if isinstance(entries, dict) else None
    if isinstance(layer, str):
        check_known("layer", [layer], PAIRS, where)
    pair = PAIRS[layer] if isinstance(layer, str) else None
    of_layer = pair.fields if pair is not None else {}
    peers = Known("texts", f"peer of {layer}", () if pair is None else (pair.peer, *pair.others))
    fields = read_fields(where, entries, {"layer": "text", "rows": "counts", "peers": peers, **of_layer}, OPTIONS)
    for name in {"in", "out", "irreps"} & of_layer.keys():
        as_irreps(fields[name], f"{where}: {name}")
    about = {name: fields[name] for name in of_layer}
    degrees = [{"lmax": l} for l in about["lmax"]] if "lmax" in about else [about]
    goals = read_goals(where, fields["goals"], LAYER_DIRECTIONS)
    shape = (tuple(fields["directions"]), goals, fields["runs"])
    for options, rows, dtype in product(degrees, fields["rows"], fields["dtypes"]):
        yield LayerCase(group, str(layer), rows, dtype, tuple(fields["peers"]), options, *shape)


# -- check and time ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A layer with its operands: of this package, of a peer, or the float64 reference."""

    name: str
    fn: Callable[[Tensor], Outputs]  # function from the first operand to all results
    moving: Tensor  # first operand, by which forces are differentiated
    weights: tuple[Tensor, ...] = ()  # parameters and further differentiable operands, in a common order
    note: str = ""  # backend or method
    cannot: tuple[tuple[str, str], ...] = ()  # (direction, reason) that are not supported
    rows: slice = field(default_factory=lambda: slice(None))  # rows of the first operand and of the results
    layout: str = ""  # all have e3nn's layout


@dataclass(frozen=True)
class Subject:
    """Layers and reference of one case."""

    makers: dict[str, Callable[[], Candidate]]  # name -> constructor, this package's first; may raise Refusal
    exact: Callable[[], Iterator[Candidate]]  # yields the float64 reference for parts of the rows
    constants: tuple[Tensor, ...]  # operands without gradient: indices, species
    operations: dict[str, int]  # floating-point operations by direction


def leaf(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy that requires a gradient."""
    return value.detach().to(dtype or value.dtype, copy=True).requires_grad_()


def _floats(operand: Any) -> bool:
    return isinstance(operand, Tensor) and operand.is_floating_point()


def build(case: LayerCase, device: torch.device, backend: str | None = None) -> Subject:
    """Draw the operands of a case, and prepare its layers, with a fixed seed."""
    torch.manual_seed(0)
    pair, case_dtype = PAIRS[case.layer], getattr(torch, case.dtype)
    argument = pair.argument(case.options)
    moving = pair.moving(argument, case.rows).to(device)
    further = pair.further(argument, case.rows, device)

    def built(maker: Callable[[Any], Any], dtype: torch.dtype) -> Any:
        torch.manual_seed(0)
        with default_dtype(torch.float64):  # the same weights in every dtype
            layer = maker(argument)
        if isinstance(layer, torch.nn.Module):
            return layer.to(device, dtype)
        with default_dtype(dtype):
            return maker(argument)

    def candidate(
        name: str, layer: Any, dtype: torch.dtype, note: str, rows: slice = slice(None), **more: Any
    ) -> Candidate:
        known = dict(layer.named_parameters()) if isinstance(layer, torch.nn.Module) else {}
        others = [leaf(t.to(device), dtype).requires_grad_(not pair.fixed) if _floats(t) else t for t in further]
        differentiated = () if pair.fixed else filter(_floats, others)
        inputs = (*(known[n] for n in sorted(known) if known[n].requires_grad), *differentiated)
        if rows != slice(None):
            others = [t[rows] if isinstance(t, Tensor) else t for t in others]

        def fn(x: Tensor) -> Outputs:
            results = layer(x, *others)
            return (results,) if isinstance(results, Tensor) else tuple(results)

        return Candidate(name, fn, leaf(moving[rows], dtype), inputs, note, rows=rows, **more)

    def like_theirs(layer: Any) -> Any:
        other = built(pair.theirs, case_dtype)
        if isinstance(layer, torch.nn.Module):
            layer.to(device, case_dtype)
            layer.load_state_dict(other.state_dict() if isinstance(other, torch.nn.Module) else {}, strict=False)
        return layer

    def ours() -> Candidate:
        layer = pair.ours(argument)
        for module in layer.modules() if backend is not None and isinstance(layer, torch.nn.Module) else ():
            if hasattr(module, "backend"):
                setattr(module, "backend", backend)  # noqa: B010 of any class
        return candidate(OURS, like_theirs(layer), case_dtype, chosen(device.type, case_dtype, backend, ""))

    def other(name: str) -> Candidate:
        if name != "e3nn-compiled":
            return candidate(name, like_theirs(pair.others[name](argument)), case_dtype, "opt_einsum")
        torch.compiler.reset()  # graphs of earlier cases count towards the limit of recompilations
        layer: Any = torch.compile(built(pair.theirs, case_dtype), dynamic=False)
        return candidate(name, layer, case_dtype, "inductor", cannot=(("fwd+double", NO_DOUBLE),))

    def exact() -> Iterator[Candidate]:
        part = pair.part or case.rows
        whole = [slice(None)] if part >= case.rows else [slice(n, n + part) for n in range(0, case.rows, part)]
        for rows in whole:
            yield candidate(pair.peer, built(pair.theirs, torch.float64), torch.float64, "", rows)

    makers = {
        OURS: ours,
        pair.peer: lambda: candidate(pair.peer, built(pair.theirs, case_dtype), case_dtype, pair.note),
    }
    makers |= {name: partial(other, name) for name in pair.others}
    held = [t.edge_index if isinstance(t, Graph) else t for t in further if pair.fixed or not _floats(t)]
    constants = tuple(t.to(case_dtype) if _floats(t) else t for t in held)
    counts = dict.fromkeys(LAYER_DIRECTIONS, 0)
    if pair.operations is not None:
        counts = pair.operations(argument, case.rows, pair.ours(argument))
    return Subject(makers, exact, constants, counts)


def prepare(item: Candidate, direction: str, cotangents: Outputs, tangent: Tensor) -> Call:
    """The call of one direction, forward included, which returns the results named by :func:`names_of`.

    For second derivatives, the gradient by the first operand is contracted with the tangent.
    """
    inputs = [item.moving, *item.weights]
    leaves = tuple(leaf(t) for t in cotangents) if direction == "fwd+double" else ()

    def forward() -> Outputs:
        with torch.no_grad():
            return item.fn(item.moving)

    def gradients(of: Sequence[Tensor], inputs: Sequence[Tensor], by: Sequence[Tensor]) -> Outputs:
        return torch.autograd.grad(of, inputs, by, allow_unused=True, materialize_grads=True)

    def backward() -> Outputs:
        z = item.fn(item.moving)
        return (*z, *gradients(z, inputs, cotangents))

    def double() -> Outputs:
        z = item.fn(item.moving)
        (first,) = torch.autograd.grad(z, [item.moving], leaves, create_graph=True)
        return (*z, first, *gradients([first], [*inputs, *leaves], [tangent]))

    return {"fwd": forward, "fwd+bwd": backward, "fwd+double": double}[direction]


def names_of(direction: str, results: int, weights: int) -> list[str]:
    """Names of the results of a direction; gradients by weights ('w') are sums over rows.

    Example:
        >>> names_of("fwd+bwd", 1, 2)
        ['z0', 'gx', 'gw0', 'gw1']
    """
    z, gradients = [f"z{i}" for i in range(results)], ["x", *(f"w{i}" for i in range(weights))]
    if direction == "fwd":
        return z
    if direction == "fwd+bwd":
        return [*z, *(f"g{n}" for n in gradients)]
    return [*z, "gx", *(f"gg{n}" for n in (*gradients, *z))]


def exact_results(subject: Subject, direction: str, cotangents: Outputs, tangent: Tensor) -> dict[str, Tensor]:
    """Float64 reference results of a direction, combined from parts of the rows."""
    parts: dict[str, list[Tensor]] = {}
    for part in subject.exact():
        rows = part.rows
        call = prepare(part, direction, tuple(t[rows].double() for t in cotangents), tangent[rows].double())
        names = names_of(direction, len(cotangents), len(part.weights))
        for name, value in zip(names, call(), strict=True):
            parts.setdefault(name, []).append(value.detach())
    return {name: torch.stack(p).sum(0) if "w" in name else torch.cat(p) for name, p in parts.items()}


def compare(call: Call, exact: dict[str, Tensor], dtype: torch.dtype, roundings: int = ROUNDINGS) -> Verdict:
    """Compare the results of a call with the reference, within ``roundings`` eps of the largest entry."""
    try:
        results = call()
    except Exception as raised:  # an error is a result
        return Verdict("failed", None, short(raised))
    if len(results) != len(exact):
        return Verdict("wrong", None, f"{len(exact)} results expected, got {len(results)}")
    scales: dict[str, float] = {}  # common to all weights, as gradients of some may be rounding errors
    for name, reference in exact.items():
        group = name.rstrip("0123456789")
        scales[group] = max(scales.get(group, 0.0), float(reference.abs().max()))
    shares = {}
    for (name, reference), value in zip(exact.items(), results, strict=True):
        if value.shape != reference.shape:
            return Verdict("wrong", None, f"{name} must be {list(reference.shape)}, got {list(value.shape)}")
        if not value.isfinite().all():
            return Verdict("wrong", None, f"{name} has numbers that are not finite")
        allowed = roundings * torch.finfo(dtype).eps * scales[name.rstrip("0123456789")]
        error = float((value.detach().double() - reference).abs().max())
        shares[name] = 0.0 if error == 0 else error / allowed if allowed else math.inf
    name, worst = max(shares.items(), key=lambda entry: entry[1])
    reason = "" if worst <= 1 else f"the error of {name} is {worst:.3g} times what rounding explains"
    return Verdict("ok" if worst <= 1 else "wrong", worst, reason)


class LayerSubject:
    """A case of a layer, see :class:`eqlayers.bench.cases.Subject`."""

    def __init__(self, case: LayerCase, device: torch.device, peers: Sequence[str], backend: str | None) -> None:
        self.case, self.subject = case, build(case, device, backend)
        self.ours = self.subject.makers[OURS]()
        makers: dict[str, Callable[[], Candidate]] = {OURS: lambda: self.ours}
        makers |= {name: self.subject.makers[name] for name in peers if name in self.subject.makers}
        self.implementations = [(name, "", make) for name, make in makers.items()]
        self.cotangents, self.tangent = drawn(self.ours, self.subject, getattr(torch, case.dtype))
        self._results: dict[str, int] = {}  # direction -> number of entries of all results

    def check(self, items: Sequence[Candidate], direction: str) -> list[Verdict]:
        """Compare candidates with the float64 reference."""
        exact = exact_results(self.subject, direction, self.cotangents, self.tangent)
        self._results[direction] = sum(value.numel() for value in exact.values())
        verdicts = []
        for item in items:
            if direction in dict(item.cannot):
                verdicts.append(Verdict("failed", None, dict(item.cannot)[direction]))
                continue
            call = self.ready(item, direction)()
            verdicts.append(compare(call, exact, self.tangent.dtype, PAIRS[self.case.layer].roundings))
        return verdicts

    def ready(self, item: Candidate, direction: str) -> Callable[[], Call]:
        """Function that prepares the call of a direction."""
        return partial(prepare, item, direction, self.cotangents, self.tangent)

    def work(self, direction: str) -> tuple[int, int]:
        """Bytes of operands and results, and floating-point operations of this package's formulas."""
        read: list[Tensor] = [self.ours.moving, *self.ours.weights, *self.subject.constants]
        read += self.cotangents if direction != "fwd" else ()
        read += [self.tangent] if direction == "fwd+double" else []
        written = self._results[direction] * self.ours.moving.element_size()
        return tensor_bytes(read) + written, self.subject.operations[direction]

    def facts(self) -> Record:
        """Fields of the case in the result."""
        case = self.case
        about = {"problem": case.problem, "about": case.about, "operation": case.layer, "graph": case.size}
        edges = case.rows if case.size.startswith("E") else 0
        return about | {"nodes": len(self.ours.moving), "edges": edges, "layouts": [""]}

    def bounds(self, row: Record, bandwidth: float) -> Record:
        """An empty dict: layers have no further fields."""
        return {}


def drawn(item: Candidate, subject: Subject, dtype: torch.dtype) -> tuple[Outputs, Tensor]:
    """Random cotangents of the results, and a random tangent of the first operand."""
    parts = []
    for part in subject.exact():
        with torch.no_grad():
            parts.append([z.shape for z in part.fn(part.moving)])
    shapes = [(sum(p[i][0] for p in parts), *parts[0][i][1:]) for i in range(len(parts[0]))]
    device = item.moving.device
    cotangents = tuple(torch.randn(shape, dtype=dtype).to(device) for shape in shapes)
    return cotangents, torch.randn(item.moving.shape, dtype=dtype).to(device)
