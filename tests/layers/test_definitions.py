"""Every family of layers equals its definition, which is a few lines of plain torch in float64."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from e3nn.o3 import Irreps
from torch import Tensor

import eqlayers.functional as F
import eqlayers.layers.definitions as of
import eqlayers.nn as nn
from eqlayers.layers.contraction.basis import dense, paths
from eqlayers.testing import random_orthogonal

pytestmark = pytest.mark.kernels  # layers as users get them
FOLDERS = (path.parent.name for path in Path(nn.__file__).parent.glob("layers/*/__init__.py"))
FAMILIES = sorted(name for name in FOLDERS if name != "base")
MIXED = Irreps("3x0e + 2x1o + 1x2e + 2x0o")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found: Tensor, wanted: Tensor, roundings: float = 1e3) -> None:
    size = max(1.0, float(wanted.abs().max()))
    assert float((found - wanted).detach().abs().max()) <= roundings * torch.finfo(torch.float64).eps * size


def edges() -> tuple[Tensor, Tensor]:
    return torch.tensor([0, 1, 2, 3, 0, 2]), torch.tensor([1, 1, 0, 2, 2, 2])


def test_harmonics() -> None:
    vectors = torch.nn.functional.normalize(random(6, 3), dim=1)
    layer = nn.SphericalHarmonics(list(range(5)), normalize=False, normalization="component")
    wanted = [of.spherical_harmonics(degree, vectors) for degree in range(5)]
    close(layer(vectors), torch.cat(wanted, 1))


def test_rotation() -> None:
    x, rotation = random(4, MIXED.dim), random_orthogonal(3, 1).double()
    close(nn.RotateFeatures(MIXED)(x, rotation.expand(4, 3, 3)), of.rotate(x, MIXED, rotation), 1e4)


def test_norm() -> None:
    x = random(4, MIXED.dim)
    close(nn.Norm(MIXED).double()(x), of.norm(x, MIXED))
    close(nn.LayerNorm(MIXED, affine=False).double()(x), of.layer_norm(x, MIXED, 1e-5))
    close(nn.RMSNorm(MIXED, affine=False).double()(x), of.layer_norm(x, MIXED, 1e-5, centred=False))


def test_gate() -> None:
    gated = Irreps("2x1o + 1x2e")
    layer = nn.Gate("4x0e", [torch.nn.functional.silu], "3x0e", [torch.sigmoid], gated).double()
    x = random(5, layer.irreps_in.dim)
    close(layer(x), of.gate(x, 4, gated, torch.nn.functional.silu, torch.sigmoid), 1e4)


def test_radial() -> None:
    r = torch.linspace(0.1, 6.0, 50, dtype=torch.float64)
    close(nn.BesselBasis(8, 5.0, 6).double()(r), of.bessel(r, 5.0, 8) * of.polynomial_cutoff(r, 5.0, 6)[:, None])
    close(nn.PolynomialCutoff(5.0, 6).double()(r), of.polynomial_cutoff(r, 5.0, 6))
    close(nn.CosineCutoff(5.0).double()(r), of.cosine_cutoff(r, 5.0))

    def function(r: Tensor) -> Tensor:
        return torch.stack([r.sin(), (2 * r).cos() * r], 1)

    r = torch.linspace(0.0, 3.99, 57, dtype=torch.float64)
    close(nn.RadialTable(function, 4.0, 16, open_end=True)(r).weights(), of.cubic_spline(function, r, 4.0, 16), 1e4)


def test_attention() -> None:
    src, dst = edges()
    logits, envelope, values, irreps = random(6, 2), random(6).abs(), random(6, 14), Irreps("4x0e + 2x1o + 4x0o")
    weights = of.edge_softmax(logits, dst, 4, envelope, 0.3)
    close(F.edge_softmax(logits, torch.stack([src, dst]), 4, envelope, 0.3), weights)
    found = F.attention_aggregate(values, logits, irreps, 2, torch.stack([src, dst]), 4, envelope)
    weights = of.edge_softmax(logits, dst, 4, envelope)
    close(found, of.aggregate(values, weights, irreps, dst, 4))


def test_reshape() -> None:
    x = random(4, MIXED.dim)
    close(
        nn.Sort(MIXED).double()(x),
        of.rearranged(x, MIXED, sorted(range(4), key=lambda i: MIXED[i].ir)),
    )
    close(nn.ExtractIr(MIXED, "1o").double()(x), of.rearranged(x, MIXED, [1]))


def test_so2() -> None:
    irreps_out = Irreps("2x0e + 3x1o + 1x1e + 2x2e")
    layer = nn.SO2Linear(MIXED, irreps_out).double()
    x, matrices = random(4, MIXED.dim), [view[0].detach() for _, view in layer.weight_views()]
    close(layer(x), of.so2_linear(x, MIXED, irreps_out, matrices))


def test_linear() -> None:
    irreps_out = Irreps("2x0e + 3x1o + 1x0e")
    layer = nn.Linear(MIXED, irreps_out).double()
    weights = {(i.i_in, i.i_out): view.detach() for _, i, view in layer.weight_views(yield_instruction=True)}
    x = random(4, MIXED.dim)
    close(layer(x), of.linear(x, MIXED, irreps_out, weights))


def test_pointwise() -> None:
    def function(x: Any, y: Any) -> list[Any]:
        return [one * (1 + y[0] * y[0]) for one in x]

    x, y = random(4, 9), random(4, 3, seed=1)
    layer = nn.FormulaLayer(function, {"x": "3x1o", "y": "3x0e"}, "3x1o")
    close(layer(x, y), of.row_by_row(function, 3, x, y))


def test_contraction() -> None:
    layer = nn.SymmetricContraction("4x0e + 4x1o", "4x1o", correlation=3, num_elements=2).double()
    own, species, x = layer.contractions[0], torch.tensor([0, 1, 1]), random(3, 4, 4)
    tensors = [torch.from_numpy(dense(paths("0e+1o", (1, -1), power, False), 4, power)) for power in (1, 2, 3)]
    weights = [own.weights[1], own.weights[0], own.weights_max]
    wanted = of.contraction(x, tensors, [weight.detach()[species] for weight in weights])
    close(layer(x, species), wanted.flatten(1))


ALL_MODES = [
    (0, 0, 0, "uvw", True),
    (1, 1, 1, "uvu", True),
    (1, 1, 4, "uvu", False),
    (2, 1, 2, "uvv", True),
    (0, 0, 0, "uuw", True),
    (1, 3, 1, "uuu", True),
    (1, 3, 1, "uuu", False),
    (1, 1, 3, "uvuv", False),
    (1, 3, 5, "uvu<v", False),
    (1, 3, 0, "u<vw", True),
]


@pytest.mark.parametrize("shared", [True, False])
def test_tensor_product(shared: bool) -> None:
    first, second = Irreps("3x0e + 2x1o + 1x1o"), Irreps("3x0e + 2x1o + 1x0e + 2x1o")
    out = Irreps("3x0e + 2x0e + 2x0e + 4x1e + 2x1e + 1x0e")
    layer = nn.TensorProduct(first, second, out, ALL_MODES, shared_weights=shared, internal_weights=False).double()
    x, y = random(4, first.dim), random(4, second.dim, seed=1)
    w = random(layer.weight_numel, seed=2) if shared else random(4, layer.weight_numel, seed=2)
    close(layer(x, y, w), of.tensor_product(layer.infos, x, y, w))


def test_convolution() -> None:
    paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 0, "uvw", True)]
    layer = nn.TensorProductConv("3x0e + 2x1o", "0e + 1o", "3x0e + 3x1o", paths, shared_weights=False).double()
    x, y, w, index = random(4, 9), random(6, 4), random(6, layer.weight_numel), torch.stack(edges())
    close(layer(x, y, w, index, 4), of.convolution(layer.infos, x, y, w, index, 4))


def test_basis() -> None:
    x = random(4, MIXED.dim)
    layer = nn.ChangeOfBasis(MIXED, "polar_z")
    close(layer(x), of.change_of_basis(x, MIXED, {ir: layer.matrix(ir) for _, ir in MIXED}))
    tensor = random(4, 3, 3)
    close(nn.CartesianTensor("ij").double()(tensor), of.irreps_of_rank_2(tensor))


def test_dropout() -> None:
    x, batch = random(4, MIXED.dim), torch.tensor([0, 0, 1, 1])
    for layer, wanted in (
        (lambda: nn.Dropout(MIXED, 0.3)(x), lambda: of.dropout(x, MIXED, 0.3)),
        (lambda: nn.DropPath(0.5)(x, batch), lambda: of.drop_path(x, 0.5, batch, 2)),
    ):
        results = [run() for seed in range(4) for run in (layer, wanted) if torch.manual_seed(seed)]
        for one, other in zip(results[::2], results[1::2], strict=True):
            close(one, other)
        assert any(bool((one == 0).any()) for one in results)


def test_every_definition_is_compared_here_and_short() -> None:
    text = Path(__file__).read_text()
    assert [name for name in FAMILIES if f"def test_{name}(" not in text] == []
    functions = [node for node in ast.parse(Path(of.__file__).read_text()).body if isinstance(node, ast.FunctionDef)]
    lines = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: count for name, count in lines.items() if count > 45} == {}
