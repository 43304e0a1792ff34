"""Convolutions that read weights from a table inside their kernel, against weights that are stored."""

import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers import Graph, TensorProductConv
from eqlayers.core.forms.request import Request
from eqlayers.core.operator import call_form, sorted_edges, sorted_intervals
from eqlayers.errors import ConfigError, DeviceError, DTypeError, IndexRangeError, ShapeError
from eqlayers.functional import TabledWeights
from eqlayers.testing import check_derivatives
from tests.layers.convolution.test_convolution import EDGES, IN, OUT, PATHS, RECEIVERS, SENDERS, SH
from tests.watching import watching

pytestmark = pytest.mark.kernels  # no other test of C has tables

# rows that are read, rows from interval to interval, layout; 'wide' has channels that fill vectors
READINGS = [(4, 1, "wide"), (6, 3, "mul_ir"), (4, 1, "mul_ir"), (4, 1, "ir_mul"), (4, 2, "ir_mul"), (1, 1, "ir_mul")]
REST = [pytest.param(*case, marks=pytest.mark.slow) for case in ((4, 2, "mul_ir"), (6, 3, "ir_mul"), (1, 1, "mul_ir"))]
ROWS = 12


def conv(layout: str = "mul_ir", backend: str | None = None) -> TensorProductConv:
    kwargs: dict[str, Any] = {"shared_weights": False, "internal_weights": False, "backend": backend}
    ends = [re.sub("[93]x", "64x", irreps) if layout == "wide" else irreps for irreps in (IN, OUT)]
    return TensorProductConv(ends[0], SH, ends[1], PATHS, layout=layout.replace("wide", "ir_mul"), **kwargs)


def graph(edges: int = EDGES) -> Graph:
    """Unsorted, with repeats and self loops; receivers 0 and 7 and sender 5 have none."""
    src, dst = torch.randint(0, SENDERS - 1, (edges,)), torch.randint(1, RECEIVERS - 1, (edges,))
    return Graph(torch.stack([src, dst]), SENDERS, RECEIVERS)


def operands(
    reads: int = 4, orders: int = 1, edges: int = EDGES, dtype: torch.dtype = torch.float64, layout: str = "mul_ir"
) -> list[Tensor]:
    """x, y, table, coefficients; and intervals of which some have no edge."""
    layer = conv(layout)
    shapes = (SENDERS, layer.irreps_in1.dim), (edges, 4), (ROWS, layer.weight_numel), (edges, reads)
    places = (ROWS - reads) // orders + 1
    interval = torch.randint(0, max(places - 1, 1), (edges,))
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes] + [interval]


def stored(made: TabledWeights) -> Tensor:
    """Weights of edges by hand."""
    rows = made.interval[:, None] * made.orders + torch.arange(made.coefficients.shape[1])
    return torch.einsum("erw,er->ew", made.table[rows], made.coefficients)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("derivatives", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("reads", "orders", "layout"), READINGS + REST)
def test_all_orders_are_those_of_stored_weights(reads: int, orders: int, layout: str, derivatives: int) -> None:
    x, y, table, c, interval = operands(reads, orders, layout=layout)
    layer, edges = conv(layout), graph()
    factors = torch.randn(RECEIVERS, layer.irreps_out.dim, dtype=torch.float64)
    found: dict[str, list[Tensor]] = {"table": [], "stored": []}
    for name, values in found.items():
        made = TabledWeights(table, interval, c, orders)
        z = layer(x, y, made if name == "table" else stored(made), edges)
        scalar = (z * factors).sin().sum()
        values.append(z)
        for _ in range(derivatives):
            gradients = torch.autograd.grad(scalar, (x, y, table, c), create_graph=True)
            values += gradients
            scalar = torch.stack([(3 * g / g.detach().abs().max() + 1).sin().mean() for g in gradients]).square().sum()
    for mine, wanted in zip(found["table"], found["stored"], strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-11 * float(wanted.detach().abs().max()))


