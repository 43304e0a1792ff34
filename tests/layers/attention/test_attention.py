"""Attention: weights by their definition, at the cutoff and for any logits; layers against edges one by one."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers import Graph, to_ir_mul, to_mul_ir
from eqlayers.errors import DTypeError, IndexRangeError, IrrepsError, ShapeError
from eqlayers.functional import edge_softmax
from eqlayers.layers.attention.module import smooth_leaky_relu
from eqlayers.nn import (
    AttentionAggregate,
    BesselBasis,
    EdgeGeometry,
    EquivariantAttention,
    PolynomialCutoff,
    SmoothCutoff,
    TensorProduct,
)
from eqlayers.testing import check_derivatives
from eqlayers_kernels.triton import availability
from tests.each import each

EPS = torch.finfo(torch.float64).eps
BACKENDS = ["cpu", "torch", "reference"]
EDGES = torch.tensor([[0, 1, 3, 2, 0, 1], [2, 2, 2, 0, 1, 0]])
F64 = torch.float64


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def by_definition(logits: Tensor, dst: Tensor, nodes: int, envelope: Tensor, sink: Tensor) -> Tensor:
    """Edge by edge."""
    parts = envelope[:, None] * logits.exp()
    rows = [sink.expand(nodes, -1)[i].exp() + parts[dst == i].sum(0) for i in range(nodes)]
    return torch.stack([part / rows[i] for part, i in zip(parts, dst.tolist(), strict=True)])


# -- the softmax ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [0.0, 1.5, numbers(3, seed=2), numbers(4, 3, seed=3)], ids=["0", "1.5", "H", "N, H"])
@pytest.mark.parametrize("enveloped", [True, False])
def test_weights_are_those_of_the_definition(sink: Tensor | float, enveloped: bool) -> None:
    logits, envelope = 2 * numbers(6, 3), torch.rand(6, dtype=F64) if enveloped else None
    found = edge_softmax(logits, Graph(EDGES, 4), envelope=envelope, sink=sink)
    full = torch.ones(6, dtype=F64) if envelope is None else envelope
    wanted = by_definition(
        logits, EDGES[1], 4, full, torch.as_tensor(sink, dtype=F64).expand(*getattr(sink, "shape", (3,)))
    )
    torch.testing.assert_close(found, wanted, rtol=64 * EPS, atol=0)
    assert torch.equal(found, edge_softmax(logits, EDGES, 4, envelope, sink))


def test_derivatives_of_every_operand() -> None:
    """The envelope, too; where it is 0, by the root of it, as differences would step below 0."""
    inputs = [numbers(6, 2), torch.tensor([0.3, 0.2, 0.7, 0.4, 0.9, 1.0], dtype=F64), numbers(2, seed=5)]
    inputs = [value.clone().requires_grad_() for value in inputs]
    check_derivatives(lambda s, f, sink: edge_softmax(s, EDGES, 4, f, sink), inputs, order=3, max_elements=4)
    with torch.no_grad():
        inputs[1][1] = 0
    check_derivatives(lambda s, f, sink: edge_softmax(s, EDGES, 4, f * f, sink), inputs, order=3, max_elements=4)


def test_what_is_taken_off_does_not_matter() -> None:
    """Values and derivatives are those of logits and sinks that are all moved alike."""
    logits, envelope = numbers(6, 2).requires_grad_(), torch.rand(6, dtype=F64)
    for moved in (3.0, -7.0, 40.0):
        one = edge_softmax(logits, EDGES, 4, envelope, 0.5)
        other = edge_softmax(logits + moved, EDGES, 4, envelope, 0.5 + moved)
        torch.testing.assert_close(one, other, rtol=0, atol=128 * EPS)
        slopes = [torch.autograd.grad(a[:, 0].square().sum(), logits)[0] for a in (one, other)]
        torch.testing.assert_close(*slopes, rtol=0, atol=256 * EPS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_logit_is_too_large(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4], [1e4], [-1e4], [1e4], [-1e4], [3.0]], dtype=dtype, requires_grad=True)
    edges = torch.tensor([[0, 1, 2, 0, 0, 0], [0, 0, 0, 1, 2, 3]])
    least = torch.finfo(dtype).tiny
    for last in (1.0, 1e-30, least, least / 64, 0.0):  # the envelope of the only edge of node 1
        envelope = torch.tensor([1.0, 1.0, 1.0, last, 1.0, 1.0], dtype=dtype, requires_grad=True)
        found = edge_softmax(logits, edges, 4, envelope)
        alone = 1.0 if last else 0.0
        wanted = [0.5, 0.5, 0.0, alone, 0.0, 1 / (1 + math.exp(-3))]
        torch.testing.assert_close(found[:, 0].tolist(), wanted, rtol=0, atol=2 * torch.finfo(dtype).eps)
        first = torch.autograd.grad(found.square().sum(), (logits, envelope), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), logits)
        assert all(bool(torch.isfinite(g).all()) for g in (first[0], *second))
        if last != least / 64:  # below the smallest normal number digits are lost
            assert bool(torch.isfinite(first[1]).all())


def test_logits_of_minus_infinity_leave_edges_out() -> None:
    logits = numbers(6, 2)
    logits[1] = -math.inf
    kept = torch.arange(6) != 1
    wanted = edge_softmax(logits[kept], EDGES[:, kept], 4)
    assert torch.equal(edge_softmax(logits, EDGES, 4)[kept], wanted)
    assert bool((edge_softmax(logits, EDGES, 4)[1] == 0).all())


@pytest.mark.parametrize(("envelope", "smooth"), [(PolynomialCutoff(4.0), 2), (SmoothCutoff(4.0), 3)])
@pytest.mark.parametrize("logit", [-3.0, 0.0, 4.0])
def test_a_lone_edge_vanishes_with_the_derivatives_of_its_envelope(
    envelope: torch.nn.Module, smooth: int, logit: float
) -> None:
    """Inside they are those of f / (f + exp(-s)), which go to 0; beyond the cutoff they are 0."""
    edge = torch.tensor([[0], [1]])

    def orders(r: float, weight: Callable[[Tensor], Tensor]) -> list[float]:
        x = torch.tensor([r], dtype=F64, requires_grad=True)
        found = [weight(x).sum()]
        for _ in range(smooth):
            found.append(torch.autograd.grad(found[-1], x, create_graph=True)[0].sum())
        return [float(v.detach()) for v in found]

    def weight(x: Tensor) -> Tensor:
        return edge_softmax(x.new_full((1, 1), logit), edge, 2, envelope(x))

    for r in (1.0, 3.0, 3.9):
        wanted = orders(r, lambda x: envelope(x) / (envelope(x) + math.exp(-logit)))
        assert orders(r, weight) == pytest.approx(wanted, rel=1e-12)
    near = orders(4.0 * (1 - 1e-8), weight)
    assert max(map(abs, near)) < 1e-3
    for r in (4.0, 4.1):
        assert orders(r, weight) == [0.0] * (smooth + 1)


def test_no_edges() -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert edge_softmax(torch.zeros(0, 2), none, 3).shape == (0, 2)
    assert edge_softmax(torch.zeros(0, 2), none, 0).shape == (0, 2)
    assert torch.equal(AttentionAggregate("4x0e", 2)(torch.zeros(0, 4), torch.zeros(0, 2), none, 3), torch.zeros(3, 4))


def test_batches_of_logits_by_vmap() -> None:
    logits, envelope = numbers(5, 6, 2), torch.rand(6, dtype=F64)
    graph = Graph(EDGES, 4)
    found = torch.func.vmap(lambda s: edge_softmax(s, graph, envelope=envelope))(logits)
    wanted = torch.stack([edge_softmax(s, graph, envelope=envelope) for s in logits])
    torch.testing.assert_close(found, wanted, rtol=0, atol=8 * EPS)


# -- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_messages_are_weighted_head_by_head(layout: str, backend: str) -> None:
    irreps, heads = o3.Irreps("6x0e + 3x1o + 3x2e"), 3
    layer = AttentionAggregate(irreps, heads, layout=layout, backend=backend).double()
    with torch.no_grad():
        layer.sink.copy_(numbers(3, seed=9))
    values, logits, envelope = numbers(6, irreps.dim), numbers(6, heads, seed=1), torch.rand(6, dtype=F64)
    found = layer(values if layout == "mul_ir" else to_ir_mul(values, irreps), logits, EDGES, 4, envelope)
    shares = edge_softmax(logits, EDGES, 4, envelope, layer.sink)
    wanted = torch.zeros(4, irreps.dim, dtype=F64)
    for e, dst in enumerate(EDGES[1].tolist()):
        parts = []
        for piece, (mul, ir) in zip(values[e].split([6, 9, 15]), irreps, strict=True):
            own = piece.reshape(mul, ir.dim)
            parts.append(torch.cat([own[u] * shares[e, u * heads // mul] for u in range(mul)]))
        wanted[dst] += torch.cat(parts)
    found = found if layout == "mul_ir" else to_mul_ir(found, irreps)
    torch.testing.assert_close(found, wanted, rtol=0, atol=64 * EPS)


IN, SH, OUT = o3.Irreps("4x0e + 2x1o + 2x1e"), o3.Irreps("0e + 1o + 2e"), o3.Irreps("3x0e + 2x1o + 1x2e")


def molecule(layer: EquivariantAttention) -> dict[str, Tensor]:
    made = {"x": numbers(4, IN.dim), "edge_attr": numbers(6, SH.dim, seed=1), "edge_scalars": numbers(6, 3, seed=2)}
    return {**made, "edge_index": EDGES, "envelope": torch.rand(6, dtype=F64) + 0.1}


def one_by_one(layer: EquivariantAttention, given: dict[str, Tensor]) -> Tensor:
    """The formula of the layer in 'mul_ir', with all that it has of each edge."""
    x, y, t = given["x"], given["edge_attr"], given["edge_scalars"]
    src, dst = EDGES
    query, key, r = layer.query(x)[dst], layer.key(x)[src], t @ layer.compare / math.sqrt(3)
    if layer.logits == "dot":
        parts = []
        for q, k, (mul, ir) in zip(*(v.split([p.dim for p in IN], -1) for v in (query, key)), IN, strict=True):
            products = (q * k).unflatten(-1, (mul, ir.dim)).sum(-1)
            parts.append(products * r[:, : products.shape[1]])
            r = r[:, products.shape[1] :]
        logits = sum(part.unflatten(-1, (2, -1)).sum(-1) for part in parts) / math.sqrt(IN.dim / 2)
    else:
        keys = o3.Irreps("6x0e + 6x1o")
        paths = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True)]
        found = query + TensorProduct(keys, SH, "6x0e", paths, shared_weights=False).double()(key, y, r)
        active = (0.2 * found + 0.8 * found * torch.sigmoid(found)).unflatten(-1, (2, 3))
        logits = torch.einsum("ehk,hk->eh", active, layer.read) / math.sqrt(3)
    shares = edge_softmax(logits, EDGES, 4, given["envelope"], layer.sink)
    product = layer.product
    paths = [(ins.i_in1, ins.i_in2, ins.i_out, "uvu", True) for ins in product.instructions]
    dense = TensorProduct(IN, SH, product.irreps_out, paths, shared_weights=False).double()
    messages = dense(layer.up(x)[src], y, layer.radial(t))
    weighted = []
    for piece, (mul, ir) in zip(
        messages.split([p.dim for p in product.irreps_out], -1), product.irreps_out, strict=True
    ):
        weighted.append((piece.unflatten(-1, (2, mul // 2, ir.dim)) * shares[:, :, None, None]).flatten(1))
    total = x.new_zeros(4, product.irreps_out.dim).index_add(0, dst, torch.cat(weighted, -1))
    return layer.down(total)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("logits", ["dot", "mlp"])
def test_the_block_is_its_formula(logits: str, backend: str) -> None:
    torch.manual_seed(0)
    kind = {"layout": "mul_ir", "backend": backend}
    layer = EquivariantAttention(IN, SH, OUT, 3, 2, logits, 3, (5,), **kind).double()
    with torch.no_grad():
        layer.sink.copy_(numbers(2, seed=9))
    given = molecule(layer)
    torch.testing.assert_close(layer(**given), one_by_one(layer, given), rtol=0, atol=1e4 * EPS)


@pytest.mark.kernels
@pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
@pytest.mark.parametrize("logits", ["dot", "mlp"])
def test_printed_triton_kernels_agree(logits: str) -> None:
    device, found = "cuda" if torch.cuda.is_available() else "cpu", []
    for backend in ("torch", "triton"):
        torch.manual_seed(0)
        layer = EquivariantAttention("2x0e + 2x1o", "0e + 1o", "2x0e", 2, 2, logits, 2, (3,), backend=backend)
        layer, index = layer.double().to(device), EDGES.to(device)
        operands = numbers(4, 8), numbers(6, 4, seed=1), numbers(6, 2, seed=2), numbers(6, seed=3).abs()
        live = [t.to(device).requires_grad_() for t in operands]
        z = layer(*live[:3], index, live[3])
        first = torch.autograd.grad(z.square().sum(), live, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), live)
        aggregate = AttentionAggregate("2x0e + 2x1o", 2, backend=backend).double().to(device)
        summed = aggregate(live[1].repeat(1, 2), live[2], index, 4, live[3])
        found.append([z, *first, *second, summed, *torch.autograd.grad(summed.square().sum(), live[1:])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e4 * EPS * max(1.0, float(one.detach().abs().max())))


@pytest.mark.parametrize("logits", ["dot", "mlp"])
def test_the_block_is_smooth_where_an_atom_leaves(logits: str) -> None:
    """The third atom goes through the cutoff of its only neighbour; without the edge nothing changes beyond."""
    torch.manual_seed(0)
    cutoff = 4.0
    layer = EquivariantAttention("4x0e + 2x1o", "0e + 1o", "2x0e + 2x1o", 6, 2, logits, 4, (8,)).double()
    geometry, basis, envelope = EdgeGeometry("0e + 1o"), BesselBasis(6, cutoff), PolynomialCutoff(cutoff)
    x, edge_index = numbers(3, 10), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])

    def at(place: Tensor, edge_index: Tensor = edge_index) -> Tensor:
        pos = torch.stack([torch.zeros(3, dtype=F64), x.new_tensor([1.1, 0.2, 0.0]), place])
        edges = geometry(pos, edge_index)
        return layer(x, edges.harmonics, basis(edges.lengths), edge_index, envelope(edges.lengths))

    def orders(r: float) -> list[Tensor]:
        s = torch.tensor(r, dtype=F64, requires_grad=True)
        y = at(x.new_tensor([1.1, 0.2, 0.0]) + s * x.new_tensor([0.6, 0.0, 0.8]))
        found = [y.detach()]
        for v in (y[1].sum(), y[2].sum()):
            for _ in range(2):
                (v,) = torch.autograd.grad(v, s, create_graph=True)
                found.append(v.detach())
        return found

    assert float(orders(2.0)[0][2].abs().max()) > 1e-3
    beyond = at(x.new_tensor([9.0, 0.0, 0.0]), edge_index[:, :2]).detach()
    for r in (cutoff, cutoff + 0.3):
        value, *slopes = orders(r)
        torch.testing.assert_close(value, beyond, rtol=0, atol=64 * EPS)
        assert all(float(v) == 0 for v in slopes)
    value, *slopes = orders(cutoff * (1 - 1e-7))
    torch.testing.assert_close(value, beyond, rtol=0, atol=1e-12)
    assert max(abs(float(v)) for v in slopes) < 1e-3


def test_the_activation() -> None:
    x = torch.linspace(-3, 3, 7, dtype=F64)
    torch.testing.assert_close(
        smooth_leaky_relu(x), 0.6 * x + 0.4 * x * (2 * torch.sigmoid(x) - 1), rtol=0, atol=8 * EPS
    )


@pytest.mark.kernels
def test_text_and_backends() -> None:
    layer = AttentionAggregate("4x0e + 2x1o", 2, layout="ir_mul")
    assert repr(layer) == "AttentionAggregate(4x0e+2x1o | 2 heads | ir_mul, backend auto)"
    assert "all groups: cpu runs" in AttentionAggregate("4x0e", 2, backend="cpu").explain()
    block = repr(EquivariantAttention("4x0e", "0e", "2x0e", heads=2))
    assert "4x0e x 1x0e -> 2x0e | 1 paths | 2 heads, mlp | ir_mul, backend auto" in block


GRAPH = Graph(EDGES, 4)
AGGREGATE, BLOCK = AttentionAggregate("4x0e", 2), EquivariantAttention("4x0e", "0e", "2x0e", 3, 2)
FULL = {"x": torch.ones(4, 4), "edge_attr": torch.ones(6, 1), "edge_scalars": torch.ones(6, 3), "edge_index": EDGES}


@each("call, error, message", [
        (lambda: AttentionAggregate("4x0e + 3x1o", 2), IrrepsError, "irreps must have multiplicities that 2 heads div"),
        (lambda: EquivariantAttention("3x0e", "0e", "1x0e"), IrrepsError, "irreps_in must have multiplicities that 4"),
        (lambda: EquivariantAttention("4x0e", "0e", "4x1o"), IrrepsError, "some irrep of irreps_out must lie in"),
        (lambda: EquivariantAttention("4x1e", "1o", "4x1o"), IrrepsError, "some irrep of irreps_sh must be among"),
        (lambda: edge_softmax(torch.ones(6, 2), EDGES), ShapeError, "num_nodes must be the number of receivers"),
        (lambda: edge_softmax(torch.ones(6, 2), GRAPH, 5), ShapeError, "the graph must have 4 senders and 5 receivers"),
        (lambda: edge_softmax(torch.ones(6, 2), EDGES, 2), IndexRangeError, "must lie in [0, 2)"),
        (lambda: AGGREGATE(torch.ones(6, 4).double(), torch.ones(6, 2), GRAPH), DTypeError, "logits must have the dty"),
        (lambda: BLOCK(**{**FULL, "edge_scalars": torch.ones(6, 3).double()}), DTypeError, "edge_scalars must have th"),
    ])  # fmt: skip
def test_wrong_arguments(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_weighted_messages_are_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over neighbours is part of the kernels, forward and backward."""
    monkeypatch.setattr("eqlayers.core.backends.forms.RUNNERS", {})
    monkeypatch.setattr("eqlayers.core.backends.forms._row_by_row", lambda *args: pytest.fail("messages in memory"))
    layer = AttentionAggregate("4x0e + 2x1o", 2)
    values, logits = numbers(6, 10).requires_grad_(), numbers(6, 2).requires_grad_()
    layer(values, logits, Graph(EDGES, 4)).square().sum().backward()
    assert values.grad is not None
