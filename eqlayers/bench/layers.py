"""`eqlayers bench layers`: one layer at a time, beside e3nn's, MACE's or the plainest torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..backends import check_backend
from .check import Verdict
from .config import check_known
from .goals import Record, device_seconds, judge
from .implementation import OURS, why_refused
from .layer_cases import LAYER_PEERS, ROUNDINGS, ROUNDINGS_OF, LayerCase, LayerSuite
from .layer_rows import build_row
from .layer_subjects import Candidate, Outputs, Subject, build, leaf
from .machine import describe, find_device, keep_random_state, release, threads
from .measure import Call, copy_bandwidth, summary
from .memory import peak_extra, refusal
from .pairs import PAIRS
from .roofline import limit, peak_rate, tensor_bytes
from .run import Say, empty_row, nothing, quiet, ratios_of, time_all


def prepare(item: Candidate, direction: str, cotangents: Outputs, tangent: Tensor) -> Call:
    """One call of one direction, forward included.

    Args:
        item: Who.
        direction: One of :data:`eqlayers.bench.layer_cases.LAYER_DIRECTIONS`.
        cotangents: Of all results.
        tangent: What the gradient by the moving operand is contracted with, for its own gradients.

    Returns:
        A function that returns what :func:`names_of` names.
    """
    inputs = [item.moving, *item.weights]

    def forward() -> Outputs:
        with torch.no_grad():
            return item.fn(item.moving)

    def backward() -> Outputs:
        z = item.fn(item.moving)
        return (*z, *_filled(torch.autograd.grad(z, inputs, cotangents, allow_unused=True), inputs))

    given = tuple(leaf(t) for t in cotangents) if direction == "fwd+double" else ()

    def double() -> Outputs:
        z = item.fn(item.moving)
        (first,) = torch.autograd.grad(z, [item.moving], given, create_graph=True)
        wanted = [*inputs, *given]
        second = torch.autograd.grad([first], wanted, [tangent], allow_unused=True)
        return (*z, first, *_filled(second, wanted))

    return {"fwd": forward, "fwd+bwd": backward, "fwd+double": double}[direction]


def _filled(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> Outputs:
    """Zeros for what a result does not depend on."""
    return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(found, like, strict=True))


def names_of(direction: str, results: int, weights: int) -> list[str]:
    """Names of the results of a direction; gradients of weights are sums over rows.

    Example:
        >>> names_of("fwd+bwd", 1, 2)
        ['z0', 'gx', 'gw0', 'gw1']
    """
    z, w = [f"z{i}" for i in range(results)], [f"w{i}" for i in range(weights)]
    gradients = ["x", *w]
    if direction == "fwd":
        return z
    if direction == "fwd+bwd":
        return [*z, *(f"g{n}" for n in gradients)]
    return [*z, "gx", *(f"gg{n}" for n in (*gradients, *z))]


def exact_results(subject: Subject, direction: str, cotangents: Outputs, tangent: Tensor) -> dict[str, Tensor]:
    """The float64 results of a direction, put together from parts of the rows."""
    found: dict[str, list[Tensor]] = {}
    for part in subject.exact():
        rows = part.rows
        call = prepare(part, direction, tuple(t[rows].double() for t in cotangents), tangent[rows].double())
        names = names_of(direction, len(cotangents), len(part.weights))
        for name, value in zip(names, call(), strict=True):
            found.setdefault(name, []).append(value.detach())
    return {name: torch.stack(p).sum(0) if "w" in name else torch.cat(p) for name, p in found.items()}


def compare(call: Call, exact: dict[str, Tensor], dtype: torch.dtype, roundings: int = ROUNDINGS) -> Verdict:
    """Whether a call returns the exact results, to so many rounding errors of the largest entry of each."""
    try:
        results = call()
    except Exception as raised:  # whatever a peer raises is its result
        return Verdict("failed", None, f"{type(raised).__name__}: {' '.join(str(raised).split())[:300]}")
    if len(results) != len(exact):
        return Verdict("wrong", None, f"{len(exact)} results expected, got {len(results)}")
    scales: dict[str, float] = {}  # of all weights together: some have no effect, and gradients of rounding errors
    for name, reference in exact.items():
        kind = name.rstrip("0123456789")
        scales[kind] = max(scales.get(kind, 0.0), float(reference.abs().max()))
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


def run_layers(
    suite: LayerSuite,
    *,
    peers: Sequence[str] | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    backend: str | None = None,
    say: Say = quiet,
    keep: Callable[[Record], object] = nothing,
) -> Record:
    """Check and time the cases of a configuration.

    Args:
        suite: Of :func:`eqlayers.bench.layer_cases.read_layer_suite`.
        peers: Instead of the cases' own; those that do not have a layer are left out of its cases.
        num_threads, runs: Instead of the configuration's.
        backend: Backend of this package's layers; None for the first that accepts.
        say: Called with a few words before every step.
        keep: Called with the result after every case.

    Returns:
        The result.

    Raises:
        ConfigError: An unknown peer or backend, or a GPU where there is none.
    """
    check_known("peer", peers or (), LAYER_PEERS, "--peers")
    check_backend(backend)
    device = find_device(suite.device, suite.name)
    with threads(num_threads or suite.threads):
        say("copy bandwidth and peak of multiply-adds")
        dtypes = list(dict.fromkeys(case.dtype for case in suite.cases))
        peaks = {dtype: peak_rate(dtype) if device.type == "cpu" else None for dtype in dtypes}
        result: Record = {
            "kind": "layers",
            "suite": suite.name,
            **describe(device),
            "device": suite.device,
            "dtype": ", ".join(dtypes),
            "copy_bandwidth": copy_bandwidth(device),
            "peak_rate": peaks,
            "memory_refusal": refusal(device),
            "cases": [],
            "group_goals": [],
        }
        for case in suite.cases:
            with keep_random_state(device):
                result["cases"].append(_run_case(case, result, peers, runs or case.runs, device, backend, say))
            keep(result)
    return result


def _run_case(
    case: LayerCase,
    head: Record,
    peers: Sequence[str] | None,
    runs: int,
    device: torch.device,
    backend: str | None,
    say: Say,
) -> Record:
    say(f"{case.name}: operands and layers")
    release(device)
    subject = (build_row if case.layer in PAIRS else build)(case, device, backend)
    names = case.peers if peers is None else [name for name in peers if name in subject.makers]
    items, results = _build(case, subject, names)
    bandwidth, peak = head["copy_bandwidth"]["median"], head["peak_rate"][case.dtype]
    fastest = None if peak is None else peak["median"] * torch.get_num_threads()
    cotangents, tangent = _drawn(items[0], subject, getattr(torch, case.dtype))
    allowed = ROUNDINGS_OF.get(case.layer, ROUNDINGS)
    limits: dict[str, Record] = {}
    ratios: list[Record] = []
    for direction in case.directions:
        say(f"{case.name}: checking {direction} against float64")
        exact = exact_results(subject, direction, cotangents, tangent)
        calls = [partial(prepare, item, direction, cotangents, tangent) for item in items]
        rows = []
        for item, make in zip(items, calls, strict=True):
            refused = dict(item.cannot).get(direction)
            verdict = Verdict("failed", None, refused) if refused else compare(make(), exact, tangent.dtype, allowed)
            rows.append(empty_row(item.name, "", direction, verdict, item.note))
        moved = _moved(items[0], subject, direction, exact, cotangents, tangent)
        work = subject.operations[direction]
        least = limit(moved, work, bandwidth, fastest)
        limits[direction] = {"bytes": moved, "operations": work, **least._asdict()}
        del exact
        say(f"{case.name}: timing {direction}")
        times = time_all(calls, rows, runs, device)
        for n, kinds in times.items():
            rows[n] |= {kind: summary(seconds) for kind, seconds in kinds.items()}
            rows[n]["share"] = least.seconds / device_seconds(rows[n])["median"]
            if refusal(device) is None:
                rows[n]["memory_bytes"] = peak_extra(partial(_whole, calls[n]), device)
        ratios += ratios_of([(rows[n], kinds) for n, kinds in times.items()])
        results += rows
    return {
        "name": case.name,
        "group": case.group,
        "problem": case.problem,
        "about": case.about,
        "operation": case.layer,
        "graph": case.size,
        "dtype": case.dtype,
        "nodes": len(items[0].moving),
        "edges": case.rows if case.size.startswith("E") else 0,
        "runs": runs,
        "layouts": [""],
        "limits": limits,
        "results": results,
        "ratios": ratios,
        "goals_asked": case.goals,
        "goals": judge(case.goals, results, ratios),
    }


def _whole(make: Callable[[], Call]) -> object:
    return make()()


def _build(case: LayerCase, subject: Subject, names: Sequence[str]) -> tuple[list[Candidate], list[Record]]:
    """The implementations that take part, and rows for the others."""
    items = [subject.makers[OURS]()]
    rows: list[Record] = []
    for name in names:
        try:
            items.append(subject.makers[name]())
        except Exception as error:
            refused = Verdict("refused", None, why_refused(name, error))
            rows += [empty_row(name, "", direction, refused, "") for direction in case.directions]
    return items, rows


def _drawn(item: Candidate, subject: Subject, dtype: torch.dtype) -> tuple[Outputs, Tensor]:
    """Random cotangents of the results, and a tangent of the moving operand."""
    parts = []
    for part in subject.exact():
        with torch.no_grad():
            parts.append([z.shape for z in part.fn(part.moving)])
    shapes = [(sum(p[i][0] for p in parts), *parts[0][i][1:]) for i in range(len(parts[0]))]
    device = item.moving.device
    cotangents = tuple(torch.randn(shape, dtype=dtype).to(device) for shape in shapes)
    return cotangents, torch.randn(item.moving.shape, dtype=dtype).to(device)


def _moved(
    item: Candidate,
    subject: Subject,
    direction: str,
    exact: dict[str, Tensor],
    cotangents: Outputs,
    tangent: Tensor,
) -> int:
    """Bytes of all operands read once and of all results written once."""
    read: list[Tensor] = [item.moving, *item.weights, *subject.constants]
    if direction != "fwd":
        read += cotangents
    if direction == "fwd+double":
        read.append(tangent)
    size = item.moving.element_size()
    return tensor_bytes(read) + sum(value.numel() * size for value in exact.values())
