"""Sparse products: term lists written by hand, the seven named products, one of your own, derivatives of any order."""

import torch
from e3nn import o3

import eqlayers
from eqlayers import functional
from eqlayers.info import sparse_product_infos
from eqlayers.ops import PRODUCTS, register_product
from eqlayers.testing import check_derivatives, random_product, rounding_bound

torch.manual_seed(0)

# 1. A product is a list of terms z[index_out] += scale * x[index1] * y[index2]. The cross product has six.
infos = sparse_product_infos(
    index1=[1, 2, 2, 0, 0, 1],
    index2=[2, 1, 0, 2, 1, 0],
    index_out=[0, 0, 1, 1, 2, 2],
    scale=[1.0, -1.0, 1.0, -1.0, 1.0, -1.0],
    in1_size=3,
    in2_size=3,
    out_size=3,
)  # the forward view, and the views of the two gradients
x, y = torch.randn(5, 3, 16), torch.randn(5, 3, 16)  # [batch, rows, channels]
z = functional.sparse_mul(x, y, *infos)
print(f"cross product: largest difference to torch: {(z - torch.linalg.cross(x, y, dim=1)).abs().max():.1e} (float32)")

# 2. Clebsch-Gordan coefficients are such a list too. All 2 x 1 -> 1 terms, over 16 channels at once, against e3nn:
block = o3.wigner_3j(2, 1, 1, dtype=torch.float64)
i, j, k = block.nonzero().unbind(1)
infos = sparse_product_infos(i, j, k, block[i, j, k] * 3**0.5, in1_size=5, in2_size=3, out_size=3)
x, y = torch.randn(5, 5, 16), torch.randn(5, 3, 16)
theirs = o3.ElementwiseTensorProduct("16x2e", "16x1o", ["1o"])
reference = theirs(x.transpose(1, 2).flatten(1), y.transpose(1, 2).flatten(1)).reshape(5, 16, 3).transpose(1, 2)
z = functional.sparse_mul(x, y, *infos)
print(f"2e x 1o -> 1o: largest difference to e3nn: {(z - reference).abs().max():.1e} (float32)")

# 3. The named products differ in their channels only. Each against the float64 definition, in units of its rounding.
print("product     channels   error / rounding bound")
for name, row in PRODUCTS.items():
    x, y, infos = random_product(name, dtype=torch.float32)
    exact = functional.sparse_product(name, x.double(), y.double(), *infos, backend="reference")
    bound = rounding_bound(name, x, y, infos[0], torch.float32)
    z = functional.sparse_product(name, x, y, *infos)
    print(f"{name:11s} {row.channels:10s} {((z - exact).abs() / bound).max():.2f}")

# 4. A product of your own is one line; its derivatives follow from the einsum.
row = register_product("scaled_matrix", channels="uv,u->uv")
print(f"registered {row.name}: gx = {row.grad1}, gy = {row.grad2}")
x, y, infos = random_product("scaled_matrix", requires_grad=True)
report = check_derivatives(lambda x, y: functional.sparse_product("scaled_matrix", x, y, *infos), [x, y], order=3)
print("derivatives, analytical against numerical (float64):")
print(report)

# 5. Which backend runs, and why not the others.
print(eqlayers.explain())
