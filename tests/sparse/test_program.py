"""Product layers by their infos: the numbers of the layer and of e3nn, derivatives, any rows, dtypes and compilers."""

import pickle
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import eqlayers as eq
from eqlayers import nn
from eqlayers.core.backends import BACKENDS
from eqlayers.core.forms.request import Request
from eqlayers.irreps.instructions import MODES
from eqlayers.sparse import ProgramInfos, SparseProductInfo
from eqlayers.sparse.function import WAYS

EPS = torch.finfo(torch.float64).eps


def product(mode: str, layout: str, has_weight: bool = True, **kwargs: Any) -> eq.TensorProduct:
    """Paths of one mode: two of equal channels into one block, others into blocks of other lengths."""
    out = {"uvu": 3, "uvv": 3, "uuu": 3, "uvuv": 9, "uvu<v": 3}.get(mode, 5)
    rows = [(0, 0, 0, mode, has_weight), (1, 1, 0, mode, has_weight), (1, 0, 2, mode, has_weight)]
    irreps = "3x1o + 3x2e", "3x1o + 3x2e", f"{out}x1e + 2x0o + {out}x2o"
    return eq.TensorProduct(*irreps, rows, layout=layout, **kwargs)


def operands(layer: Any, rows: tuple[int, ...] = (4,), shared: bool = True) -> list[Tensor]:
    shapes = (
        (*rows, layer.irreps_in1.dim),
        (*rows, layer.irreps_in2.dim),
        (*(() if shared else rows), layer.weight_numel),
    )
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def orders(function: Any, given: list[Tensor]) -> list[Tensor]:
    """The value, the gradients, and the gradients of a function of them."""
    z = function(*given)
    first = torch.autograd.grad(z, given, torch.linspace(-1, 1, z.numel()).double().view_as(z), create_graph=True)
    moved = sum((grad.sin() * torch.linspace(1, 2, grad.numel()).double().view_as(grad)).sum() for grad in first)
    return [z, *first, *torch.autograd.grad(moved, given)]


def close(got: list[Tensor], want: list[Tensor]) -> None:
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        bound = 400 * EPS * max(1.0, float(b.detach().abs().max()))
        assert a.shape == b.shape
        assert (a - b).abs().max() <= bound, f"result {number} is off by {(a - b).abs().max():.1e}"


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_to_second_order(mode: str, layout: str) -> None:
    """Against backend torch, whose arithmetic is another, for weights of all rows and weights of each."""
    for shared in (True, False):
        kinds: dict[str, Any] = {"shared_weights": shared, "internal_weights": False, "layout": layout}
        made = {name: product(mode, backend=name, **kinds) for name in (None, "torch", "sparse", "reference")}
        given = operands(made["torch"], shared=shared)
        want = orders(made["torch"], given)
        for layer in (made["sparse"], made["reference"], made[None].infos):
            close(orders(layer, given), want)


@pytest.mark.parametrize("mode", ["uvw", "uvu", "uuu", "uuw", "u<vw"])
def test_gradients_equal_finite_differences(mode: str) -> None:
    layer = product(mode, "mul_ir", internal_weights=False)
    given = operands(layer, (2,))
    assert gradcheck(layer.infos, given, fast_mode=True)
    assert gradgradcheck(layer.infos, given, fast_mode=True)


@pytest.mark.parametrize("mode", ["uvu", "uvv", "uuu", "uvuv", "uvu<v"])
def test_paths_without_weights(mode: str) -> None:
    for layout in ("mul_ir", "ir_mul"):
        layer = product(mode, layout, has_weight=False, backend="torch")
        x, y, w = operands(layer)
        assert all(group.weights is None for group in layer.infos)
        close([layer.infos(x, y), layer.infos(x, y, w)], [layer(x, y)] * 2)


def test_the_numbers_of_e3nn() -> None:
    theirs = o3.FullyConnectedTensorProduct("4x0e + 3x1o", "2x0e + 1x1o + 1x2e", "2x0e + 5x1o + 1x1e")
    ours = eq.TensorProduct.from_e3nn(theirs, backend="sparse")
    x, y = torch.randn(6, 13), torch.randn(6, 10)
    torch.testing.assert_close(ours(x, y), theirs(x, y))


