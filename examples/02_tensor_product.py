"""TensorProduct beside e3nn's: the same arguments, numbers, derivatives and state dicts."""

import torch
from e3nn import o3

import eqlayers as eq
from eqlayers.testing import check_equivariance


def difference(a: torch.Tensor, b: torch.Tensor) -> str:
    return f"{(a - b).abs().max() / b.abs().max():.1e} of the largest ({str(a.dtype).removeprefix('torch.')})"


torch.manual_seed(0)
irreps, irreps_sh = o3.Irreps("32x0e + 32x1o + 32x2e"), o3.Irreps.spherical_harmonics(2)

# 1. A message of an equivariant network: features times spherical harmonics, channel by channel ('uvu'), with weights
# per edge. `paths` lists the instructions, as in e3nn.
args = (irreps, irreps_sh, *eq.paths(irreps, irreps_sh, irreps_out=irreps))
theirs = o3.TensorProduct(*args, shared_weights=False)
ours = eq.TensorProduct(*args, shared_weights=False)
print(ours)
x, vectors = torch.randn(100, irreps.dim), torch.randn(100, 3)
weight = torch.randn(100, ours.weight_numel)
sh = o3.spherical_harmonics(irreps_sh, vectors, True, "component")
print("values, largest difference to e3nn:", difference(ours(x, sh, weight), theirs(x, sh, weight)))

# 2. Forces in a loss need second derivatives: the gradient of a force with respect to the weights.
results = []
for product in (ours, theirs):
    r, w = vectors.clone().requires_grad_(), weight.clone().requires_grad_()
    energy = product(x, o3.spherical_harmonics(irreps_sh, r, True, "component"), w).square().mean()
    (force,) = torch.autograd.grad(energy, r, create_graph=True)
    (second,) = torch.autograd.grad(force.square().sum(), w)
    results.append((force.detach(), second))
print("forces, largest difference to e3nn:", difference(results[0][0], results[1][0]))
print("their derivatives by the weights:", difference(results[0][1], results[1][1]))

# 3. State dicts are exchanged strictly, both ways.
theirs = o3.FullyConnectedTensorProduct("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o")
ours = eq.FullyConnectedTensorProduct("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o")
ours.load_state_dict(theirs.state_dict())
x, y = torch.randn(10, 32), torch.randn(10, 4)
print("with e3nn's weights, largest difference to e3nn:", difference(ours(x, y), theirs(x, y)))
with torch.no_grad():
    ours.weight.normal_()
theirs.load_state_dict(ours.state_dict())
print("e3nn with our weights, largest difference:", difference(theirs(x, y), ours(x, y)))

# 4. The layout with the channels last is the fast one; it is a permutation of the features.
fast = eq.FullyConnectedTensorProduct("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o", layout="ir_mul")
fast.load_state_dict(theirs.state_dict())
turned = eq.to_mul_ir(fast(eq.to_ir_mul(x, ours.irreps_in1), y), ours.irreps_out)
print("layout ir_mul, largest difference to e3nn:", difference(turned, theirs(x, y)))

# 5. Rotations and reflections, in float64, where constants are exact to the last bits.
print("equivariance, in float64:", check_equivariance(ours), sep="\n")
