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

from ...irreps.algebra import read_all_irreps, wigner_3j
from ...irreps.instructions import Instruction, read_final
from ...irreps.modes import MODES

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


def excess(
    value: Tensor,
    reference: Tensor,
    size: Tensor,
    terms: Tensor,
    dtype: torch.dtype,
) -> float:
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
