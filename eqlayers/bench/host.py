"""Host time of calls on five rows, in units of the same run: a bare autograd Function, and one `torch.add`."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.graph import Graph
from ..nn import TensorProduct, TensorProductConv
from .measure import threads

ROWS, IRREPS, SH = 5, "8x0e + 8x1o", "0e + 1o"
PATHS = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True), (0, 1, 1, "uvu", True)]


class Bare(torch.autograd.Function):
    """Only makes its result: no call with a tape costs less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, w: Tensor) -> Tensor:  # noqa: D102
        return x.new_empty(ROWS, x.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: D102
        return None, None, None


def host_ratios(repeats: int = 100, calls: int = 50) -> dict[str, float]:
    """Calls of layers in units, the fastest of some repeats that take turns.

    Returns:
        By 'what, unit'.
    """
    x, y = torch.randn(ROWS, 32), torch.randn(ROWS, 4)
    layer = TensorProduct(IRREPS, SH, IRREPS, PATHS, layout="ir_mul")
    conv = TensorProductConv(IRREPS, SH, IRREPS, PATHS, layout="ir_mul", shared_weights=False)
    graph, w = Graph(torch.arange(2 * ROWS).view(2, ROWS) % ROWS, ROWS), torch.randn(ROWS, conv.weight_numel)
    timed: dict[str, tuple[bool, Callable[[], Any]]] = {
        "add": (False, lambda: torch.add(x, x)),
        "Function": (True, lambda: Bare.apply(x, y, layer.weight)),
        "product, tape": (True, lambda: layer(x, y)),
        "product": (False, lambda: layer(x, y)),
        "convolution": (False, lambda: conv(x, y, w, graph)),
    }
    best = dict.fromkeys(timed, float("inf"))
    with threads(1):
        for _ in range(repeats):
            for name, (taped, call) in timed.items():
                with torch.set_grad_enabled(taped):
                    call()
                    best[name] = min(best[name], timeit.timeit(call, number=calls))
    return {
        "TensorProduct with a tape, bare autograd Functions": best["product, tape"] / best["Function"],
        "TensorProduct without a tape, torch.add": best["product"] / best["add"],
        "TensorProductConv with a Graph, without a tape, torch.add": best["convolution"] / best["add"],
    }