@pytest.mark.parametrize("backend", ["sparse", "reference"])
def test_any_rows(backend: str) -> None:
    """No rows, one row, rows of several axes, and rows that one operand serves."""
    layer = eq.FullyConnectedTensorProduct("3x0e + 2x1o", "0e + 1o", "2x0e + 3x1o", backend=backend).double()
    twin = eq.FullyConnectedTensorProduct("3x0e + 2x1o", "0e + 1o", "2x0e + 3x1o", backend="torch").double()
    twin.load_state_dict(layer.state_dict())
    for lead_x, lead_y in (((0,), (0,)), ((), ()), ((1,), (1,)), ((2, 3), (2, 3)), ((5,), ()), ((1, 3), (4, 1))):
        x, y = torch.randn(*lead_x, 9).double(), torch.randn(*lead_y, 4).double()
        got, want = layer(x, y), twin(x, y)
        assert got.shape == want.shape
        assert torch.allclose(got, want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_results_have_the_dtype_of_the_operands(dtype: torch.dtype) -> None:
    layer = product("uvu", "mul_ir", internal_weights=False)
    x, y, w = (t.detach().to(dtype) for t in operands(layer))
    exact = layer.infos(x.double(), y.double(), w.double())
    for backend in (None, "reference"):
        got = layer.infos(x, y, w, backend)
        assert got.dtype == dtype
        size = exact.abs().max()  # one rounding of the result, and float32's of the sums
        assert (got.double() - exact).abs().max() <= size * (
            torch.finfo(dtype).eps + 60 * torch.finfo(torch.float32).eps
        )
    want = layer.infos(x, y, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.infos(x, y, w), want)


@pytest.mark.parametrize("mode", ["uvu", "uvw"])
def test_reference_forms_sums_in_float64(mode: str) -> None:
    """Its result in float32 is the result in float64, rounded once."""
    layer = product(mode, "mul_ir", internal_weights=False)
    x, y, w = (t.detach().float() for t in operands(layer, (50,)))
    exact = layer.infos(x.double(), y.double(), w.double(), "reference").float()
    assert torch.equal(layer.infos(x, y, w, "reference"), exact)
    assert not torch.equal(layer.infos(x, y, w), exact), "sums in float32 must show"


def test_groups_with_one_block_of_the_result_are_added_up() -> None:
    """Paths from 2 and from 3 channels are two groups, of one result."""
    layer = eq.TensorProduct(
        "2x0e + 3x1o", "0e + 1o", "4x0e", [(0, 0, 0, "uvw", True), (1, 1, 0, "uvw", True)]
    ).double()
    x, y, _ = (t.detach() for t in operands(layer))
    assert len(layer.infos) == 2
    close([layer.infos(x, y, layer.weight.detach())], [layer(x, y).detach()])


PATHS = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True)]
LAYERS: dict[str, Any] = {
    "TensorProductConv": lambda kind: (
        nn.TensorProductConv("2x0e + 2x1o", "0e + 1o", "2x0e + 2x1o", PATHS, **kind),
        (3, 8), (4, 4), None, torch.tensor([[0, 1, 2, 2], [2, 0, 0, 1]]),
    ),
    "TensorSquare": lambda kind: (nn.TensorSquare("3x0e + 2x1o", **kind), (4, 9)),
    "SO3Linear": lambda kind: (nn.SO3Linear("2x0e + 2x1o", "0e + 1o", "2x0e + 2x1o", "uu", **kind), (4, 8), (4, 4)),
    "SO3Scale": lambda kind: (nn.SO3Scale("2x0e + 2x1o", **kind), (4, 8)),
    "SO2Linear": lambda kind: (nn.SO2Linear("2x0e + 2x1o", "2x0e + 2x1o", **kind), (4, 8)),
    "ChangeOfBasis": lambda kind: (nn.ChangeOfBasis("2x0e + 2x1o", **kind), (4, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_backend_sparse_runs_every_product_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, way = [], WAYS["torch"]
    monkeypatch.setitem(WAYS, "torch", way._replace(product=lambda call: calls.append(call) or way.product(call)))
    for layout in ("mul_ir", "ir_mul"):
        torch.manual_seed(1)
        layer, *given = LAYERS[name]({"backend": "sparse"} | ({} if name == "ChangeOfBasis" else {"layout": layout}))
        torch.manual_seed(1)
        twin, *_ = LAYERS[name]({"backend": "torch"} | ({} if name == "ChangeOfBasis" else {"layout": layout}))
        inputs = [torch.randn(shape).double() if isinstance(shape, tuple) else shape for shape in given]
        calls.clear()
        close([layer.double()(*inputs)], [twin.double()(*inputs)])
        infos = layer.infos if isinstance(layer.infos, tuple) else (layer.infos,)
        products = sum(1 + (group.weights is not None) for each in infos for group in each)
        assert 0 < len(calls) == products, "two products a weighted group, one product another"


@pytest.mark.parametrize("mode", ["uvu", "uuu"])
def test_the_segment_kernels_give_the_same(mode: str) -> None:
    """In Triton's interpreter, where the channels of both products are among the seven named ones."""
    pytest.importorskip("triton", minversion="3.6")
    layer = eq.TensorProduct("3x1o", "1o" if mode == "uvu" else "3x1o", "3x1e", [(0, 0, 0, mode, True)])
    given = operands(layer, (2,))
    close(orders(lambda *t: layer.infos(*t, "triton"), given), orders(layer.infos, given))


def test_linear_maps() -> None:
    for layout in ("mul_ir", "ir_mul"):
        layer = nn.Linear("4x0e + 3x1o + 1x1o", "2x1o + 5x0e + 1x2e", layout=layout).double()
        x = torch.randn(6, 16).double()
        close([layer.infos(x, x.new_ones(6, 1), layer.weight)], [layer(x)])
        species = nn.SpeciesLinear("2x0e + 3x1o", "4x0e + 1x1o", 3, layout=layout).double()
        x, kind = torch.randn(5, 11).double(), torch.tensor([0, 2, 2, 1, 0])
        close([species.infos(x, x.new_ones(5, 1), species.weight[kind])], [species(x, kind)])


def test_layers_of_other_programs() -> None:
    heads = nn.AttentionAggregate("4x0e + 2x1o", heads=2).infos
    x, logits = torch.randn(3, 10).double(), torch.randn(3, 2).double()
    want = torch.cat([x[:, :4].view(3, 2, 2) * logits[:, :, None], x[:, 4:].view(3, 2, 3) * logits[:, :, None]], 2)
    got = heads(x, logits)
    close([got[:, :4], got[:, 4:]], [want[:, :, :2].flatten(1), want[:, :, 2:].flatten(1)])
    turn = nn.RotateFeatures("2x0e + 1x1o", rotation="blocks")
    blocks = eq.functional.wigner_blocks(torch.randn(1, 4).double(), 1)
    x = torch.randn(1, 5).double()
    close([turn.infos[0](x, blocks)], [turn(x, blocks)])
    assert len(nn.RotateFeatures("2x1o", rotation="angles", method="sparse").infos) == 3


def test_it_runs_wherever_torch_runs() -> None:
    for device in ("cpu", "cuda", "mps"):
        assert BACKENDS["sparse"].refuse(Request(None, "", torch.float32, torch.device(device))) is None
    layer = product("uvu", "mul_ir", backend="sparse").double()
    assert "sparse runs" in layer.explain()
    assert layer.selected_backend() == "sparse"
    x, y, _ = operands(layer)
    assert layer.to("meta")(x.to("meta"), y.to("meta")).shape == (4, layer.irreps_out.dim)


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_an_exported_product_has_gradients(layout: str) -> None:
    """Rows of the result are written once; operands had no gradient when the product was exported."""
    layer = eq.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)], backend="sparse", layout=layout).double()
    x, y = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    exported = torch.export.export(layer, (x, y)).module()
    x.requires_grad_()
    slopes = [torch.autograd.grad(one(x, y).square().sum(), [x, *one.parameters()]) for one in (exported, layer)]
    close(slopes[0], slopes[1])


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
def test_compilers_and_transforms() -> None:
    torch._dynamo.reset()
    layer = product("uvu", "mul_ir", backend="sparse").double()
    x, y, _ = (t.detach() for t in operands(layer))
    want = layer(x, y)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(leaf, y).square().sum(), leaf)
    (exact,) = torch.autograd.grad(layer(leaf, y).square().sum(), leaf)
    close([compiled(x, y), gradient], [want, exact])
    close([torch.export.export(layer, (x, y)).module()(x, y)], [want])
    close([torch.func.vmap(layer)(x, y)], [want])
    close([torch.func.jvp(lambda t: layer(t, y), (x,), (x,))[1]], [want])


