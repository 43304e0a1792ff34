"""Derivatives of every order, against autograd through one dense einsum and against finite differences."""

import pytest
import torch
from torch.autograd import gradgradcheck

from eqlayers.errors import GradientError, ShapeError
from eqlayers.functional import sparse_product
from eqlayers.sparse import channels_of, sparse_product_infos
from eqlayers.sparse.function import WAYS
from eqlayers.sparse.table import NAMED
from eqlayers.testing import check_derivatives
from tests.cases import towers
from tests.covering import covering
from tests.each import each

SPECS = [*NAMED, "uv,uv->u", "u,uvw->vw", "v,u->uv", ",->"]
FLAGS = {"first batched": (1, 0), "second batched": (1, 0), "reduced": (False, True)}
CASES = covering({"product": SPECS, **FLAGS, "requires": [(True, True), (True, False), (False, True)]})
NAMED_CASES = covering({"product": list(NAMED), **FLAGS})


def cases(choices):
    """Products with or without batch axes, summed over them or not."""
    names = ",".join(name.replace(" ", "_") for name in choices[0])
    return each(names, [tuple(case.values()) for case in choices])


SIZES, EXTENTS, BATCH = (4, 3, 5), {"u": 2, "v": 3, "w": 2}, 2
# Rows 0 and the last of input1 and of the output are unnamed, terms repeat and are not sorted.
TERMS = ([2, 1, 1, 2, 2, 1, 2], [0, 2, 2, 0, 1, 1, 0], [3, 1, 1, 3, 2, 3, 1], [0.5, -1.5, 2.0, 1.0, 0.3, -0.7, 1.1])


def infos_of(terms=TERMS, sizes=SIZES):
    return sparse_product_infos(*terms, in1_size=sizes[0], in2_size=sizes[1], out_size=sizes[2])


def operands(product, batched, requires_grad=(True, True), sizes=SIZES):
    out = []
    for flag, letters, size, needs in zip(batched, channels_of(product), sizes, requires_grad, strict=False):
        shape = [BATCH] * flag + [size] + [EXTENTS[c] for c in letters]
        out.append(torch.randn(shape, dtype=torch.float64, requires_grad=needs))
    return out


def dense(product, x, y, reduced, terms=TERMS, sizes=SIZES):
    """The product through one einsum with the dense table of coefficients, which torch differentiates."""
    i, j, o, s = terms
    table = torch.zeros(sizes[2], sizes[0], sizes[1], dtype=torch.float64)
    table.index_put_(tuple(map(torch.tensor, (o, i, j))), torch.tensor(s, dtype=torch.float64), accumulate=True)
    first, second, out = channels_of(product)
    z = torch.einsum(f"...I{first},...J{second},OIJ->...O{out}", x, y, table)
    return z.sum(0) if reduced and z.ndim > 1 + len(out) else z


@cases(CASES)
def test_three_orders_equal_those_of_a_dense_einsum(product, first_batched, second_batched, reduced, requires):
    infos, inputs = infos_of(), operands(product, (first_batched, second_batched), requires)
    got = towers(lambda x, y: sparse_product(product, x, y, *infos, out_accumulated=reduced), inputs, 3)
    want = towers(lambda x, y: dense(product, x, y, reduced), inputs, 3)
    for number, (a, b) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=lambda m, n=number: f"derivative {n}: {m}")
    assert got[-1].any()


@cases(NAMED_CASES)
def test_finite_differences(product, first_batched, second_batched, reduced):
    infos = infos_of()
    inputs = operands(product, (first_batched, second_batched))

    def function(x, y):
        return sparse_product(product, x, y, *infos, out_accumulated=reduced)

    report = check_derivatives(function, inputs, 2, max_elements=2)
    assert {e.operand for e in report.entries if e.order == 2} >= {"input 0", "input 1", "cotangent 1.0"}
    assert gradgradcheck(function, inputs, fast_mode=True)
    z = function(*inputs)
    for grad, operand in zip(torch.autograd.grad(z.square().sum(), inputs, create_graph=True), inputs, strict=True):
        assert grad.requires_grad
        assert grad.shape == operand.shape
        assert all(g.any() for g in torch.autograd.grad(grad.square().sum(), inputs, retain_graph=True))


@pytest.fixture
def products_run(monkeypatch):
    """The channel specs of the products that the torch backend has run."""
    specs, backend = [], WAYS["torch"]

    def counted(call):
        specs.append(call.channels)
        return backend.product(call)

    monkeypatch.setitem(WAYS, "torch", backend._replace(product=counted))
    return specs


@each("product", NAMED)
def test_gradients_that_nothing_needs_are_not_computed(product, products_run):
    for requires in ((True, True), (True, False), (False, True), (False, False)):
        products_run.clear()
        x, y = operands(product, (1, 0), requires)
        z = sparse_product(product, x, y, *infos_of())
        assert len(products_run) == 1
        assert z.requires_grad == any(requires)
        if not any(requires):
            continue
        z.backward(torch.ones_like(z))
        channels = channels_of(product)
        rotated = channels.rotate_to_first(), channels.rotate_to_second()
        assert products_run[1:] == [c for c, needed in zip(rotated, requires, strict=True) if needed]
        assert (x.grad is not None, y.grad is not None) == requires


@each("product", ["mul", "outer", "vecmat"])
def test_a_graph_kept_gives_the_same_again_and_operands_are_left_alone(product):
    x, y = operands(product, (1, 0))
    before = x.detach().clone(), y.detach().clone()
    z = sparse_product(product, x, y, *infos_of())
    once = torch.autograd.grad(z.sum(), (x, y), retain_graph=True)
    again = torch.autograd.grad(z.sum(), (x, y))
    assert all(torch.equal(a, b) for a, b in zip((*once, *before), (*again, x, y), strict=True))
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(z.sum(), (x, y))