@pytest.mark.slow  # the test above compares its orders with weights that are stored
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_derivatives_against_differences(layout: str) -> None:
    *tensors, interval = operands(edges=5)
    layer, edges = conv(layout), graph(5)
    check_derivatives(lambda *t: layer(*t[:2], TabledWeights(t[2], interval, t[3]), edges), tensors, max_elements=10)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("moving", range(1, 16))
def test_any_set_of_operands_may_be_frozen(moving: int) -> None:
    """First and second derivatives: only those that are asked for are computed, and they are right."""
    *tensors, interval = operands()
    kept = [t.requires_grad_(bool(moving >> n & 1)) for n, t in enumerate(tensors)]
    wanted = [t for t in kept if t.requires_grad]
    layer, edges = conv(), graph()
    results = []
    for store in (False, True):
        x, y, table, c = kept
        made = TabledWeights(table, interval, c)
        z = layer(x, y, stored(made) if store else made, edges).square().sum()
        first = torch.autograd.grad(z, wanted, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), wanted)])
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-11, atol=1e-12 * float(right.detach().abs().max()))


@pytest.mark.parametrize("leaves", [True, False])
def test_forces_ask_for_no_gradient_of_the_table(leaves: bool) -> None:
    """A gradient that is not asked for is not computed, whether or not the table has a graph behind it."""
    x, y, table, c, interval = operands()
    seen: list[Request] = []

    def watch(use: Request, run: Any) -> Any:
        seen.append(use)
        return run()

    given = (x, y, table, c) if leaves else (x * 1, y * 1, table * 2, c * 1)
    with watching(watch):
        z = conv()(given[0], given[1], TabledWeights(given[2], interval, given[3]), graph())
        torch.autograd.grad(z.sum(), c, create_graph=True)
        torch.autograd.grad(z.sum(), (x, table), create_graph=True)
        z.sum().backward()
    assert [use.form.task.results for use in seen] == [("z",), ("c",), ("x", "t"), ("x", "y", "t", "c")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x, y, table, c, interval = operands(dtype=dtype)
    layer, edges = conv(), graph()
    z = layer(x, y, TabledWeights(table, interval, c), edges)
    gradients = torch.autograd.grad(z.sum(), (x, y, table, c))
    exact = [t.detach().double().requires_grad_() for t in (x, y, table, c)]
    wanted = layer(exact[0], exact[1], TabledWeights(exact[2], interval, exact[3]), edges)
    right = torch.autograd.grad(wanted.sum(), exact)
    for mine, true in zip((z, *gradients), (wanted, *right), strict=True):
        assert mine.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(mine.double(), true, rtol=2 * eps, atol=40 * eps * float(true.detach().abs().max()))


def test_results_repeat_bit_by_bit_for_any_number_of_threads() -> None:
    edges = 3000
    x, y, table, c, interval = operands(edges=edges, dtype=torch.float32)
    layer, one = conv(), graph(edges)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            z = layer(x, y, TabledWeights(table, interval, c), one)
            first = torch.autograd.grad(z.square().sum(), (x, y, table, c), create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, y, table, c))
            found.append([z, *first, *second])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_no_edges_no_places_and_strides() -> None:
    layer = conv()
    x, y, table, c, interval = operands(edges=0)
    z = layer(x, y, TabledWeights(table, interval, c), graph(0))
    gradients = torch.autograd.grad(z.sum(), (x, y, table, c))
    assert z.shape == (RECEIVERS, layer.irreps_out.dim)
    assert not any(t.any() for t in (z, *gradients))
    assert [g.shape for g in gradients] == [t.shape for t in (x, y, table, c)]
    x, y, table, c, interval = operands()
    edges = graph()
    plain = layer(x, y, TabledWeights(table, interval, c), edges)
    wide = [torch.stack([t, t], -1)[..., 0] for t in (x, y, table, c)]  # no element beside the next
    again = layer(wide[0], wide[1], TabledWeights(wide[2], interval, wide[3]), edges)
    assert torch.equal(plain, again)
    one_place = operands(ROWS, 1)
    made = TabledWeights(one_place[2], one_place[4], one_place[3])
    torch.testing.assert_close(layer(x, y, made, edges), layer(x, y, stored(made), edges))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_backends_without_such_kernels_store_the_weights(backend: str) -> None:
    x, y, table, c, interval = operands()
    made, edges = TabledWeights(table, interval, c), graph()
    z, other = (conv(backend=name)(x, y, made, edges) for name in (None, backend))
    torch.testing.assert_close(z, other)
    factors = torch.randn_like(z)
    for mine, wanted in zip(
        *(torch.autograd.grad((f * factors).sum(), (x, y, table, c)) for f in (z, other)), strict=True
    ):
        torch.testing.assert_close(mine, wanted)


