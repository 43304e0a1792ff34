"""Tables of radial networks: exactness, smoothness, derivatives of every order, and where a length lies."""

import copy
import math
import operator
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from eqlayers.errors import ConfigError, DTypeError, ShapeError
from eqlayers.functional import TabledWeights
from eqlayers.layers.radial.knots import Knots, spline, splines
from eqlayers.layers.radial.tables import _of_coefficients
from eqlayers.nn import BesselBasis, Interaction, KnotBasis, RadialNetwork, RadialTable, TabledBasis, TensorProductConv
from eqlayers.testing import check_derivatives

CUTOFF = 4.0


def network(width: int = 3) -> RadialNetwork:
    torch.manual_seed(0)
    return RadialNetwork(width, 6, CUTOFF, (8,)).double()


def polynomial(degree: int) -> Callable[[Tensor], Tensor]:
    """A polynomial of a degree that is 0 at the cutoff with its slope."""

    def of(r: Tensor) -> Tensor:
        factors = [torch.ones_like(r), *(r**k for k in range(1, degree - 1))]
        return (CUTOFF - r)[:, None] ** 2 * torch.stack(factors, 1) / 100

    return of


def derivatives(values: Tensor, at: Tensor, count: int) -> list[Tensor]:
    """Derivatives of one column by the lengths."""
    found = [values]
    for _ in range(count):
        found.append(torch.autograd.grad(found[-1].sum(), at, create_graph=True)[0])
    return found


def test_polynomials_are_exact() -> None:
    function = polynomial(3)
    table = RadialTable(function, CUTOFF, 9)
    last = CUTOFF - 3 * table.knots.step  # the table ends as functions with an envelope do
    r = torch.linspace(0.0, last, 101, dtype=torch.float64)
    torch.testing.assert_close(table(r).weights(), function(r), rtol=0, atol=1e-14)


def test_errors_fall_with_the_distance_of_knots() -> None:
    coarse, fine = (RadialTable(network(), knots=knots).error() for knots in (65, 129))
    for a, b, power in zip(coarse, fine, (4, 3), strict=True):
        assert 0.6 * 2**power < a / b < 1.7 * 2**power


def test_rows_of_a_spline_are_near_those_that_interpolate() -> None:
    """Where the ends are far; the first term of the series that is left out is the sixth difference over 216."""
    x = torch.linspace(0, 4, 41, dtype=torch.float64)
    values = torch.sin(x)[:, None]
    found = spline(values, "level")[1:-1]
    factor = 1 - (1 - torch.cos(x[1] - x[0])) / 3  # of a sine, whose second differences are known
    exact, error = values / factor, (2 - 2 * torch.cos(x[1] - x[0])) ** 3 / 216
    torch.testing.assert_close(found[8:-8], exact[8:-8], rtol=0, atol=1.1 * float(error))
    assert float((found - exact)[8:-8].abs().max()) > 0.5 * float(error)


def test_as_many_derivatives_are_continuous_as_promised() -> None:
    table = RadialTable(network(1), knots=17)
    knots = table.knots.at[2:-2]
    jumps = []
    sides = []
    for side in (-1e-9, 1e-9):
        r = (knots + side).requires_grad_()
        sides.append(derivatives(table(r).weights()[:, 0], r, 3))
    for low, high in zip(*sides, strict=True):
        jumps.append(float((low - high).detach().abs().max() / high.detach().abs().max()))
    assert max(jumps[:-1]) < 1e-6
    assert jumps[-1] > 1e-4


@pytest.mark.thinned(2)
def test_derivatives_of_every_order() -> None:
    table = RadialTable(network(2), knots=9)
    r = torch.tensor([0.3, 1.1, 1.9, 3.2, 3.9], dtype=torch.float64, requires_grad=True)
    check_derivatives(lambda r: table(r).weights(), (r,), max_elements=8)
    weights = tuple(weight.detach().requires_grad_() for weight in table.network.weights)

    def live(*weights: Tensor) -> Tensor:
        state = {f"network.weights.{number}": weight for number, weight in enumerate(weights)}
        made: TabledWeights = torch.func.functional_call(table, state, (r,))
        return made.weights()

    check_derivatives(live, weights, order=2, max_elements=8)