def test_groups_hold_the_terms_of_the_program() -> None:
    layer = product("uvu", "mul_ir")
    infos, program = layer.infos, layer.plan.form.program
    assert isinstance(infos, ProgramInfos)
    assert layer.infos is infos
    assert len(infos) == 1
    group = infos[0]
    assert group.paths == (0, 1, 2)
    assert sum(info.num_terms for info in group.terms) == 3 * program.num_terms
    for info in (*group.terms, *group.weights):
        assert isinstance(info, SparseProductInfo)
        assert info.scale is None or info.scale.dtype == torch.float64
    assert (str(group.channels), str(group.weight_channels)) == ("a,b->ab", "ab,ab->a")
    assert len(pickle.dumps(layer)) == len(pickle.dumps(product("uvu", "mul_ir"))), "infos are no part of a layer"


def test_the_text_has_the_terms_of_each_path() -> None:
    layer = eq.TensorProduct("2x1o + 4x0e", "1o", "2x1e + 4x1o", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", False)])
    assert repr(layer.infos).splitlines() == [
        "infos of 2 paths in 2 groups",
        "group 0: x 'a', y '' -> 'a'; then weights 'a' -> 'a'",
        "  path 0: x[0:6], y[0:3], w[0:2] -> z[0:6]",
        "    z0 = 0.707107 x1 y2 - 0.707107 x2 y1",
        "    z1 = - 0.707107 x0 y2 + 0.707107 x2 y0",
        "    z2 = 0.707107 x0 y1 - 0.707107 x1 y0",
        "group 1: x 'a', y '' -> 'a'",
        "  path 1: x[6:10], y[0:3] -> z[6:18]",
        "    z0 = 1 x0 y0",
        "    z1 = 1 x0 y1",
        "    z2 = 1 x0 y2",
    ]
