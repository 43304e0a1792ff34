"""Linear and SO3Scale: the maps of one feature that commute with every rotation."""

import torch
from e3nn import o3

import eqlayers as eq


def difference(a: torch.Tensor, b: torch.Tensor) -> str:
    return f"{(a - b).abs().max():.1e} ({str(a.dtype).removeprefix('torch.')})"


torch.manual_seed(0)
irreps = o3.Irreps("16x0e + 8x1o + 4x2e")
x = torch.randn(20, irreps.dim)

# 1. Linear mixes the copies of equal irreps; arguments, weights and state dict are e3nn's.
theirs = o3.Linear(irreps, "8x0e + 8x1o + 3x1e", biases=True)
torch.nn.init.normal_(theirs.bias)
ours = eq.Linear(irreps, "8x0e + 8x1o + 3x1e", biases=True)
ours.load_state_dict(theirs.state_dict())
print(ours)
print("Linear, largest difference to e3nn:", difference(ours(x), theirs(x)))
print(
    "3x1e is reached by no path:",
    ours(x)[:, -9:].abs().max().item(),
    "with output_mask",
    ours.output_mask[-9:].tolist(),
)

# 2. A further channel axis: [..., f_in, irreps] to [..., f_out, irreps].
theirs, ours = (kind(irreps, irreps, f_in=3, f_out=2) for kind in (o3.Linear, eq.Linear))
ours.load_state_dict(theirs.state_dict())
stacked = torch.randn(20, 3, irreps.dim)
print("Linear with f_in and f_out, largest difference to e3nn:", difference(ours(stacked), theirs(stacked)))

# 3. SO3Scale multiplies every irrep copy by one scalar. External scalars make a gate: e3nn's is an elementwise product.
scales = torch.randn(20, irreps.num_irreps)
gate = eq.SO3Scale(irreps, "external")
product = o3.ElementwiseTensorProduct(irreps, f"{irreps.num_irreps}x0e")
print(gate)
print("SO3Scale, external, largest difference to e3nn:", difference(gate(x, scales), product(x, scales)))

# 4. A learned scale is a parameter per copy, starting at 1; a fixed one is a constant, kept in float64.
learned = eq.SO3Scale(irreps)
with torch.no_grad():
    learned.weight.copy_(scales[0])
fixed = eq.SO3Scale(irreps, "fixed", scales[0].tolist())
print("learned against fixed, largest difference:", difference(learned(x).detach(), fixed(x)))

# 5. With normalization='norm' features of unit component variance become features of unit mean squared norm.
normed = eq.SO3Scale(irreps, "fixed", 1.0, normalization="norm")(torch.randn(50_000, irreps.dim))
squares = [
    normed[:, s].reshape(-1, mul, ir.dim).square().sum(-1).mean().item()
    for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)
]
print("mean squared norms of 0e, 1o, 2e copies:", [round(v, 2) for v in squares])
