r"""Right, then fast: every result is compared with float64 e3nn, element by element, within its rounding bound.

A result is a sum of products of operands and coefficients. Computed in any order, its error is at most
:math:`\gamma_n \sum |\mathrm{term}|` (Higham 2002, section 3.1), and for independent roundings about
:math:`\sqrt n\, u \sum |\mathrm{term}|` (Higham and Mary 2019). Sum and number n of the terms come from the same
product with absolute values, or with ones, in place of operands and coefficients: all orders of derivative included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..algebra import wigner_3j
from ..info.paths import normalise, read_instructions
from .operands import DIRECTIONS, LIKE, RESULTS, Function, Operands, into_form, prepare
from .peers import Implementation, e3nn_layer, gathered
from .problems import Problem

#: Roundings of one term: three factors of the coefficient, at most six multiplications, three changes of layout.
PER_TERM = 12
#: Standard deviations of a sum of roundings that are allowed for.
SIGMAS = 10
#: Elements of the widest float64 intermediate; the reference is computed over parts of the edges.
PART = 4_000_000

EINSUM = {"uvu": "nui,nvj,ijk,{}uv->nuk", "uvw": "nui,nvj,ijk,{}uvw->nwk"}


@dataclass(frozen=True)
class Verdict:
    """Whether one direction of one implementation is right.

    Attributes:
        status: 'ok', 'wrong', or 'failed' where it raised an error or lacks the direction.
        error: Largest error as a fraction of its bound; None if it failed.
        reason: Why it is not ok.
    """

    status: str
    error: float | None
    reason: str = ""


def magnitude(problem: Problem, device: torch.device, count: bool = False) -> Function:
    """The product with absolute coefficients, or with 1 where they are not zero, in float64."""
    irreps = (problem.irreps_in1, problem.irreps_in2, problem.irreps_out)
    read = read_instructions(*irreps, problem.instructions)
    paths = normalise(read, irreps, ([1.0] * len(irreps[0]), [1.0] * len(irreps[1]), [1.0] * len(irreps[2])))
    blocks = []
    for ins in paths:
        degrees = [r[index].ir.l for r, index in zip(irreps, ins[:3], strict=True)]
        size = np.abs(wigner_3j(*degrees)) * ins.path_weight
        blocks.append((ins, torch.from_numpy((size > 0).astype(float) if count else size).to(device)))
    slices = [r.slices() for r in irreps]
    spec = EINSUM[problem.mode].format("" if problem.shared else "n")

    def product(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        out: list[Tensor] = [x.new_zeros(len(x), mul, ir.dim) for mul, ir in irreps[2]]
        start = 0
        for ins, c in blocks:
            stop = start + math.prod(ins.path_shape)
            a = x[:, slices[0][ins.i_in1]].unflatten(-1, (-1, c.shape[0]))
            b = y[:, slices[1][ins.i_in2]].unflatten(-1, (-1, c.shape[1]))
            weights = w[..., start:stop].unflatten(-1, ins.path_shape)
            out[ins.i_out] = out[ins.i_out] + torch.einsum(spec, a, b, c, weights)
            start = stop
        return torch.cat([t.flatten(1) for t in out], -1)

    return product


def counts(problem: Problem, operands: Operands) -> dict[str, Tensor]:
    """An upper bound of the number of terms of every result, by its name; one row for all rows."""
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
    """The results of one direction in e3nn's columns, or why there are none."""
    if direction in item.cannot:
        return Verdict("failed", None, item.cannot[direction])
    try:
        results = prepare(item.fn, into_form(operands.values, item.form), direction)()
    except Exception as error:  # whatever a peer raises is its result
        return Verdict("failed", None, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    names = RESULTS[direction]
    if len(results) != len(names):
        return Verdict("wrong", None, f"{len(names)} results expected, got {len(results)}")
    return {n: item.form[n[-1]].back(t.detach()) for n, t in zip(names, results, strict=True)}


def check(
    problem: Problem, operands: Operands, items: list[Implementation], directions: tuple[str, ...]
) -> dict[tuple[int, str], Verdict]:
    """Compare every direction of every implementation with e3nn in float64.

    Args:
        problem, operands: The case.
        items: The implementations.
        directions: Those to compare.

    Returns:
        A verdict by number of the implementation and direction.
    """
    terms = counts(problem, operands)
    verdicts = {}
    for direction in directions:
        found = {number: evaluate(item, operands, direction) for number, item in enumerate(items)}
        results = {number: value for number, value in found.items() if isinstance(value, dict)}
        verdicts.update({(n, direction): v for n, v in found.items() if isinstance(v, Verdict)})
        worst = _compare(problem, operands, direction, results, terms)
        for number, errors in worst.items():
            name, error = max(errors.items(), key=lambda entry: entry[1])
            reason = "" if error <= 1 else f"the error of {name} is {error:.3g} times its rounding bound"
            verdicts[number, direction] = Verdict("ok" if error <= 1 else "wrong", error, reason)
    return verdicts


def _compare(
    problem: Problem,
    operands: Operands,
    direction: str,
    results: dict[int, dict[str, Tensor]],
    terms: dict[str, Tensor],
) -> dict[int, dict[str, float]]:
    """The largest error of every result as a fraction of its bound, by number of the implementation."""
    dtype = operands.values["x"].dtype
    width = max(problem.irreps_out.dim, problem.weight_numel, 1)
    step = max(1, PART // width)
    worst: dict[int, dict[str, float]] = {number: dict.fromkeys(RESULTS[direction], 0.0) for number in results}
    summed: dict[str, tuple[Tensor, Tensor]] = {}
    device = operands.values["x"].device
    functions = e3nn_layer(problem, torch.float64, device), magnitude(problem, device)
    for start in range(0, max(operands.edges, 1), step):
        part = operands.part(start, start + step).to(torch.float64)
        positive = {name: value.abs() for name, value in part.values.items()}
        reference, sizes = (
            prepare(gathered(fn, part), values, direction)()
            for fn, values in zip(functions, (part.values, positive), strict=True)
        )
        for name, r, m in zip(RESULTS[direction], reference, sizes, strict=True):
            r, m = r.detach(), m.detach()
            if operands.rows[name[-1]] == "edge":
                for number, values in results.items():
                    error = excess(values[name][start : start + step], r, m, terms[name], dtype)
                    worst[number][name] = max(worst[number][name], error)
            else:
                known = summed.get(name)
                summed[name] = (r, m) if known is None else (known[0] + r, known[1] + m)
    for name, (r, m) in summed.items():
        for number, values in results.items():
            worst[number][name] = excess(values[name], r, m, terms[name], dtype)
    return worst


def excess(value: Tensor, reference: Tensor, size: Tensor, terms: Tensor, dtype: torch.dtype) -> float:
    """The largest error as a fraction of the rounding bound; infinite for another shape or a value that is not finite.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> excess(one * (1 + 1e-9), one, one, one, torch.float32) < 1
        True
        >>> excess(one * (1 + 1e-4), one, one, one, torch.float32) < 1
        False
    """
    if value.shape != reference.shape or not torch.isfinite(value).all():
        return float("inf")
    if value.numel() == 0:
        return 0.0
    finfo = torch.finfo(dtype)
    roundings = torch.minimum(terms, SIGMAS * terms.sqrt()) + PER_TERM
    bound = roundings * finfo.eps * size + finfo.tiny
    return float(((value.double() - reference).abs() / bound).max())
