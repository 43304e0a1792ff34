"""The search for knots: bounded in time and memory, for every function, and what has no table."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.errors import ConfigError, EqlayersError
from eqlayers.layers.radial.knots import Knots
from eqlayers.layers.radial.radial_table import fewest_knots, table_error
from eqlayers.nn import RadialNetwork, RadialTable
from tests.each import refused


class Kinked(torch.nn.Module):
    """Weights whose second derivative jumps at 4.5 A, as that of XPLOR's cutoff does; notes how many it makes."""

    cutoff, most = 5.0, 0

    def __init__(self, weights: int, kink: float = 4.5) -> None:
        super().__init__()
        self.scales = torch.nn.Parameter(torch.linspace(1.0, 2.0, weights))
        self.kink = kink

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        Kinked.most = max(Kinked.most, lengths.shape[0] * self.scales.shape[0])
        v = ((lengths - self.kink) / (5 - self.kink)).clamp(0, 1)
        return ((1 - v * v) ** 2)[:, None] * self.scales  # 0 with its slope at 5


def test_the_search_for_knots_is_bounded() -> None:
    """It stops where doubling no longer helps, says why, and never holds more than some megabytes."""
    Kinked.most = 0
    odd = Kinked(640, 4.123).double()
    with pytest.raises(
        ConfigError,
        match=r"with 1024 knots .* the largest at 4\.12\d A; .* fall .* the second derivative jumps at 4\.123 A",
    ):
        RadialTable(odd, tolerance=1e-7)
    assert Kinked.most <= 1 << 20
    assert RadialTable(Kinked(3), tolerance=3e-2).knots.count <= 512
    with pytest.raises(ConfigError, match=r"with \d+ knots .* float32 has no more digits"):
        RadialTable(RadialNetwork(3, 8, 5.0, (16,)).float(), tolerance=1e-8)


def test_a_knot_is_put_where_a_second_derivative_jumps() -> None:
    """Errors of the network of SevenNet's cutoff fall as elsewhere, then."""
    table = RadialTable(Kinked(2).double(), tolerance=1e-6)
    assert table.knots.count <= 1281
    assert float(table.knots.at[table.knots.kink]) == 4.5
    assert max(table.error(41)) < 1.1e-6


test_functions_that_have_no_table = refused("function, message", [
        (lambda r: None, "must be a tensor"), (lambda r: 1j * _cubes(r), "floating-point tensor"),
        (lambda r: _cubes(r).long(), "floating-point tensor"), (lambda r: _cubes(r).flatten(), r"must give \[N, W\]"),
        (lambda r: _cubes(r).detach(), "have no slopes"),
    ], lambda function: RadialTable(function, 4.0, tolerance=1e-3), error=EqlayersError)  # fmt: skip


def test_a_function_that_is_0_has_a_table() -> None:
    """It depends on no length, and so has no graph."""
    table = RadialTable(lambda r: r.new_zeros(len(r), 3), 4.0, tolerance=1e-3)
    assert not table(torch.tensor([1.0, 2.0])).weights().any()


def _cubes(r: Tensor) -> Tensor:
    return ((4.0 - r).clamp(min=0) ** 3)[:, None]


@pytest.mark.parametrize("hard_first", [True, False])
def test_a_search_ends_with_knots_for_every_function(hard_first: bool) -> None:
    """Whichever of the functions comes first: tables with these knots keep the tolerance for all."""
    both = [lambda r: _cubes(r) * torch.sin(9 * r)[:, None], _cubes]
    knots, reported = fewest_knots(Knots(16, 4.0), both if hard_first else both[::-1], torch.float64, 1e-4)
    errors = [max(table_error(knots, one).error) for one in both]
    torch.testing.assert_close(max(map(max, reported)), max(errors), rtol=0.2, atol=0)
    assert 1e-5 < max(errors) <= 1e-4
    assert min(errors) < 1e-5


def test_the_order_of_functions_does_not_matter() -> None:
    """Errors of one function are compared with errors of the same function with half of the knots."""

    def wave(w: float) -> Callable[[Tensor], Tensor]:
        return lambda r: _cubes(r) * torch.sin(w * r)[:, None]

    functions = [wave(w) for w in (1.6562588584, 3.3316920541, 5.6966414241)]
    found = [fewest_knots(Knots(16, 4.0), some, torch.float64, 1e-6)[0].count for some in permutations(functions)]
    assert max(found) - min(found) <= 16


def test_weights_at_the_cutoff_and_beyond_are_0_whatever_the_function_is_there() -> None:
    """With their slopes: nothing is extrapolated, and edges at the cutoff are none."""
    table = RadialTable(lambda r: (1 + r)[:, None], 4.0, knots=16, open_end=True)
    for dtype in (torch.float64, torch.float32):
        lengths = torch.tensor([4.0 - 1e-6, 4.0, 4.0 + 1e-6, 9.0], dtype=dtype, requires_grad=True)
        weights = table(lengths).weights()[:, 0]
        (slopes,) = torch.autograd.grad(weights.sum(), lengths)
        torch.testing.assert_close(weights[0].double(), torch.tensor(5.0).double(), rtol=0, atol=1e-5)
        assert float(slopes[0]) == pytest.approx(1.0, abs=1e-4)
        assert not weights[1:].any()
        assert not slopes[1:].any()


class Once(torch.autograd.Function):
    """Has no second derivative."""

    @staticmethod
    def forward(ctx: Any, r: Tensor) -> Tensor:
        ctx.save_for_backward(r)
        return (4 - r).clamp(min=0) ** 3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return -3 * g * (4 - ctx.saved_tensors[0]).clamp(min=0) ** 2


class NoCopy(torch.nn.Module):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.rows = (row for row in [1])

    def forward(self, r: Tensor) -> Tensor:
        return _cubes(r) * self.weight


def test_what_a_search_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match="autograd goes through twice"):
        RadialTable(lambda r: Once.apply(r)[:, None], 4.0, tolerance=1e-3)
    with pytest.raises(ConfigError, match="must be a module that can be copied, got NoCopy"):
        RadialTable(NoCopy(), 4.0, tolerance=1e-3)


def test_one_column_without_slopes_has_no_table() -> None:
    with pytest.raises(ConfigError, match="errors no longer fall"):
        RadialTable(lambda r: torch.cat([_cubes(r), _cubes(r).detach()], 1), 4.0, tolerance=1e-3)
