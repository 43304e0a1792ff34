"""A convolution in the frames of edges against the tensor product with harmonics that it equals: numbers, times.

    python examples/13_so2_convolution.py [--degrees 2 3 4] [--channels 16] [--nodes 50] [--edges 500]

The product is the cheapest of that kind: channel by channel along all paths, and one linear map at the receivers. Its
kernels are compiled in the first run of a degree, which from degree 5 on takes longer than all else here.
"""

import argparse
import time
from collections.abc import Callable

import torch
from e3nn import o3

import eqlayers as eq
from eqlayers.nn import SO2Convolution


class Dense(torch.nn.Module):
    """Tensor product of the senders' features with harmonics, sum at the receivers, linear map."""

    def __init__(self, lmax: int, channels: int) -> None:
        super().__init__()
        self.irreps = o3.Irreps([(channels, (l, (-1) ** l)) for l in range(lmax + 1)])
        harmonics = o3.Irreps.spherical_harmonics(2 * lmax)
        middle, instructions = eq.paths(self.irreps, harmonics, self.irreps)
        self.harmonics = eq.nn.SphericalHarmonics(harmonics, normalize=True, normalization="component")
        self.product = eq.TensorProductConv(self.irreps, harmonics, middle, instructions, layout="ir_mul")
        self.linear = eq.Linear(middle, self.irreps, layout="ir_mul")

    def forward(self, x: torch.Tensor, vectors: torch.Tensor, graph: eq.Graph) -> torch.Tensor:
        """``[nodes, dim]`` features and ``[edges, 3]`` vectors to ``[nodes, dim]``."""
        return self.linear(self.product(x, self.harmonics(vectors), edge_index=graph))


def fastest(run: Callable[[], object], repeats: int = 10) -> float:
    """Milliseconds of the fastest call of several; the first, which compiles, does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def compared(lmax: int, channels: int, nodes: int, edges: int) -> tuple[float, list[str]]:
    """The largest relative difference, and a row of the table."""
    torch.manual_seed(0)
    dense = Dense(lmax, channels).double()
    conv = SO2Convolution.from_tensor_product(dense.product, dense.linear)
    graph = eq.Graph(torch.randint(0, nodes, (2, edges)), nodes)
    x, vectors = torch.randn(nodes, dense.irreps.dim), torch.randn(edges, 3)

    with torch.no_grad():
        found, wanted = (layer(x.double(), vectors.double(), graph) for layer in (conv, dense))
    difference = float((found - wanted).abs().max() / wanted.abs().max())

    times = []
    for layer in (dense.float(), conv.float()):
        live = [x.requires_grad_(), vectors.requires_grad_(), *layer.parameters()]

        def gradients(layer: torch.nn.Module = layer, live: list[torch.Tensor] = live) -> object:
            return torch.autograd.grad(layer(x, vectors, graph).square().sum(), live)

        with torch.no_grad():
            times.append(fastest(lambda layer=layer: layer(x, vectors, graph)))
        times.append(fastest(gradients))
    paths = len(dense.product.instructions)
    return difference, [str(lmax), str(paths), str(conv.weight_numel), *(f"{value:.2f}" for value in times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--degrees", type=int, nargs="+", default=[2, 3, 4])
    for name, default in (("channels", 16), ("nodes", 50), ("edges", 500), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    print("milliseconds: dense product, then SO2Convolution; forward, and with all gradients")
    head = ["l", "paths", "weights", "dense", "and gradients", "SO(2)", "and gradients"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    worst = 0.0
    for lmax in given.degrees:
        difference, row = compared(lmax, given.channels, given.nodes, given.edges)
        worst = max(worst, difference)
        print("| " + " | ".join(row) + " |", flush=True)
    print(f"largest difference in float64: {worst:.0e} of the largest number")
    if not worst < 1e-12:
        raise SystemExit("check failed: expected equal numbers")
    print("check passed: the same numbers")


if __name__ == "__main__":
    main()