@each("product", NAMED)
def test_gradients_of_broadcast_and_strided_operands(product):
    """Batch axes of length 1 are summed over, extra axes too, and a strided gradient comes in."""
    infos = infos_of()
    first, second, out = channels_of(product)
    x = torch.randn(3, 1, SIZES[0], *(EXTENTS[c] for c in first), dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, SIZES[1], *(EXTENTS[c] for c in second), dtype=torch.float64, requires_grad=True)
    z, want = sparse_product(product, x, y, *infos), dense(product, x, y, False)
    assert z.shape == (3, 2, SIZES[2], *(EXTENTS[c] for c in out))
    for gz in (torch.randn_like(z).movedim(0, -1).contiguous().movedim(-1, 0), torch.ones(()).double().expand(z.shape)):
        got = torch.autograd.grad(z, (x, y), gz, retain_graph=True)
        torch.testing.assert_close(
            got, torch.autograd.grad(want, (x, y), gz, retain_graph=True), rtol=1e-13, atol=1e-13
        )


@each("product", NAMED)
def test_infos_rotate(product):
    """The three views serve the three sides of one form: each is a forward whose gradients are the other two."""
    fwd, bwd1, bwd2 = infos_of()
    x, y = operands(product, (1, 1))
    channels = channels_of(product)
    gz = torch.randn(BATCH, SIZES[2], *(EXTENTS[c] for c in channels.out), dtype=torch.float64, requires_grad=True)
    loss = (dense(product, x, y, False) * gz).sum()
    gx, gy, z = torch.autograd.grad(loss, (x, y, gz))
    for spec, first, second, infos, want, others in (
        (channels, x, y, (fwd, bwd1, bwd2), z, (gx, gy)),
        (channels.rotate_to_first(), y, gz, (bwd1, bwd2, fwd), gx, (gy, z)),
        (channels.rotate_to_second(), gz, x, (bwd2, fwd, bwd1), gy, (z, gx)),
    ):
        got = sparse_product(str(spec), first, second, *infos)
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
        third = {id(x): x, id(y): y, id(gz): gz}
        third.pop(id(first)), third.pop(id(second))
        grads = torch.autograd.grad((got * next(iter(third.values()))).sum(), (first, second))
        torch.testing.assert_close(grads, others, rtol=1e-13, atol=1e-13)


@each("product", ["mul", "outer", "vecmat"])
def test_exchanged_infos_are_noticed(product):
    """Where sizes differ the shapes tell; where they agree the gradient is wrong, and this comparison sees it."""
    fwd, bwd1, bwd2 = infos_of()
    x, y = operands(product, (1, 1))
    with pytest.raises(ShapeError, match=r"info_bwd1\.out_size must be 4, .*input1, got 3.*not exchanged"):
        sparse_product(product, x, y, fwd, bwd2, bwd1).sum().backward()
    y.requires_grad_(False)
    with pytest.raises(ShapeError, match=r"info_bwd1\.out_size"):
        sparse_product(product, x, y, fwd, bwd2, None).sum().backward()
    x, y = operands(product, (1, 1), (False, True))
    with pytest.raises(ShapeError, match=r"info_bwd2\.out_size must be 3, .*input2, got 4"):
        sparse_product(product, x, y, fwd, bwd2, bwd1).sum().backward()
    square = (4, 4, 4)
    fwd, bwd1, bwd2 = infos_of(TERMS, square)
    x, y = operands(product, (1, 1), sizes=square)
    want = torch.autograd.grad(dense(product, x, y, False, TERMS, square).square().sum(), (x, y))
    right = torch.autograd.grad(sparse_product(product, x, y, fwd, bwd1, bwd2).square().sum(), (x, y))
    wrong = torch.autograd.grad(sparse_product(product, x, y, fwd, bwd2, bwd1).square().sum(), (x, y))
    for a, b, c in zip(right, want, wrong, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert (c - b).abs().max() > 1e-2


def test_a_missing_info_is_named_and_only_when_needed():
    fwd, bwd1, bwd2 = infos_of()
    x, y = operands("mul", (1, 0))
    with torch.no_grad():
        sparse_product("mul", x, y, fwd)
    z = sparse_product("mul", x, y, fwd)
    with pytest.raises(GradientError, match=r"info_bwd1 must be given, .*gradient of input1 .*None.*detach input1"):
        z.sum().backward()
    with pytest.raises(GradientError, match=r"info_bwd2 must be given, .*gradient of input2 .*None.*detach input2"):
        sparse_product("mul", x, y, fwd, bwd1).sum().backward()
    for order in (1, 2):  # the info of a frozen operand is not needed, whatever the order
        frozen = operands("mul", (1, 0), (True, False))
        check_derivatives(lambda x, y: sparse_product("mul", x, y, fwd, bwd1), frozen, order, max_elements=1)
        frozen = operands("mul", (1, 0), (False, True))
        check_derivatives(lambda x, y: sparse_product("mul", x, y, fwd, None, bwd2), frozen, order, max_elements=1)


def test_the_named_backend_runs_the_gradients_too(products_run):
    x, y = operands("mul", (1, 1))
    z = sparse_product("mul", x, y, *infos_of(), backend="reference")
    torch.autograd.grad(z.sum(), (x, y))
    assert products_run == []
