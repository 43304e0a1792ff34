"""The definition of a gate: activated scalars, and other irreps times an activated scalar each, in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from e3nn.math import normalize2mom
from e3nn.o3 import Irreps
from torch import Tensor

Function = Callable[[Tensor], Tensor]


def gate(x: Tensor, scalars: int, gated: Irreps, act: Function, act_gates: Function) -> Tensor:
    """``[N, scalars + gated.num_irreps + gated.dim]`` in 'mul_ir' to ``[N, scalars + gated.dim]``.

    Columns are the scalars, then one gate for each copy, then the copies. Activations are scaled so that normal numbers
    keep a second moment of 1, as e3nn estimates it.
    """
    values, gates, features = x.split([scalars, gated.num_irreps, gated.dim], 1)
    act, act_gates = normalize2mom(act), normalize2mom(act_gates)
    factors = act_gates(gates).split([mul for mul, _ in gated], 1)
    parts = [
        (features[:, s].reshape(len(x), mul, ir.dim) * factor[:, :, None]).flatten(1)
        for s, (mul, ir), factor in zip(gated.slices(), gated, factors, strict=True)
    ]
    return torch.cat([act(values), *parts], 1)