def test_layers_share_the_sorted_intervals() -> None:
    x, y, table, c, interval = operands()
    edges = graph()
    made = TabledWeights(table, interval, c)
    conv()(x, y, made, edges)
    kept = edges.interval_tables(interval, 9, lambda place: pytest.fail("sorted again"))
    conv()(x, y, made._replace(table=table * 2), edges)
    assert edges.interval_tables(interval, 9, lambda place: pytest.fail("sorted again")) is kept
    others = interval.clone()
    assert edges.interval_tables(others, 9, lambda place: place) is others


def test_other_tables_and_intervals_changed_in_place_are_sorted_anew() -> None:
    x, y, table, c, interval = operands()
    layer, edges = conv(), graph()
    for rows in (table, torch.cat([table, 2 * table])):
        made = TabledWeights(rows, interval, c)
        torch.testing.assert_close(layer(x, y, made, edges), layer(x, y, stored(made), edges))
    interval.add_(1)
    torch.testing.assert_close(layer(x, y, made, edges), layer(x, y, stored(made), edges))


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
def test_compiled_mapped_and_pickled() -> None:
    x, y, table, c, interval = operands()
    layer, edges = conv(), graph()

    def run(x: Tensor, table: Tensor, c: Tensor) -> Tensor:
        return layer(x, y, TabledWeights(table, interval, c), edges)

    plain = run(x, table, c)
    compiled = torch.compile(run, fullgraph=True)
    torch.testing.assert_close(compiled(x, table, c), plain)
    wanted, found = (torch.autograd.grad(f(x, table, c).square().sum(), (x, table, c)) for f in (run, compiled))
    torch.testing.assert_close(found, wanted)
    tables = torch.stack([table, 2 * table])
    both = torch.func.vmap(run, (None, 0, None))(x, tables, c)
    torch.testing.assert_close(both[0], plain)
    along = torch.func.jvp(lambda t: run(x, t, c), (table,), (table,))[1]
    torch.testing.assert_close(along, torch.autograd.functional.jvp(lambda t: run(x, t, c), table, table)[1])
    exported = torch.export.export(Fixed(layer, y, interval, edges), (x, table, c)).module()
    torch.testing.assert_close(exported(x, table, c), plain)
    with torch.inference_mode():
        torch.testing.assert_close(run(x, table, c), plain.detach())
    assert torch.equal(run(x, table, c), plain)  # the same graph and places again, with a tape
    copied: TensorProductConv = pickle.loads(pickle.dumps(layer))
    assert torch.equal(copied(x, y, TabledWeights(table, interval, c), edges), plain)


class Fixed(torch.nn.Module):
    """A convolution along one graph."""

    def __init__(self, layer: TensorProductConv, y: Tensor, interval: Tensor, edges: Graph) -> None:
        super().__init__()
        self.layer, self.y, self.interval, self.edge_index = layer, y.detach(), interval, edges.edge_index

    def forward(self, x: Tensor, table: Tensor, c: Tensor) -> Tensor:
        found: Tensor = self.layer(x, self.y, TabledWeights(table, self.interval, c), self.edge_index, RECEIVERS)
        return found


def test_under_autocast_the_widest_dtype_counts() -> None:
    x, y, table, c, interval = (t.detach() if t.is_floating_point() else t for t in operands(dtype=torch.float32))
    edges = graph()
    with torch.autocast("cpu", torch.bfloat16):
        z = conv()(x, y, TabledWeights(table.bfloat16(), interval, c), edges)
    assert torch.equal(z, conv()(x, y, TabledWeights(table.bfloat16().float(), interval, c), edges))


