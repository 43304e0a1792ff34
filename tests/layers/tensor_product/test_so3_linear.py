"""Features times harmonics, and dot products: their definitions, normalisation, layouts, errors."""

from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers import to_ir_mul, to_mul_ir
from eqlayers.errors import IrrepsError
from eqlayers.nn import SO3Linear, TensorDot
from tests.each import refused

NODE, EDGE, OUT = o3.Irreps("4x0e + 4x1o + 4x1e"), o3.Irreps("0e + 1o + 2e"), o3.Irreps("4x1o + 4x0e + 4x2e")
EPS = torch.finfo(torch.float64).eps


def blocks(x: Tensor, irreps: o3.Irreps) -> list[Tensor]:
    return [x[..., s].unflatten(-1, (mul, ir.dim)) for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)]


def defined(layer: SO3Linear, x: Tensor, y: Tensor) -> Tensor:
    """Equitorch's: Clebsch-Gordan coefficients with rows of norm 1, by the root of the paths (and of the channels)."""
    mixes = layer.feature_mode == "uv"
    first, second, out = (blocks(a, i) for a, i in ((x, NODE), (y, EDGE), (x.new_zeros(len(x), OUT.dim), OUT)))
    arriving = [sum(ins.i_out == k for ins in layer.instructions) for k in range(len(OUT))]
    for ins, weight in zip(layer.instructions, layer.weight_views(), strict=True):
        i, j, k = ins[:3]
        c = o3.wigner_3j(NODE[i].ir.l, EDGE[j].ir.l, OUT[k].ir.l, dtype=x.dtype) * OUT[k].ir.dim ** 0.5
        z = torch.einsum("abc,nua,nb->nuc", c, first[i], second[j][:, 0])
        z = torch.einsum("nuc,uw->nwc", z, weight[:, 0]) / NODE[i].mul ** 0.5 if mixes else z * weight
        out[k] = out[k] + z / arriving[k] ** 0.5
    return torch.cat([block.flatten(-2) for block in out], -1)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("mode", ["uu", "uv"])
def test_products_are_those_of_equitorch(mode: str, layout: str) -> None:
    layer = SO3Linear(NODE, EDGE, OUT, mode, layout=layout).double()
    assert len(layer.instructions) == 9
    x, y = (torch.randn(5, i.dim, dtype=torch.float64) for i in (NODE, EDGE))
    given = x if layout == "mul_ir" else to_ir_mul(x, NODE)
    found = layer(given, y)
    found = found if layout == "mul_ir" else to_mul_ir(found, OUT)
    torch.testing.assert_close(found, defined(layer, x, y), rtol=0, atol=200 * EPS)


def test_chosen_paths_and_weights_of_every_edge() -> None:
    paths = [(1, 1, 1), (0, 1, 0)]
    layer = SO3Linear(NODE, EDGE, OUT, "uu", paths, internal_weights=False, shared_weights=False).double()
    assert [tuple(ins[:3]) for ins in layer.instructions] == paths
    x, y = (torch.randn(5, i.dim, dtype=torch.float64) for i in (NODE, EDGE))
    weight = torch.randn(5, layer.weight_numel, dtype=torch.float64)
    own = SO3Linear(NODE, EDGE, OUT, "uu", paths).double()
    for row in range(5):
        wanted = own(x[row], y[row], weight[row])
        torch.testing.assert_close(layer(x, y, weight)[row], wanted, rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("mode", ["uu", "uv"])
def test_dot_products(mode: str, scaled: bool, layout: str) -> None:
    first = o3.Irreps("3x2e + 2x0o + 4x1o")
    second = first if mode == "uu" else o3.Irreps("2x2e + 5x0o + 1x1o")
    layer = TensorDot(first, second, mode, scaled, layout=layout)
    x, y = (torch.randn(2, 3, i.dim, dtype=torch.float64) for i in (first, second))
    spec = "...um,...um->...u" if mode == "uu" else "...um,...vm->...uv"
    parts = []
    for a, b, (_, ir) in zip(blocks(x, first), blocks(y, second), first, strict=True):
        z = torch.einsum(spec, a, b) * (ir.dim**-0.5 if scaled else 1.0)
        parts.append(z if mode == "uu" else z.flatten(-2))
    wanted = torch.cat(parts, -1)
    given = (x, y) if layout == "mul_ir" else (to_ir_mul(x, first), to_ir_mul(y, second))
    found = layer(*given)
    assert layer.irreps_out.simplify() == o3.Irreps(f"{wanted.shape[-1]}x0e")
    torch.testing.assert_close(found, wanted, rtol=0, atol=64 * EPS)


BAD: list[tuple[type[Exception], str, Any]] = [
    (IrrepsError, r"irreps_out must have the multiplicities of irreps_in", lambda: SO3Linear("4x0e", "0e", "3x0e")),
    (IrrepsError, r"some irrep of irreps_out must lie in irreps_in", lambda: SO3Linear("4x0e", "0e", "4x1o")),
    (IrrepsError, r"must be groups of equal irreps with feature_mode='uv'", lambda: TensorDot("1o", "1e", "uv")),
    (IrrepsError, r"must be equal irreps with feature_mode='uu'", lambda: TensorDot("2x1o", "3x1o")),
]


test_bad_input = refused("error, message, call", BAD)