def test_gradients_reach_the_network_as_through_a_sum_by_hand() -> None:
    table = RadialTable(network(), knots=12)
    made = table(torch.linspace(0.1, 3.9, 40, dtype=torch.float64))
    rows = made.interval[:, None] * made.orders + torch.arange(made.coefficients.shape[1])
    by_hand = (made.coefficients[:, :, None] * made.table[rows]).sum(1)
    factors = torch.randn(by_hand.shape, dtype=torch.float64)
    torch.testing.assert_close(made.weights(), by_hand, rtol=1e-13, atol=1e-14)
    mine, wanted = (
        torch.autograd.grad((f * factors).sum(), table.parameters(), retain_graph=True)
        for f in (made.weights(), by_hand)
    )
    torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-13)


def test_float32_lies_where_float64_does() -> None:
    """Also one unit of the last place around a knot, where float32 would take the other interval's polynomial."""
    table = RadialTable(network(), knots=100)
    knots = table.knots.at.float()[1:-1]
    for r in (knots, knots.nextafter(torch.tensor(0.0)), knots.nextafter(torch.tensor(9.0))):
        exact = table(r.double())
        found = copy.deepcopy(table).float()(r)
        assert torch.equal(found.interval, exact.interval)
        assert found.coefficients.dtype == torch.float32
        torch.testing.assert_close(found.weights().double(), exact.weights(), rtol=0, atol=1e-6)


def test_weights_of_a_module_that_is_used_twice_stay_parameters() -> None:
    table = RadialTable(network().float(), knots=12)
    table.network.again = next(one for one in table.network.children() if [*one.parameters()])
    weights = [*table.parameters()]
    table.rows(lambda rows: rows, torch.ones(2, dtype=torch.float64))
    assert all(map(operator.is_, table.parameters(), weights))


def test_the_ends() -> None:
    table = RadialTable(network(), knots=33)
    r = torch.tensor([0.0, CUTOFF, CUTOFF + 1e-12, 9.0, torch.nan], dtype=torch.float64, requires_grad=True)
    found = table(r).weights()
    torch.testing.assert_close(found[0], network()(r[:1])[0], rtol=0, atol=1e-12)
    assert (found[1:4] == 0).all()
    assert found[4].isnan().all()
    slope = torch.autograd.grad(found[:4].sum(), r)[0]
    assert (slope[1:4] == 0).all()
    near = table(torch.tensor([CUTOFF - 1e-7], dtype=torch.float64)).weights()
    assert near.abs().max() < 1e-10  # with slope 0
    assert table(r[:0]).weights().shape == (0, 3)
    assert table(r[:1] - 1).weights().isnan().all()  # no length


