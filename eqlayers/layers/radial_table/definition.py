"""The definition of an interpolated radial function: the quintic polynomial between two knots, in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def quintic(function: Callable[[Tensor], Tensor], r: Tensor, first: float, last: float, knots: int) -> Tensor:
    """``[E]`` to ``[E, width]`` for a function of lengths ``[K]`` to ``[K, width]``.

    The polynomial of degree 5 between two knots has the function's value, slope and curvature at both. Its six
    coefficients solve six linear equations.
    """
    step = (last - first) / (knots - 1)
    interval = ((r - first) / step).floor().clamp(0, knots - 2)
    u = (r - first) / step - interval

    def jet(at: Tensor) -> Tensor:
        """Value, slope and curvature of the function in units of the step, ``[3, E, width]``."""
        at = at.clone().requires_grad_()
        value = function(at)
        rows = [value]
        for _ in range(2):
            columns = [torch.autograd.grad(one.sum(), at, create_graph=True)[0] for one in rows[-1].unbind(1)]
            rows.append(torch.stack(columns, 1) * step)
        return torch.stack([row.detach() for row in rows])

    powers = torch.arange(6, dtype=r.dtype)
    equations = [[0.0**n, n * 0.0 ** abs(n - 1), n * (n - 1) * 0.0 ** abs(n - 2)] for n in range(6)]
    equations = [[*row, 1.0, n, n * (n - 1)] for n, row in enumerate(equations)]
    start = first + step * interval
    jets = torch.cat([jet(start), jet(start + step)])
    coefficients = torch.linalg.solve(torch.tensor(equations, dtype=r.dtype).T, jets.flatten(1)).view(
        6, *jets.shape[1:]
    )
    return (coefficients * (u[:, None] ** powers).T[:, :, None]).sum(0)
