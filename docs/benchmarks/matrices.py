"""Matrices of generated C beside torch's products, GFLOP/s on one thread: `python docs/benchmarks/matrices.py`.

Rows are edges or atoms, of a map of scalars in float32 between numbers of channels: its value, and the gradients by
rows and by weights. The calls take turns, and the least time of each counts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from native import least

from eqlayers import Linear

SIZES = ((256, 64, 64), (2304, 64, 64), (2304, 64, 224), (2304, 64, 1280), (2304, 512, 512), (20000, 128, 128))


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| rows | channels | value | by rows | by weights |\n|--:|--:|--:|--:|--:|")
    for rows, before, after in SIZES:
        layer = Linear(f"{before}x0e", f"{after}x0e")
        x, g = torch.randn(rows, before, requires_grad=True), torch.randn(rows, after)
        weight = torch.randn(before, after, requires_grad=True)
        ours, theirs = layer(x), x @ weight

        def by(result: torch.Tensor, leaf: torch.Tensor, g: torch.Tensor = g) -> Callable[[], object]:
            return lambda: torch.autograd.grad(result, leaf, g, retain_graph=True)

        columns = []
        with torch.no_grad():
            columns.append(least({"ours": lambda x=x, f=layer: f(x), "torch": lambda x=x, w=weight: x @ w}))
        columns.append(least({"ours": by(ours, x), "torch": by(theirs, x)}))
        columns.append(least({"ours": by(ours, layer.weight), "torch": by(theirs, weight)}))
        work = 2e-9 * rows * before * after
        cells = [f"{work / one['ours']:.0f} and {work / one['torch']:.0f}" for one in columns]
        print(f"| {rows:,} | {before} to {after} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
