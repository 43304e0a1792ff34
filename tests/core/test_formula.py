"""The operator of formulas: values and derivatives of every order, transforms, compilers."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import eqlayers as eq
from eqlayers import Graph
from eqlayers.core.forms.description import describe, register_formula
from eqlayers.core.forms.text import FORMULA, read_formula, write_text
from eqlayers.core.operator import sorted_edges
from eqlayers.layers.base.module import run_formula
from tests.formulas import cubic, edges_of_points, functions

pytestmark = pytest.mark.usefixtures("needs_a_compiler")

EDGES = torch.tensor([[2, 0, 2, 1, 0, 0, 1], [0, 3, 3, 0, 1, 1, 2]])
COUNT = {"each": 7, "src": 4, "dst": 5}
BASES = {  # the first is in every thinned test
    "edges": edges_of_points(), "cubic": cubic(3), "mul_ir": cubic(5, "mul_ir", components=(1, 2)),
    "one": cubic(2, rows="one"), "functions": functions(3), "functions of rows": functions(0),
}  # fmt: skip
BASES = {name: register_formula(base) for name, base in BASES.items()}
EPS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def graph_of(base):
    needed = any(one.rows in ("src", "dst") for one in base.operands)
    return Graph(EDGES, COUNT["src"], COUNT["dst"]) if needed else None


def operands_of(base, dtype=torch.float64, seed=0):
    made = torch.Generator().manual_seed(seed)
    shapes = [(one.width,) if one.rows == "one" else (COUNT[one.rows], one.width) for one in base.operands]
    return [torch.randn(shape, dtype=torch.float64, generator=made).to(dtype).requires_grad_() for shape in shapes]


def orders(base, operands, backend, graph):
    """Results, gradients, second and third derivatives along fixed directions."""
    out = [list(run_formula(base, operands, graph, backend))]
    for order in range(3):
        made = torch.Generator().manual_seed(10 + order)
        ways = [torch.randn(t.shape, dtype=torch.float64, generator=made).to(t.dtype) for t in out[-1]]
        total = [t for t in out[-1] if t.requires_grad]
        ways = [w for w, t in zip(ways, out[-1], strict=True) if t.requires_grad]
        out.append(list(torch.autograd.grad(total, operands, ways, create_graph=True)))
    return [t for part in out for t in part]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", BASES)
def test_values_and_three_derivatives_are_those_of_the_definition(name, dtype):
    base = BASES[name]
    operands, graph = operands_of(base, dtype), graph_of(base)
    found = orders(base, operands, None, graph)
    exact = orders(base, [t.detach().double().requires_grad_() for t in operands], "reference", graph)
    for got, want in zip(found, exact, strict=True):
        assert got.dtype == dtype
        # each order rounds its results, which are operands of the next; lengths below 1 make derivatives grow
        bound = 400 * EPS[dtype] * float(want.detach().abs().max().clamp(min=1.0))
        torch.testing.assert_close(got.double(), want, atol=bound, rtol=0)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("backend", [None, "torch", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BASES)
def test_gradcheck_and_gradgradcheck(name, backend):
    base = BASES[name]
    operands, graph = operands_of(base), graph_of(base)

    def call(*tensors):
        return run_formula(base, tensors, graph, backend)

    assert gradcheck(call, operands, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(call, operands, fast_mode=True)


@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_operands(frozen):
    base, graph = BASES["cubic"], graph_of(BASES["cubic"])
    operands = operands_of(base)
    operands[frozen].requires_grad_(False)
    free = operands[1 - frozen]
    (z,) = run_formula(base, operands, graph)
    (found,) = torch.autograd.grad(z.sum(), free)
    (z,) = run_formula(base, operands, graph, "reference")
    (want,) = torch.autograd.grad(z.sum(), free)
    torch.testing.assert_close(found, want, atol=1e-12, rtol=0)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", BASES)
def test_strided_operands_and_threads_change_nothing(name):
    base = BASES[name]
    operands, graph = operands_of(base), graph_of(base)
    want = orders(base, operands, None, graph)
    torch.set_num_threads(3)  # set back by the fixture untouched_globals
    for got, expected in zip(orders(base, operands, None, graph), want, strict=True):
        assert torch.equal(got, expected)
    apart = [torch.stack([t.detach(), t.detach()], -1)[..., 0] for t in operands]
    for got, expected in zip(run_formula(base, apart, graph), want, strict=False):
        assert torch.equal(got, expected)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("edges", [0, 1])
def test_few_rows(name, edges):
    base = BASES[name]
    graph = graph_of(base) and Graph(EDGES[:, :edges], COUNT["src"], COUNT["dst"])
    operands = [
        t.detach()[:edges].requires_grad_() if one.rows == "each" else t
        for one, t in zip(base.operands, operands_of(base), strict=True)
    ]
    torch.testing.assert_close(
        orders(base, operands, None, graph), orders(base, operands, "torch", graph), atol=1e-11, rtol=1e-11
    )


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", BASES)
def test_torch_func(name):
    base = BASES[name]
    operands, graph = [t.detach() for t in operands_of(base)], graph_of(base)

    def total(backend, *tensors):
        return sum((z.sin()).sum() for z in run_formula(base, tensors, graph, backend))

    def all_of(backend):
        def alone(*tensors):
            return total(backend, *tensors)

        # a graph is the same for all samples; forward over reverse, reverse over forward
        last = len(operands[1:2])
        yield torch.func.grad(alone, argnums=tuple(range(last + 1)))(*operands)
        yield torch.func.jacfwd(torch.func.grad(alone))(*operands)
        yield torch.func.hessian(alone, argnums=last)(*operands)
        batch = [torch.stack([t, 2 * t]) for t in operands]
        yield torch.func.vmap(torch.func.grad(alone))(*batch)
        yield torch.func.vmap(alone, in_dims=(0, *[None] * (len(operands) - 1)))(batch[0], *operands[1:])

    torch.testing.assert_close(list(all_of(None)), list(all_of("torch")), atol=1e-9, rtol=1e-9)


def test_gradients_in_batches():
    base, graph = BASES["cubic"], graph_of(BASES["cubic"])
    operands = operands_of(base)
    (z,) = run_formula(base, operands, graph)
    ways = torch.randn(3, *z.shape, dtype=z.dtype)
    found = torch.autograd.grad(z, operands, ways, is_grads_batched=True, retain_graph=True)
    want = [torch.autograd.grad(z, operands, way, retain_graph=True) for way in ways]
    for got, parts in zip(found, zip(*want, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(parts))


def test_forward_mode_within_forward_mode():
    base = BASES["one"]
    operands = [t.detach() for t in operands_of(base)]

    def twice(backend):
        def alone(x):
            return run_formula(base, [x, operands[1]], None, backend)[0]

        def along(x):
            return torch.func.jvp(alone, (x,), (torch.ones_like(x),))[1]

        return torch.func.jvp(along, (operands[0],), (torch.ones_like(operands[0]),))[1]

    torch.testing.assert_close(twice(None), twice("torch"))
    dual_parts = operands[0], torch.ones_like(operands[0])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(*dual_parts)
        found = forward_ad.unpack_dual(run_formula(base, [dual, operands[1]])[0]).tangent
    _, way = torch.func.jvp(lambda x: run_formula(base, [x, operands[1]])[0], *((t,) for t in dual_parts))
    torch.testing.assert_close(found, way)


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
@pytest.mark.parametrize("name", BASES)
def test_opcheck(name):
    base = BASES[name]
    graph = graph_of(base)
    tables = None if graph is None else graph.tables(sorted_edges)
    sizes = [COUNT["each"], *((COUNT["src"], COUNT["dst"]) if graph is not None else (0, 0))]
    args = (operands_of(base), tables, *sizes, base.key)
    torch.library.opcheck(torch.ops.eqlayers.form.default, args)


@pytest.mark.parametrize("name", BASES)
def test_texts(name):
    base = BASES[name]
    assert read_formula(write_text(FORMULA, base)) == base
    assert describe(write_text(FORMULA, base)).form == base


def test_exported_graphs_hold_the_formula():
    base = BASES["one"]

    class Layer(torch.nn.Module):
        def forward(self, x, a):
            return run_formula(base, [x, a])[0]

    operands = [t.detach() for t in operands_of(base)]
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Layer(), tuple(operands), dynamic_shapes={"x": {0: rows}, "a": None})
    assert "eqlayers-formula-2:" in str(program.graph)
    more = torch.cat([operands[0], operands[0]])
    torch.testing.assert_close(program.module()(more, operands[1]), Layer()(more, operands[1]))


def test_formulas_may_have_rows_of_nothing():
    base = register_formula(edges_of_points().with_rows(("one", "one", "one")))
    operands = [torch.randn(one.width, dtype=torch.float64, requires_grad=True) for one in base.operands]
    vector = run_formula(base, operands)[0]
    assert vector.shape == (1, 3)
    assert torch.autograd.grad(vector.sum(), operands[1])[0].shape == (3,)


def test_gradients_are_recorded_before_the_dispatcher_too() -> None:
    """There the engine runs a backward outside of all modes."""
    layer, factors = eq.nn.SphericalHarmonics("1o + 2e", normalize=True), torch.randn(8)

    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad((layer(x) @ factors).sum(), x)[0]

    x, other = torch.randn(5, 3), torch.randn(5, 3)
    recorded = make_fx(gradient, pre_dispatch=True)(x)
    assert torch.equal(recorded(other), gradient(other))
