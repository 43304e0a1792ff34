"""Linear maps of each group alone and of low rank: their matrices, normalisation, errors."""

from typing import Any

import pytest
import torch
from e3nn import o3

from eqlayers import Linear, to_ir_mul
from eqlayers.errors import ConfigError
from eqlayers.nn import IrrepwiseLinear, LowRankLinear

IRREPS = o3.Irreps("3x0e + 2x1o + 5x1o")
EPS = torch.finfo(torch.float64).eps


def test_every_group_has_its_own_matrix() -> None:
    layer = IrrepwiseLinear(IRREPS, [2, 3, 1]).double()
    x = torch.randn(4, IRREPS.dim, dtype=torch.float64)
    pieces = []
    for number, (columns, (mul, ir)) in enumerate(zip(IRREPS.slices(), IRREPS, strict=True)):
        matrix = layer.weight_view_for_instruction(number)
        assert matrix.shape == (mul, [2, 3, 1][number])
        block = x[:, columns].unflatten(-1, (mul, ir.dim))
        pieces.append(torch.einsum("nui,uw->nwi", block, matrix).flatten(-2) / mul**0.5)
    torch.testing.assert_close(layer(x), torch.cat(pieces, -1), rtol=0, atol=64 * EPS)
    assert IrrepwiseLinear(IRREPS).irreps_out == IRREPS
    assert IrrepwiseLinear(IRREPS, 4).irreps_out == o3.Irreps("4x0e + 4x1o + 4x1o")


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("normalization", ["element", "path"])
def test_low_rank_is_a_linear_map_of_such_matrices(layout: str, normalization: str) -> None:
    """Groups of different sizes arrive at one group, which tells the coefficients apart."""
    out, rank = "2x0e + 4x1o", 3
    kind: dict[str, Any] = {"biases": True, "path_normalization": normalization, "layout": layout}
    layer = LowRankLinear(IRREPS, out, rank, **kind).double()
    torch.nn.init.normal_(layer.up.bias)
    dense = Linear(IRREPS, out, **kind).double()
    products = [a @ b / rank**0.5 for a, b in zip(layer.down.weight_views(), layer.up.weight_views(), strict=True)]
    weight = torch.cat([product.flatten() for product in products])
    x = torch.randn(4, IRREPS.dim, dtype=torch.float64)
    x = to_ir_mul(x, IRREPS) if layout == "ir_mul" else x
    wanted = dense(x, weight, layer.up.bias)
    torch.testing.assert_close(layer(x), wanted, rtol=0, atol=64 * EPS * float(wanted.detach().abs().max()))


def test_low_rank_with_chosen_paths_and_without_any() -> None:
    layer = LowRankLinear(IRREPS, "4x1o", 2, instructions=[(2, 0)])
    assert layer.num_paths == 1
    assert [p.numel() for p in layer.parameters()] == [10, 8]
    x = torch.randn(3, IRREPS.dim)
    moved = x.clone()
    moved[:, :9] += 1
    assert torch.equal(layer(x), layer(moved))
    assert torch.equal(LowRankLinear("2x0e", "3x1o", 1)(torch.ones(4, 2)), torch.zeros(4, 9))
    text = "3x0e+2x1o+5x1o -> 4x1o | 1 paths of rank 2 | 18 weights | mul_ir, backend torch"
    assert repr(layer).startswith(f"LowRankLinear(\n  {text}")


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match=r"channels_out must be a number, .*, 3 in all, got 2\. Give 3"):
        IrrepwiseLinear(IRREPS, [1, 2])
    with pytest.raises(ConfigError, match="instructions must"):
        IrrepwiseLinear(IRREPS, instructions=[(0, 0)])
