"""Functions beside the layers: the numbers of the layers, derivatives, one graph for compilers, errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers import functional as F
from eqlayers import nn
from eqlayers.errors import ConfigError, IrrepsError, ShapeError
from tests.cases import default_dtype
from tests.each import each, refused

IRREPS, OUT = o3.Irreps("2x0e + 1x0o + 2x1o + 1x2e"), o3.Irreps("1x0e + 2x1o")
EDGES, CUTOFF = torch.tensor([[0, 1, 2, 3], [2, 2, 0, 0]]), 4.0


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def lengths() -> Tensor:
    """On both sides of the cutoff, none where a bump begins or ends."""
    return torch.tensor([0.3, 1.234, 2.9, 3.7, 4.5], dtype=torch.float64)


SIZES = {"matrix": (3, 3), "quaternion": (4,), "angles": (3,), "blocks": (35,)}
ROTATION = {kind: normal(2, *shape) for kind, shape in SIZES.items()}
ROTATION["matrix"] = torch.linalg.qr(ROTATION["matrix"])[0].contiguous()
SO2 = {parity: nn.SO2Linear(IRREPS, OUT, 1, parity=parity) for parity in ("o3", "so3")}

#: Name -> the function, its layer, and operands.
ROWS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "edge_frame": (lambda v: F.edge_frame(v, 2), nn.EdgeFrame(2), (normal(3, 3),)),
    "polynomial_cutoff": (lambda r: F.polynomial_cutoff(r), nn.PolynomialCutoff(), (lengths(),)),
    "polynomial_cutoff of a power": (
        lambda r: F.polynomial_cutoff(r, CUTOFF, 2.5), nn.PolynomialCutoff(CUTOFF, 2.5), (lengths(),)),
    "cosine_cutoff": (lambda r: F.cosine_cutoff(r, CUTOFF), nn.CosineCutoff(CUTOFF), (lengths(),)),
    "smooth_cutoff": (lambda r: F.smooth_cutoff(r, CUTOFF, 1.0), nn.SmoothCutoff(CUTOFF, 1.0), (lengths(),)),
    "attention_aggregate": (
        lambda v, s: F.attention_aggregate(v, s, "4x0e + 2x1o", 2, EDGES, 4),
        lambda v, s: nn.AttentionAggregate("4x0e + 2x1o", 2).double()(v, s, EDGES, 4), (normal(4, 10), normal(4, 2))),
    "dropout": (lambda x: F.dropout(x, IRREPS, 0.4), nn.Dropout(IRREPS, 0.4), (normal(3, 2, IRREPS.dim),)),
    "drop_path": (
        lambda x: F.drop_path(x, 0.4, torch.tensor([0, 0, 1]), num_graphs=2),
        lambda x: nn.DropPath(0.4)(x, torch.tensor([0, 0, 1])), (normal(3, 2),)),
}  # fmt: skip
ROWS |= {
    f"wigner_D by {kind}, {layout}": (
        lambda R, kind=kind, layout=layout: F.wigner_D(IRREPS, R, kind, layout=layout),
        nn.WignerD(IRREPS, kind, layout=layout),
        (ROTATION[kind],),
    )
    for kind, layout in (("matrix", "mul_ir"), ("quaternion", "ir_mul"), ("angles", "mul_ir"))
}
ROWS |= {
    f"rotate by {kind}, {layout}": (
        lambda x, R, kind=kind, layout=layout: F.rotate(x, IRREPS, R, kind, inverse=kind == "blocks", layout=layout),
        nn.RotateFeatures(IRREPS, kind, inverse=kind == "blocks", layout=layout),
        (normal(2, IRREPS.dim), ROTATION[kind]),
    )
    for kind, layout in (("matrix", "ir_mul"), ("quaternion", "mul_ir"), ("angles", "mul_ir"), ("blocks", "ir_mul"))
}
ROWS |= {
    f"so2_linear, {parity}": (
        lambda x, w, s, parity=parity: F.so2_linear(x, IRREPS, OUT, w, 1, scales=s, parity=parity),
        lambda x, w, s, layer=layer: layer(x, s, w),
        (normal(3, IRREPS.dim), normal(layer.weight_numel), normal(3, layer.num_scales)),
    )
    for parity, layer in SO2.items()
}
AFFINE = nn.LayerNorm(IRREPS), nn.RMSNorm(IRREPS, "all", layout="ir_mul")
ROWS |= {
    "norm": (lambda x: F.norm(x, IRREPS), nn.Norm(IRREPS), (normal(3, IRREPS.dim),)),
    "norm, squared": (
        lambda x: F.norm(x, "1o + 2x1o", True, layout="ir_mul"), nn.Norm("1o + 2x1o", True, layout="ir_mul"),
        (normal(3, 9),)),
    "layer_norm": (
        lambda x: F.layer_norm(x, IRREPS, normalization="norm"),
        nn.LayerNorm(IRREPS, affine=False, normalization="norm"), (normal(3, IRREPS.dim),)),
    "layer_norm, affine": (
        lambda x, w, b: F.layer_norm(x, IRREPS, w, b),
        lambda x, w, b: torch.func.functional_call(AFFINE[0], {"weight": w, "bias": b}, (x,)),
        (normal(3, IRREPS.dim), normal(6), normal(2))),
    "rms_norm": (
        lambda x: F.rms_norm(x, IRREPS), nn.RMSNorm(IRREPS, affine=False), (normal(3, IRREPS.dim),)),
    "rms_norm, affine": (
        lambda x, w: F.rms_norm(x, IRREPS, w, "all", layout="ir_mul"),
        lambda x, w: torch.func.functional_call(AFFINE[1], {"weight": w}, (x,)),
        (normal(3, IRREPS.dim), normal(6))),
}  # fmt: skip
#: Name of a basis -> its layer, and what it may be called with.
BASES: dict[str, tuple[type[nn.RadialBasis], dict[str, Any]]] = {
    "bessel": (nn.BesselBasis, {}),
    "chebyshev": (nn.ChebyshevBasis, {"start": 0.1}),
    "gaussian": (nn.GaussianBasis, {"start": -0.5, "inside": False}),
    "cosine": (nn.CosineBasis, {"start": 0.2}),
    "smooth_finite": (nn.SmoothFiniteBasis, {"inside": False}),
    "fourier": (nn.FourierBasis, {"start": 0.2}),
}


def basis_row(name: str, kind: type[nn.RadialBasis], more: dict[str, Any]) -> tuple[Any, ...]:
    """With the layer's envelope: Bessel functions have none without."""
    layer = kind(3, CUTOFF, 6, **more)

    def function(r: Tensor) -> Tensor:
        return F.radial_basis(r, name, 3, CUTOFF, **more) * F.polynomial_cutoff(r, CUTOFF)[..., None]

    return function, layer, (lengths().clamp(max=CUTOFF),)


