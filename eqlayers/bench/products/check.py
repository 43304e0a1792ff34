"""Compare results of products with float64 e3nn, element by element, within rounding bounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...irreps.instructions import normalise, read_instructions
from ..cases import Verdict, short
from .implementation import Implementation, e3nn_layer, gathered
from .magnitude import excess, product_magnitude
from .operands import DIRECTIONS, LIKE, RESULTS, Function, Operands, into_form, prepare
from .problems import Problem

#: Device type -> most elements of a float64 intermediate; the reference is computed for parts of the edges.
PART = {"cpu": 4_000_000, "cuda": 40_000_000}


def magnitude(problem: Problem, device: torch.device, count: bool = False) -> Function:
    """The product in float64 with absolute values of coefficients, or with 1 for nonzero ones (``count``)."""
    read = read_instructions(*problem.irreps, problem.instructions)
    first, second, out = ([1.0] * len(irreps) for irreps in problem.irreps)
    paths = normalise(read, problem.irreps, (first, second, out))
    return product_magnitude(problem.irreps, paths, device, count)


def counts(problem: Problem, operands: Operands) -> dict[str, Tensor]:
    """Upper bounds of the number of terms of each result by name, one row for all rows."""
    device = operands.values["x"].device
    ones = {
        name: torch.ones((1, value.shape[-1])[operands.rows[LIKE[name]] == "shared" :], dtype=torch.float64).to(device)
        for name, value in operands.values.items()
    }
    summed = {"edge": dict.fromkeys("xywz", 1.0), "shared": {"w": float(operands.edges)}}
    if operands.edge_index is not None and operands.edges:
        src, dst = operands.edge_index
        summed["node"] = {"x": float(torch.bincount(src).max()), "z": float(torch.bincount(dst).max())}
    fn = magnitude(problem, device, count=True)
    return {
        name: value.detach() * summed.get(operands.rows[name[-1]], {}).get(name[-1], 1.0)
        for direction in DIRECTIONS
        for name, value in zip(RESULTS[direction], prepare(fn, ones, direction)(), strict=True)
    }


def evaluate(item: Implementation, operands: Operands, direction: str) -> dict[str, Tensor] | Verdict:
    """Results of one direction in e3nn's column order, or a verdict on why there are none."""
    if direction in item.cannot:
        return Verdict("failed", None, item.cannot[direction])
    try:
        results = prepare(item.fn, into_form(operands.values, item.form), direction)()
    except Exception as error:  # an error is a result
        return Verdict("failed", None, short(error))
    names = RESULTS[direction]
    if len(results) != len(names):
        return Verdict("wrong", None, f"{len(names)} results expected, got {len(results)}")
    return {n: item.form[n[-1]].back(t.detach()) for n, t in zip(names, results, strict=True)}


def check(
    problem: Problem, operands: Operands, items: Sequence[Implementation], directions: tuple[str, ...]
) -> dict[tuple[int, str], Verdict]:
    """Compare implementations with e3nn in float64; return verdicts by (index of the implementation, direction)."""
    terms = counts(problem, operands)
    verdicts = {}
    for direction in directions:
        results = {number: evaluate(item, operands, direction) for number, item in enumerate(items)}
        right = {number: value for number, value in results.items() if isinstance(value, dict)}
        errors = _compare(problem, operands, direction, right, terms)
        for number, value in results.items():
            verdicts[number, direction] = value if isinstance(value, Verdict) else _verdict(errors[number])
    return verdicts


def _verdict(errors: dict[str, float]) -> Verdict:
    name, error = max(errors.items(), key=lambda entry: entry[1])
    reason = "" if error <= 1 else f"the error of {name} is {error:.3g} times its rounding bound"
    return Verdict("ok" if error <= 1 else "wrong", error, reason)


def _compare(
    problem: Problem,
    operands: Operands,
    direction: str,
    results: dict[int, dict[str, Tensor]],
    terms: dict[str, Tensor],
) -> dict[int, dict[str, float]]:
    """Largest errors of results relative to their bounds, by index of the implementation."""
    x = operands.values["x"]
    step = max(1, PART[x.device.type] // max(problem.irreps_out.dim, problem.weight_numel, 1))
    worst: dict[int, dict[str, float]] = {number: dict.fromkeys(RESULTS[direction], 0.0) for number in results}
    summed: dict[str, tuple[Tensor, Tensor]] = {}
    functions = e3nn_layer(problem, torch.float64, x.device), magnitude(problem, x.device)
    for start in range(0, max(operands.edges, 1), step):
        part = operands.part(start, start + step).to(torch.float64)
        positive = {name: value.abs() for name, value in part.values.items()}
        reference, sizes = (
            [t.detach() for t in prepare(gathered(fn, part), values, direction)()]
            for fn, values in zip(functions, (part.values, positive), strict=True)
        )
        for name, r, m in zip(RESULTS[direction], reference, sizes, strict=True):
            if operands.rows[name[-1]] == "edge":
                for number, values in results.items():
                    error = excess(values[name][start : start + step], r, m, terms[name], x.dtype)
                    worst[number][name] = max(worst[number][name], error)
            else:
                known = summed.get(name)
                summed[name] = (r, m) if known is None else (known[0] + r, known[1] + m)
    for name, (r, m) in summed.items():
        for number, values in results.items():
            worst[number][name] = excess(values[name], r, m, terms[name], x.dtype)
    return worst
