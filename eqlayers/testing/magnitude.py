r"""How large the terms of a tensor product are, and how many: what a bound of its rounding error is made of.

A result is a sum of products of operands and coefficients. Computed in any order, its error is at most
:math:`\gamma_n \sum |\mathrm{term}|` (Higham 2002, section 3.1), and for independent roundings about
:math:`\sqrt n\, u \sum |\mathrm{term}|` (Higham and Mary 2019). Sum and number n of the terms come from the same
product with absolute values, or with ones, in place of operands and coefficients: all orders of derivative included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.checks import check_device, check_dtype, check_flag, check_floating, check_items, check_number, got
from ..core.errors import ConfigError
from ..irreps.algebra import read_all_irreps, wigner_3j
from ..irreps.instructions import Instruction, read_final
from ..irreps.modes import MODES

#: Roundings of one term: three factors of the coefficient, at most six multiplications, three changes of layout.
PER_TERM = 12
#: Standard deviations of a sum of roundings that are allowed for.
SIGMAS = 10

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def product_magnitude(
    irreps: Sequence[Any],
    instructions: Sequence[Instruction],
    device: torch.device | str = "cpu",
    count: bool = False,
) -> Product:
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
    device, count = check_device("device", device), check_flag("count", count)
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
            piece = torch.einsum(f"{letters}->n{target}k", *operands)
            out[ins.i_out] = out[ins.i_out] + piece.reshape(out[ins.i_out].shape)
        return torch.cat([x.new_zeros(len(x), 0), *(t.flatten(1) for t in out)], -1)

    return product


def excess(
    value: Tensor,
    reference: Tensor,
    size: Tensor,
    terms: Tensor,
    dtype: torch.dtype,
    eps: float | None = None,
    relative: float = 0.0,
) -> float:
    """The largest error as a fraction of the rounding bound; infinite for another shape or a value that is not finite.

    Args:
        value, reference: What is judged, and what it should be.
        size: Sum of the absolute values of the terms of each element.
        terms: Their number, or an upper bound; broadcasts.
        dtype: In which ``value`` was computed.
        eps: Error of one rounding if it is larger than the dtype's (TF32).
        relative: Relative error of each term beside the roundings.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> excess(one * (1 + 1e-9), one, one, one, torch.float32) < 1
        True
        >>> excess(one * (1 + 1e-4), one, one, one, torch.float32) < 1
        False
    """
    for name, tensor in (("value", value), ("reference", reference), ("size", size), ("terms", terms)):
        check_floating(name, tensor, "[...]")
    check_dtype("dtype", dtype)
    if eps is not None:
        check_number("eps", eps, above=0)
    check_number("relative", relative, at_least=0)
    if value.shape != reference.shape or not torch.isfinite(value).all():
        return float("inf")
    if value.numel() == 0:
        return 0.0
    finfo: Any = torch.finfo(dtype)
    roundings = torch.minimum(terms, SIGMAS * terms.sqrt()) + PER_TERM
    bound = (roundings * (finfo.eps if eps is None else max(eps, finfo.eps)) + relative) * size + finfo.tiny
    return float(((value.double() - reference).abs() / bound).max())


def linear_magnitude(
    irreps: Sequence[Any], instructions: Sequence[tuple[Any, ...]], count: bool = False
) -> Callable[[Tensor, Tensor | None, Tensor | None], Tensor]:
    """An equivariant linear map with absolute factors, or with 1, in float64; see :func:`product_magnitude`.

    Args:
        irreps: Of input and output.
        instructions: ``(i_in, i_out, path_shape, factor)`` per path; a bias has ``i_in = -1``.
        count: Count terms instead of adding up their sizes.

    Returns:
        A function of ``x [N, in.dim]``, weights ``[(N,) weight_numel]`` and biases ``[(N,) bias_numel]`` or None.

    Example:
        >>> fn = linear_magnitude(("3x0e", "2x0e"), [(0, 0, (3, 2), -0.5)])
        >>> fn(torch.ones(1, 3).double(), torch.ones(6).double(), None).tolist()
        [[1.5, 1.5]]
    """
    irreps, count = read_all_irreps(irreps, ("in", "out")), check_flag("count", count)
    fix = "Take the instructions of a layer."
    instructions = check_items("instructions", instructions, "a list of instructions", fix)
    for number, ins in enumerate(instructions):
        if len(check_items(f"instructions[{number}]", ins, "an instruction", fix)) != 4:
            raise ConfigError(
                f"instructions[{number}] must be (i_in, i_out, path_shape, factor), got {got(ins)}. {fix}"
            )
    slices = [part.slices() for part in irreps]

    def linear(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        out = [x.new_zeros(len(x), mul, ir.dim) for mul, ir in irreps[1]]
        starts = {True: 0, False: 0}
        for i_in, i_out, shape, factor in instructions:
            is_bias, size = i_in == -1, math.prod(shape)
            weights = b if is_bias else w
            if weights is None or size == 0:
                continue
            block = weights[..., starts[is_bias] : starts[is_bias] + size].unflatten(-1, tuple(shape))
            starts[is_bias] += size
            if is_bias:
                piece = block.unsqueeze(-1)
            else:
                a = x[:, slices[0][i_in]].unflatten(-1, (irreps[0][i_in].mul, -1))
                spec = f"nui,{'n' if block.ndim > 2 else ''}uw->nwi"
                piece = torch.einsum(spec, a, block) * (1.0 if count else abs(factor))
            out[i_out] = out[i_out] + piece
        return torch.cat([x.new_zeros(len(x), 0), *(t.flatten(1) for t in out)], -1)

    return linear