ROWS |= {f"radial_basis, {name}": basis_row(name, *row) for name, row in BASES.items()}


@pytest.fixture(autouse=True)
def _float64():
    with default_dtype(torch.float64):
        yield


def call(function: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> Tensor:
    torch.manual_seed(3)  # of dropout
    return function(*operands)


@pytest.mark.kernels
@each("name", ROWS)
def test_numbers_are_those_of_the_layer(name: str) -> None:
    function, layer, operands = ROWS[name]
    results, wanted = call(function, operands), call(layer, operands)
    # the layer's norms are sums of at most five squares in another order; its Bessel functions come from one formula,
    # whose envelope keeps the digits near the cutoff, where the function subtracts numbers a thousand times as large
    bound = {"norm": 8, "radial_basis, bessel": 1000}.get(name if "bessel" in name else name.split(",")[0], 0)
    bound *= torch.finfo(torch.float64).eps
    torch.testing.assert_close(results, wanted, rtol=bound, atol=0)
    assert wanted.abs().amax() > 0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ROWS)
def test_derivatives(name: str) -> None:
    """First derivatives of the function; further orders are tested with the layers."""
    function, _, operands = ROWS[name]
    if name.startswith(("wigner_D by matrix", "rotate by matrix")):
        turn = ROTATION["matrix"]  # derivatives are right along rotations

        def along(*tensors: Tensor) -> Tensor:
            *x, v = tensors
            zero = torch.zeros_like(v[..., 0])
            rows = [zero, -v[..., 2], v[..., 1], v[..., 2], zero, -v[..., 0], -v[..., 1], v[..., 0], zero]
            return function(*x, torch.matrix_exp(torch.stack(rows, -1).unflatten(-1, (3, 3))) @ turn)

        checked, operands = along, (*operands[:-1], 0.1 * normal(2, 3))
    else:
        checked = function
    inputs = [one.clone().requires_grad_() for one in operands]
    assert torch.autograd.gradcheck(lambda *tensors: call(checked, tensors), inputs, atol=1e-6)