def test_a_tolerance_chooses_the_knots() -> None:
    loose, tight = (RadialTable(network(), tolerance=t) for t in (1e-2, 1e-4))
    assert loose.knots.count < tight.knots.count
    assert max(tight.error()) <= 1e-4 < max(RadialTable(network(), knots=tight.knots.count // 2).error())


def test_convolutions_and_networks_read_tables() -> None:
    layer = Interaction("4x0e", "0e + 1o", "4x0e + 4x1o", cutoff=CUTOFF, radial_hidden=(8,)).double()
    edges = torch.tensor([[0, 1, 2, 0], [1, 0, 0, 2]])
    r = torch.tensor([1.0, 1.0, 2.5, 2.5], dtype=torch.float64, requires_grad=True)
    x, sh = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    exact = layer(x, sh, r, edges)
    layer.radial = RadialTable(layer.radial, tolerance=1e-5)
    tabled = layer(x, sh, r, edges)
    torch.testing.assert_close(tabled, exact, rtol=0, atol=1e-5)
    slopes = [torch.autograd.grad(f.square().sum(), r, create_graph=True)[0] for f in (exact, tabled)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-4)
    wanted, found = (torch.autograd.grad(s.square().sum(), layer.radial.network.weights[0])[0] for s in slopes)
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-3)
    paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
    conv = TensorProductConv("4x0e", "0e + 1o", "4x0e + 4x1o", paths, shared_weights=False)
    with pytest.raises(ShapeError, match="a table of weights must"):
        conv(x, sh, RadialTable(network(), knots=9)(r), edges)


def test_inference_mode() -> None:
    table, r = RadialTable(network(2), knots=9), torch.linspace(0.5, 4.5, 6, dtype=torch.float64)
    found, error = table(r).weights(), table.error()
    with torch.inference_mode():
        assert torch.equal(table(r).weights(), found)
        assert table.error() == error
    assert torch.equal(table(r.clone().requires_grad_()).weights(), found)


def test_transforms_of_torch_func() -> None:
    table, r = RadialTable(network(2), knots=9), torch.tensor([0.7, 2.1], dtype=torch.float64)
    found = table(r).weights()
    assert torch.equal(torch.func.vmap(lambda one: table(one[None]).weights()[0])(r), found)
    rows = torch.func.jacrev(lambda r: table(r).weights())(r)
    torch.testing.assert_close(torch.func.jacfwd(lambda r: table(r).weights())(r), rows)

    def sums(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(table, weights, (r,)).weights().sum()

    weights = dict(table.named_parameters())
    wanted = torch.autograd.grad(found.sum(), list(weights.values()))
    torch.testing.assert_close(tuple(torch.func.grad(sums)(weights).values()), wanted)


def test_no_curvature_at_the_cutoff_where_the_network_has_none() -> None:
    made = network(2)
    for knots in (33, 200):
        r = torch.tensor([CUTOFF * (1 - 1e-12)], dtype=torch.float64, requires_grad=True)
        for one in RadialTable(made, knots=knots)(r).weights()[0]:
            (slope,) = torch.autograd.grad(one, r, create_graph=True, retain_graph=True)
            assert float(torch.autograd.grad(slope.sum(), r, retain_graph=True)[0].abs()) < 1e-8

    def cosine(r: Tensor) -> Tensor:
        return (0.5 * (torch.cos(math.pi * r / CUTOFF) + 1))[:, None]  # it has

    assert RadialTable(cosine, CUTOFF, knots=200).error().slopes < 1e-6


def test_errors_are_hardly_larger_between_the_places_that_are_tried() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        table = RadialTable(network(3), knots=40)
        assert max(table.error(41)) < 1.1 * max(table.error())


def test_bad_input() -> None:
    made = network()
    bad: dict[str, Callable[[], object]] = {
        "cutoff must be": lambda: RadialTable(lambda r: r[:, None]),
        "knots must be an integer, at least 6, got 4": lambda: RadialTable(made, knots=4),
        "functions of a table must be 0 at the cutoff, 4 A, got 4": lambda: RadialTable(lambda r: r[:, None], CUTOFF),
        "functions of a table must be 0 with their slopes at": lambda: RadialTable(lambda r: (4 - r)[:, None], CUTOFF),
        "network must be finite from 0 to 4 A": lambda: RadialTable(lambda r: (4 - r)[:, None] / r[:, None], CUTOFF),
        "tolerance must be one that a table can keep, got 1e-14": lambda: RadialTable(network(), tolerance=1e-14),
    }
    for message, make in bad.items():
        with pytest.raises(ConfigError, match=message):
            make()
    with pytest.raises(ShapeError, match=r"network must give \[N, W\] for lengths \[N\], got \[6\]"):
        RadialTable(lambda r: 0 * r, CUTOFF)
    table = RadialTable(made)
    with pytest.raises(ShapeError, match=r"lengths must be \[E\], got \[2, 2\]"):
        table(torch.ones(2, 2))
    with pytest.raises(DTypeError, match="lengths must"):
        table(torch.ones(2, dtype=torch.int64))


def test_what_training_broke_is_seen() -> None:
    made = network()
    table = RadialTable(made)
    with torch.no_grad():
        made.weights[0].mul_(math.nan)
    with pytest.raises(ConfigError, match="a radial network must"):
        table.error()


def test_basis_of_the_field_without_envelope_is_refused() -> None:
    basis = BesselBasis(4, CUTOFF)
    learned = torch.nn.Sequential(torch.nn.Linear(1, 2))
    with pytest.raises(ConfigError, match="basis must"):
        TabledBasis(learned, cutoff=CUTOFF)
    with pytest.raises(ConfigError, match="Multiply them with an envelope"):
        RadialTable(lambda r: basis(r) + 0.5, CUTOFF)


class Waves(torch.nn.Module):
    """Sines times a smooth envelope, in the dtype of their weights."""

    cutoff, continuous = 4.0, 2

    def __init__(self) -> None:
        super().__init__()
        self.basis = BesselBasis(8, 4.0)
        self.mixed = torch.nn.Linear(8, 16, bias=False)

    def forward(self, lengths: Tensor) -> Tensor:
        found: Tensor = self.mixed(self.basis(lengths))
        return found


@pytest.mark.parametrize("training", [True, False])
def test_slopes_keep_the_digits_of_float32_however_near_the_knots(training: bool) -> None:
    """Differences of rounded values lost digits: 3e-6 with 256 knots and 3e-4 with 8,192."""
    torch.manual_seed(0)
    made = Waves()
    r = torch.rand(400).mul_(3.9).add_(0.05)
    for knots in (256, 512, 1024, 2048, 8192):
        table = RadialTable(made, knots=knots).train(training)
        wanted, found = (
            _slopes(one, r.to(kind))
            for one, kind in ((copy.deepcopy(table).double(), torch.float64), (table, torch.float32))
        )
        assert float((found - wanted).abs().max() / wanted.abs().max()) <= 2e-6


def _slopes(table: RadialTable, lengths: Tensor) -> Tensor:
    at = lengths.requires_grad_()
    weights = table(at).weights()
    return torch.stack([torch.autograd.grad(one.sum(), at, retain_graph=True)[0].double() for one in weights.T])


def test_the_table_of_a_function_that_is_no_module_is_made_in_every_call() -> None:
    """A closure holds the weight: gradients reach the weight, and the table follows its new values."""
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    table = RadialTable(lambda r: ((1 - (r / 4).clamp(max=1)) ** 3)[:, None] * weight, 4.0, knots=64)
    lengths = torch.tensor([1.0, 2.0], dtype=torch.float64)
    first = table(lengths).weights()
    (gradient,) = torch.autograd.grad(first.sum(), weight)
    torch.testing.assert_close(gradient, first.detach().sum(0), rtol=1e-12, atol=0)
    with torch.no_grad():
        weight.fill_(2.0)
        torch.testing.assert_close(table(lengths).weights(), 2 * first, rtol=1e-12, atol=0)
    assert "kept" not in repr(table)


@pytest.mark.parametrize("knots", [None, 32], ids=["table of a network", "network at knots"])
def test_a_live_table_of_weights_that_are_not_trained_is_made_once(
    knots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By value: another weight, however it came, makes another; and training makes one in every call."""
    calls = []
    radial = RadialNetwork(3, hidden=(4,), basis=None if knots is None else TabledBasis(BesselBasis(8, 5.0), knots))
    table = RadialTable(radial, knots=32) if knots is None else radial
    hidden = RadialNetwork._hidden
    monkeypatch.setattr(RadialNetwork, "_hidden", lambda self, *of: (calls.append(0), hidden(self, *of))[1])
    lengths = torch.tensor([1.0, 2.0])

    def weights() -> torch.Tensor:
        return table(lengths).weights()

    first = weights()
    weights()
    assert (first.requires_grad, len(calls)) == (True, 2)
    table.requires_grad_(False)
    kept = [weights() for _ in range(3)]
    assert len(calls) == 3
    torch.testing.assert_close(kept[2], first.detach(), rtol=1e-5, atol=1e-6)
    radial.weights[0].data.mul_(2.0)  # without a trace of a version
    assert not torch.equal(weights(), kept[0])
    assert len(calls) == 4
    assert len(list(copy.deepcopy(table).state_dict())) == len(list(table.state_dict()))
    if knots is None:
        assert "kept while its weights stay" in repr(table)
    table.requires_grad_(True)
    with torch.no_grad():
        weights()
        weights()
    assert len(calls) == 4


@pytest.mark.parametrize("at_knots", [True, False], ids=["network at knots", "table of a network"])
def test_in_evaluation_mode_gradients_of_weights_are_made_where_they_are_asked_for(
    at_knots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is kept has the derivatives of one that is made in every call; forces alone make none."""
    calls = []
    hidden = RadialNetwork._hidden
    monkeypatch.setattr(RadialNetwork, "_hidden", lambda self, *of: (calls.append(0), hidden(self, *of))[1])
    radial = RadialNetwork(3, hidden=(4,), basis=TabledBasis(BesselBasis(8, 5.0), 32) if at_knots else None).double()
    table = radial if at_knots else RadialTable(radial, knots=32)
    lengths = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def energy() -> Tensor:
        weights: Tensor = table(lengths).weights()
        return weights.square().sum()

    def derivatives() -> list[Tensor]:
        parameters = list(table.parameters())
        first = torch.autograd.grad(energy(), parameters, create_graph=True)
        assert all(one.requires_grad for one in first)
        (forces,) = torch.autograd.grad(energy(), lengths, create_graph=True)
        return [*first, *torch.autograd.grad(sum(one.square().sum() for one in (*first, forces)), parameters)]

    wanted = derivatives()
    table.eval()
    torch.testing.assert_close(derivatives(), wanted, rtol=1e-9, atol=1e-12)
    calls.clear()
    for watched in (nullcontext(), torch.device("cpu"), torch.profiler.profile()):
        with watched:
            torch.autograd.grad(energy(), lengths)
        assert not calls, f"the table was made again in {watched}"
    seen: list[Tensor] = []
    handle = radial.weights[0].register_hook(seen.append)
    energy().backward()
    handle.remove()
    assert len(seen) == 1
    torch.testing.assert_close(radial.weights[0].grad, wanted[0].detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("knots", [None, 64], ids=["table of a network", "network at knots"])
def test_a_kept_table_is_rounded_once(knots: int | None) -> None:
    """From float64: roundings of a network in float32 between knots would be slopes."""
    made = RadialNetwork(5, hidden=(16,), basis=None if knots is None else TabledBasis(BesselBasis(8, 5.0), knots))
    table = (RadialTable(made, knots=64) if knots is None else made).eval()
    rounded, exact = (one(torch.tensor([1.0])).table for one in (table, copy.deepcopy(table).double()))
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact.float())


@pytest.mark.kernels
@pytest.mark.parametrize("end", ["open", "level", "flat"])
@pytest.mark.parametrize("pairs", [1, 3])
def test_splines_of_pairs_are_sums_along_a_graph(pairs: int, end: str) -> None:
    values = torch.randn(pairs * 9, 5, dtype=torch.float64, requires_grad=True)
    wanted = spline(values.unflatten(0, (pairs, 9)), end).flatten(0, 1)
    found = splines(values, 9, end)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    weights = torch.randn_like(found)
    slopes = [torch.autograd.grad((one * weights).sum(), values)[0] for one in (found, wanted)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-14)
    assert splines(values[:, :0], 9, end).shape == (pairs * 11, 0)
    torch.testing.assert_close(splines(values.half(), 9, end), wanted.half(), rtol=0, atol=2e-2)


def test_live_tables_in_a_trace_that_no_call_precedes() -> None:
    lengths = torch.rand(6) * CUTOFF
    for number, trace in enumerate((
        lambda network: torch.compile(network, backend="aot_eager", fullgraph=True)(lengths),
        lambda network: torch.jit.trace(network, (lengths,))(lengths),
    )):  # fmt: skip
        basis = TabledBasis(BesselBasis(4, CUTOFF), 17 + number)
        network = RadialNetwork(5, hidden=(4,), basis=basis).requires_grad_(False)
        found = trace(_Weights(network))
        torch.testing.assert_close(found, network(lengths).weights())


class _Weights(torch.nn.Module):
    """The weights of edges as a tensor."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        return self.network(lengths).weights()


@pytest.mark.parametrize("pairs", [1, 3])
def test_live_tables_hold_the_coefficients_of_the_same_splines(pairs: int) -> None:
    torch.manual_seed(0)
    functions = torch.randn(pairs * 20, 4, dtype=torch.float64)
    lengths, pair = torch.rand(31, dtype=torch.float64) * 1.1 * CUTOFF, torch.arange(31).remainder(pairs)
    interval, coefficients = Knots(20, CUTOFF)(lengths)
    read = KnotBasis(interval + 20 * pair, coefficients, functions, 20, "level", pairs)
    mixed = torch.nn.Linear(4, 3, bias=False).double()
    live = splines(mixed(read.basis), read.knots, read.end)
    assert live.shape == (pairs * 22, 3)
    wanted = read.weights(read.table(mixed)).weights()
    torch.testing.assert_close(_of_coefficients(read, live).weights(), wanted, rtol=0, atol=1e-13)
    interval, coefficients = Knots(20, CUTOFF)(lengths, 1)
    frozen = read._replace(interval=interval + 22 * pair, coefficients=coefficients, orders=1)
    assert frozen.num_rows == len(live) < read.num_rows == len(read.table(mixed))
    torch.testing.assert_close(frozen.weights(live).weights(), wanted, rtol=0, atol=1e-13)
    torch.testing.assert_close(frozen.weights(frozen.table(mixed)).weights(), wanted, rtol=0, atol=1e-13)


def test_slopes_of_live_tables_keep_the_digits_of_float32() -> None:
    """A network at knots while its weights are trained; coefficients of splines lost them: 1e-4 with 8,192 knots."""
    torch.manual_seed(0)
    r = torch.rand(300).mul_(4.6).add_(0.2)
    for knots, bound in ((256, 2e-5), (321, 1e-6), (512, 1e-6), (2048, 1e-6), (8192, 1e-6)):
        network = RadialNetwork(16, hidden=(32, 32), basis=TabledBasis(BesselBasis(8, 5.0), knots))
        wanted, found = (
            _slopes(one, r.to(kind))
            for one, kind in ((copy.deepcopy(network).double(), torch.float64), (network, torch.float32))
        )
        assert next(network.parameters()).requires_grad
        assert float((found - wanted).abs().max() / wanted.abs().max()) <= bound, knots


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_live_tables_of_half_precision_are_as_good_as_frozen_ones(dtype: torch.dtype) -> None:
    """Coefficients of splines, which full precision keeps for few knots, would be off by a tenth."""
    torch.manual_seed(0)
    made = RadialNetwork(8, hidden=(32,), basis=TabledBasis(BesselBasis(8, 5.0), 256))
    r = torch.rand(300).mul_(4.6).add_(0.2)
    wanted, live = (_slopes(one, r.to(kind)) for one, kind in ((made.double(), torch.float64), (made.to(dtype), dtype)))
    assert float((live - wanted).abs().max() / wanted.abs().max()) <= 20 * torch.finfo(dtype).eps