def test_bad_tables() -> None:
    x, y, table, c, interval = operands()
    layer, edges, numel = conv(), graph(), conv().weight_numel
    good = TabledWeights(table, interval, c)
    bad: dict[str, tuple[type[Exception], TabledWeights]] = {
        rf"a table of weights must be \[R, {numel}\]": (ShapeError, good._replace(table=table[:, 1:])),
        r"interval must be a tensor of weights": (DTypeError, good._replace(interval=interval.tolist())),
        r"orders must be an integer, at least 1, got 1.0": (ConfigError, good._replace(orders=1.0)),
        r"with 5 rows more for each interval": (ShapeError, good._replace(orders=5)),
        rf"got \[3, {numel}\] and coefficients": (ShapeError, good._replace(table=table[:3])),
        r"intervals and coefficients must be \[17\] and \[17, 4\]": (ShapeError, good._replace(interval=interval[1:])),
        r"intervals must be int64": (DTypeError, good._replace(interval=interval.int())),
        r"coefficients must have the dtype of x, torch.float64": (DTypeError, good._replace(coefficients=c.float())),
        r"must be on the device of the table, cpu": (DeviceError, good._replace(interval=interval.to("meta"))),
    }
    for message, (task, made) in bad.items():
        with pytest.raises(task, match=message):
            layer(x, y, made, edges)
    with pytest.raises(ShapeError, match="edge_attr must"):
        layer(x, y[1:], good, edges)
    shared = TensorProductConv(IN, SH, OUT, PATHS)
    with pytest.raises(ShapeError, match="must go to a layer with shared_weights=False, got True"):
        shared(x, y, good, edges)
    for wrong in (-1, ROWS - 3):
        moved = interval.clone()
        moved[5] = wrong
        with pytest.raises(
            IndexRangeError, match=rf"intervals must lie in \[0, 9\), the intervals of the table, got {wrong} at"
        ):
            layer(x, y, good._replace(interval=moved), edges)


def test_the_operator_refuses_what_would_read_elsewhere() -> None:
    """A call may have any numbers."""
    x, y, table, c, interval = operands()
    edges, key = graph(), conv().plan.form.key
    own = edges.tables(sorted_edges)
    tables = sorted_intervals(own, edges.edge_index, interval, SENDERS, RECEIVERS, 9)
    sizes = edges.sizes

    def run(tables: Tensor, table: Tensor = table, key: str = f"{key}/t4:1", **changed: Tensor) -> Any:
        return call_form((x, y, table, changed.get("c", c)), tables, sizes, key, "", True)

    (z,) = run(tables)
    for place in range(own.shape[0], tables.shape[0]):  # each number of the places alone
        damaged = tables.clone()
        damaged[place] = 1 << 40
        results = []
        for step in ("", "/g1:0010", "/g1:1101"):
            try:
                more = () if not step else (torch.randn_like(z),)
                operand = (x, y, table, c, *more)
                results.append(call_form(operand, damaged, sizes, f"{key}/t4:1{step}", "", True))
            except IndexRangeError:
                results.append(None)
        assert None in results
    with pytest.raises(ShapeError, match="graph must"):
        run(own)
    with pytest.raises(ShapeError, match="graph must"):
        run(tables, table[1:])
    for wrong in ("/t0:1", "/t4:0", "/t4:5", "/t99:1", "/t4"):
        with pytest.raises(ConfigError, match="a form must"):
            run(tables, key=key + wrong)
    with pytest.raises(ShapeError, match=r"c must be \[17, 4\]"):
        run(tables, c=c[:, 1:])
    with pytest.raises(ShapeError, match=r"intervals must be \[17\]"):
        sorted_intervals(own, edges.edge_index, interval[1:], SENDERS, RECEIVERS, 9)
    with pytest.raises(DTypeError, match="intervals must be int64"):
        sorted_intervals(own, edges.edge_index, interval.int(), SENDERS, RECEIVERS, 9)
    with pytest.raises(ShapeError, match="graph must"):
        sorted_intervals(own[1:], edges.edge_index, interval, SENDERS, RECEIVERS, 9)
