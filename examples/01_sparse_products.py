"""A tensor product in a few lines of infos and sparse products; the seven products, one of your own, derivatives."""

import torch
from e3nn import o3

import eqlayers
from eqlayers import functional
from eqlayers.functional import sparse_mul, sparse_vecsca
from eqlayers.sparse import PRODUCTS, register_product, sparse_product_infos
from eqlayers.testing import check_derivatives, random_product

torch.manual_seed(0)

# 1. A tensor product of features with harmonics, and weights, is two sparse products. Every path couples degrees a and
# b to c; its terms z[k] += s x[i] y[j] are the nonzero Clebsch-Gordan coefficients. Rows are components.
first = {0: 0, 1: 1, 2: 4}  # row of the first component of each degree
paths = [(a, b, c) for a in first for b in first for c in first if abs(a - b) <= c <= a + b and not (a + b + c) % 2]
terms, weights, made = [], [], 0
for number, (a, b, c) in enumerate(paths):
    arriving = sum(path[2] == c for path in paths)
    block = o3.wigner_3j(a, b, c, dtype=torch.float64) * ((2 * c + 1) / arriving) ** 0.5
    terms += [(first[a] + i, first[b] + j, made + k, block[i, j, k]) for i, j, k in block.nonzero().tolist()]
    weights += [(made + k, number, first[c] + k) for k in range(2 * c + 1)]  # a weight for each path and channel
    made += 2 * c + 1
coupled = sparse_product_infos(*zip(*terms, strict=True), in1_size=9, in2_size=9, out_size=made)
weighted = sparse_product_infos(*zip(*weights, strict=True), in1_size=made, in2_size=len(paths), out_size=9)
x, y, w = torch.randn(5, 9, 16), torch.randn(5, 9), torch.randn(len(paths), 16)  # [batch, rows, channels]
z = sparse_mul(sparse_vecsca(x, y, *coupled), w, *weighted)

# 2. The layer is the same product. Its infos are these terms, which a printed kernel runs faster.
irreps = "16x0e + 16x1o + 16x2e"
instructions = [(*path, "uvu", True) for path in paths]
layer = eqlayers.TensorProduct(irreps, "0e + 1o + 2e", irreps, instructions, internal_weights=False, layout="ir_mul")
same = layer(x.flatten(1), y, w.flatten()).view(5, 9, 16)
print(f"{len(paths)} paths, {len(terms)} terms: largest difference to TensorProduct: {(z - same).abs().max():.1e}")
print("\n".join(repr(layer.infos).splitlines()[:12]))

# 3. The named products differ in their channels only. Each against the float64 definition, in float32.
print("product     channels   error / norm")
for name, row in PRODUCTS.items():
    x, y, infos = random_product(name, dtype=torch.float32)
    exact = functional.sparse_product(name, x.double(), y.double(), *infos, backend="reference")
    z = functional.sparse_product(name, x, y, *infos)
    print(f"{name:11s} {row.channels:10s} {(z - exact).norm() / exact.norm():.1e}")

# 4. A product of your own is one line; its derivatives follow from the einsum.
row = register_product("scaled_matrix", channels="uv,u->uv")
print(f"registered {row.name}: gx = {row.grad1}, gy = {row.grad2}")
x, y, infos = random_product("scaled_matrix", requires_grad=True)
report = check_derivatives(lambda x, y: functional.sparse_product("scaled_matrix", x, y, *infos), [x, y], order=3)
print("derivatives, analytical against numerical (float64):")
print(report)

# 5. Which backend runs, and why not the others.
print(eqlayers.explain())