@pytest.mark.kernels
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [*(row for row in ROWS if "drop" not in row), "dropout"])
def test_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph serves any number of rows; constants of irreps are constants of the graph."""
    if torch.__version__ < "2.7":  # whose torch.compile has no constants but texts and numbers
        for word in ("IRREPS", "OUT"):
            monkeypatch.setitem(globals(), word, str(globals()[word]))
    function, _, operands = ROWS[name]
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    torch.testing.assert_close(call(compiled, operands), call(function, operands), rtol=0, atol=1e-14)


@pytest.mark.kernels
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: F.edge_frame(x[:, :3], n),
        lambda x, n: F.wigner_blocks(x[:, :4], n),
        lambda x, n: F.spherical_harmonics(n, x[:, :3], True),
        lambda x, n: F.so2_linear(x, "2x0e + 2x3o", "2x3o", x.new_ones(8 + 4 * n), n),
        lambda x, n: F.attention_aggregate(x[:4, :12], x[:4, :n], "12x0e", n, EDGES, 4),
        lambda x, n: F.radial_basis(x, "chebyshev", n),
    ],
)
def test_numbers_that_change_are_constants_of_graphs(function: Callable[[Tensor, int], Tensor]) -> None:
    """A compiler makes symbols of them, which formulas and programs cannot have."""
    for dynamic in (None, True):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="eager")
        for number in (2, 3, 1):
            x = normal(5, 16)
            torch.testing.assert_close(compiled(x, number), function(x, number), rtol=0, atol=1e-14)


def test_nothing_is_left_out_of_what_is_not_trained() -> None:
    x = normal(4, IRREPS.dim)
    assert F.dropout(x, IRREPS, 0.9, training=False) is x
    assert F.drop_path(x, 0.9, training=False) is x
    torch.manual_seed(0)
    left = F.dropout(x, IRREPS, layout="ir_mul")
    torch.manual_seed(0)
    assert torch.equal(left, nn.Dropout(IRREPS, 0.5, layout="ir_mul")(x))


@pytest.mark.kernels
def test_a_sink_and_an_envelope_are_those_of_the_softmax() -> None:
    values, logits, envelope, sink = normal(4, 10), normal(4, 2), torch.rand(4), normal(2)
    layer = nn.AttentionAggregate("4x0e + 2x1o", 2, layout="ir_mul").double()
    with torch.no_grad():
        layer.sink.copy_(sink)
    results = F.attention_aggregate(values, logits, "4x0e + 2x1o", 2, EDGES, 4, envelope, sink, layout="ir_mul")
    assert torch.equal(results, layer(values, logits, EDGES, 4, envelope))


test_errors = refused("error, message, call", [
        (ShapeError, r"rotation must be \[\.\.\., 4\], of the kind 'quaternion', got \[3, 3\]. Name the kind",
            lambda: F.rotate(torch.ones(3), "1o", torch.eye(3), "quaternion")),
        (ConfigError, "start must be below the cutoff, 5, got 6", lambda: F.smooth_cutoff(torch.ones(1), 5, 6)),
        (ConfigError, "inside must be True for basis='bessel', got False",
            lambda: F.radial_basis(torch.ones(1), inside=False)),
        (ConfigError, "num_basis must be an integer, at least 2, got 1",
            lambda: F.radial_basis(torch.ones(1), "cosine", 1, inside=False)),
        (IrrepsError, "irreps must have multiplicities that 2 heads divide, got 3x0e", lambda: F.attention_aggregate(
            torch.ones(4, 3), torch.ones(4, 2), "3x0e", 2, EDGES, 4)),
    ])  # fmt: skip
