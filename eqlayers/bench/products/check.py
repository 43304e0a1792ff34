r"""Compare results of products with float64 e3nn, element by element, within rounding bounds.

A result is a sum of products of operands and coefficients. Computed in any order, its error is at most
:math:`\gamma_n \sum |\mathrm{term}|` (Higham 2002, section 3.1), and for independent roundings about
:math:`\sqrt n\, u \sum |\mathrm{term}|` (Higham and Mary 2019). Sum and number n of the terms come from the same
product with absolute values, or with ones, in place of operands and coefficients: all orders of derivative included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...irreps.algebra import read_all_irreps, wigner_3j
from ...irreps.instructions import MODES, Instruction, normalise, read_final, read_instructions
from ..cases import Verdict, short
from .implementation import Implementation, e3nn_layer, gathered
from .operands import DIRECTIONS, LIKE, RESULTS, Function, Operands, into_form, prepare
from .problems import Problem

#: Device type -> most elements of a float64 intermediate; the reference is computed for parts of the edges.
PART = {"cpu": 4_000_000, "cuda": 40_000_000}
#: Roundings of one term: three factors of the coefficient, at most six multiplications, three changes of layout.
PER_TERM = 12
#: Standard deviations of a sum of roundings that are allowed for.
SIGMAS = 10


def product_magnitude(
    irreps: Sequence[Any], instructions: Sequence[Instruction], device: torch.device | str = "cpu", count: bool = False
) -> Function:
    """The tensor product with absolute coefficients, or with 1 where they are not zero, in float64.

    Args:
        irreps: Of in1, in2 and out.
        instructions: With their final coefficient in ``path_weight``.
        device: Of the operands.
        count: Count terms instead of adding up their sizes.

    Returns:
        A function of ``x [N, in1.dim]``, ``y [N, in2.dim]`` and ``w [weight_numel]`` or ``[N, weight_numel]``, float64
        in e3nn's layout, to ``[N, out.dim]``; given absolute values (or ones), it gives the sum (or number) of terms.

    Example:
        >>> ins = Instruction(0, 0, 0, "uvu", False, 1.0, (2, 1))
        >>> dot = product_magnitude(("2x1o", "1o", "2x0e"), [ins], count=True)
        >>> dot(torch.ones(1, 6).double(), torch.ones(1, 3).double(), torch.ones(0).double()).tolist()
        [[3.0, 3.0]]
    """
    irreps, instructions = read_all_irreps(irreps, ("in1", "in2", "out")), read_final(instructions)
    slices = [part.slices() for part in irreps]
    blocks: list[tuple[Instruction, Tensor]] = []
    for ins in instructions:
        degrees = [part[index].ir.l for part, index in zip(irreps, ins[:3], strict=True)]
        size = np.abs(wigner_3j(*degrees)) * abs(ins.path_weight)
        blocks.append((ins, torch.from_numpy((size > 0).astype(float) if count else size).to(device)))

    def product(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        out: list[Tensor] = [x.new_zeros(len(x), mul, ir.dim) for mul, ir in irreps[2]]
        start = 0
        for ins, c in blocks:
            mode = MODES[ins.connection_mode]
            a = x[:, slices[0][ins.i_in1]].unflatten(-1, (-1, c.shape[0]))
            b = y[:, slices[1][ins.i_in2]].unflatten(-1, (-1, c.shape[1]))
            if mode.pairs:
                first, second = torch.triu_indices(a.shape[1], a.shape[1], 1, device=a.device)
                a, b = a[:, first], b[:, second]
            operands, letters = [a, b, c], f"n{mode.first}i,n{mode.second}j,ijk"
            if ins.has_weight:
                stop = start + math.prod(ins.path_shape)
                operands.append(w[..., start:stop].unflatten(-1, ins.path_shape))
                letters += f",{'n' if w.ndim > 1 else ''}{mode.weight}"
                start = stop
            if 0 in ins.path_shape:
                continue
            # a mode whose letter of the output no operand has (uuw without weights) sums into one channel
            known = set(letters)
            target = "".join(letter for letter in mode.out if letter in known)
            block = torch.einsum(f"{letters}->n{target}k", *operands)
            out[ins.i_out] = out[ins.i_out] + block.reshape(out[ins.i_out].shape)
        return torch.cat([x.new_zeros(len(x), 0), *(t.flatten(1) for t in out)], -1)

    return product


def excess(value: Tensor, reference: Tensor, size: Tensor, terms: Tensor, dtype: torch.dtype) -> float:
    """The largest error as a fraction of the rounding bound; infinite for another shape or a value that is not finite.

    Args:
        value, reference: What is judged, and what it should be.
        size: Sum of the absolute values of the terms of each element.
        terms: Their number, or an upper bound; broadcasts.
        dtype: In which ``value`` was computed.

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
