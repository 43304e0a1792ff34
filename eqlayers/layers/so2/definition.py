"""The definition of a linear map in the frame of an edge along y, with parity, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from e3nn.o3 import Irrep, Irreps
from torch import Tensor


def sign(ir: Irrep) -> int:
    """P (-1)^l: how a reflection at a plane through y changes the irrep, except for the sign of m."""
    return int(ir.p * (-1) ** ir.l)


def so2_linear(x: Tensor, irreps_in: Irreps, irreps_out: Irreps, matrices: Iterable[Tensor]) -> Tensor:
    """``[N, irreps_in.dim]`` to ``[N, irreps_out.dim]`` in 'mul_ir'.

    Args:
        matrices: ``[channels in, channels out]``. For order m = 0 one matrix for each sign, since signs do not mix. For
            each m > 0 one matrix between all channels that have this order.

    The components (m, -m) of a channel are one vector. Irreps of negative sign are rotated by J = ((0, -1), (1, 0))
    before the map and back after it, so that it commutes with reflections. A sum over n channels is divided by sqrt(n).

    Source:
        Passaro and Zitnick 2023, arXiv:2302.03655, without parity.
    """
    rows = [x[:, s].reshape(len(x), mul, ir.dim) for s, (mul, ir) in zip(irreps_in.slices(), irreps_in, strict=True)]
    out = [x.new_zeros(len(x), mul, ir.dim) for mul, ir in irreps_out]
    left = iter(matrices)
    for m in range(max(ir.l for _, ir in irreps_in) + 1):
        for signs in ((1,), (-1,)) if m == 0 else ((1, -1),):
            reads = [a for a, (_, ir) in enumerate(irreps_in) if ir.l >= m and sign(ir) in signs]
            writes = [b for b, (_, ir) in enumerate(irreps_out) if ir.l >= m and sign(ir) in signs]
            if not reads or not writes:
                continue
            pairs = []
            for a in reads:
                l = irreps_in[a].ir.l
                plus, minus = rows[a][:, :, l + m], rows[a][:, :, l - m]
                pairs.append(torch.stack((-minus, plus) if m and sign(irreps_in[a].ir) < 0 else (plus, minus)))
            packed = torch.cat(pairs, 2)
            mixed = packed @ next(left) / math.sqrt(packed.shape[2])
            for b, part in zip(writes, mixed.split([irreps_out[b].mul for b in writes], 2), strict=True):
                l, rotated = irreps_out[b].ir.l, m > 0 and sign(irreps_out[b].ir) < 0
                out[b][:, :, l + m] = part[1] if rotated else part[0]
                if m:
                    out[b][:, :, l - m] = -part[0] if rotated else part[1]
    return torch.cat([part.flatten(1) for part in out], 1)
