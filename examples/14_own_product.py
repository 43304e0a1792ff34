"""A product of one's own in ten lines: kernels, derivatives of every order, compilation and tests follow.

    python examples/14_own_product.py

The product is a message that no tensor product has: features of a sender times a gate of the distance, along the
direction of the edge, and its square traceless part. Ten seconds.
"""

import torch

import eqlayers as eq
from eqlayers.nn import FormulaLayer
from eqlayers.testing import check_derivatives, equivariance_residual

CHANNELS = 8
VECTORS, TENSORS = f"{CHANNELS}x1o", f"{CHANNELS}x2e"


# The ten lines: components of one channel to components of one channel. x is a scalar, r a vector.
def message(x, r, weight):
    inverse = r[0].inverse_length(r[1], r[2])  # 1 / |r|, 0 of the zero vector
    a, b, c = (component * inverse for component in r)
    gated = x[0] * (weight[0] * inverse).sigmoid()
    square = [3**0.5 * c * a, 3**0.5 * a * b, b * b - (a * a + c * c) / 2, 3**0.5 * b * c, 3**0.5 / 2 * (c * c - a * a)]
    return [gated * a, gated * b, gated * c], [gated * component for component in square]  # degree 2 as e3nn orders it


OPERANDS = {"x": f"{CHANNELS}x0e", "r": VECTORS, "weight": f"{CHANNELS}x0e"}


def main() -> None:
    torch.manual_seed(0)
    # One call for all edges: x is read at the sender, the weight serves all edges, results are summed at the receivers.
    # A function that does not commute with rotations and the inversion is refused here.
    layer = FormulaLayer(
        message, OPERANDS, [VECTORS, TENSORS], rows={"x": "src", "weight": "one"}, rows_out="dst", layout="ir_mul"
    )
    print(layer)
    print(layer.explain())
    nodes, edge_index = 6, torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 0, 4, 5, 3, 2, 1]])
    x, weight = (torch.randn(*n, CHANNELS, dtype=torch.float64) for n in ((nodes,), ()))
    r = torch.randn(edge_index.shape[1], 3 * CHANNELS, dtype=torch.float64)
    graph = eq.Graph(edge_index, nodes)

    # The same in plain torch, with an array for every edge and intermediate result.
    vectors = r.unflatten(-1, (3, CHANNELS))
    inverse = 1 / vectors.norm(dim=1)
    gated = x[edge_index[0]] * (weight * inverse).sigmoid()
    one = (gated[:, None] * vectors * inverse[:, None]).flatten(-2)
    slow = torch.zeros(nodes, 3 * CHANNELS, dtype=torch.float64).index_add(0, edge_index[1], one)
    difference = (layer(x, r, weight, graph=graph)[0] - slow).abs().max().item()
    print(f"largest difference to plain torch: {difference:.1e}")

    # Its tests: three orders of derivative by all operands against finite differences, rotations, and compilation.
    operands = [operand.requires_grad_() for operand in (x, r, weight)]
    report = check_derivatives(lambda *given: layer(*given, graph=graph), operands, order=3, max_elements=6)
    print(report)
    single = FormulaLayer(message, OPERANDS, [VECTORS, TENSORS])  # without a graph: row by row
    residual = max(
        equivariance_residual(lambda *given, n=n: single(*given)[n], list(OPERANDS.values()), irreps, determinant=-1)
        for n, irreps in enumerate((VECTORS, TENSORS))
    )
    print(f"equivariance: {residual:.1e}")
    compiled = torch.compile(single, backend="aot_eager", fullgraph=True)
    given = [torch.randn(5, eq.o3.Irreps(irreps).dim, dtype=torch.float64) for irreps in OPERANDS.values()]
    same = all(torch.equal(a, b) for a, b in zip(compiled(*given), single(*given), strict=True))
    if not (report.ok and same and max(difference, residual) < 1e-12):
        raise SystemExit("check failed: a property does not hold")
    print("check passed: numbers, three orders of derivative, equivariance and one compiled graph")


if __name__ == "__main__":
    main()
