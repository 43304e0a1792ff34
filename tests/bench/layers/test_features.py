"""Norms, activations, gates and reshaping that the benchmark has beside ours agree with ours."""

import pytest
import torch

from eqlayers.bench.layers.features import (
    NONLINEAR,
    NORMS,
    RESHAPING,
    Drawn,
    PlainBatchNorm,
    PlainNorm,
    plain_drop_path,
)
from eqlayers.bench.layers.pair import blocks, features
from tests.bench.layers.test_pair import agree
from tests.each import each


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layer", [*NORMS, *NONLINEAR, *RESHAPING])
def test_both_have_the_numbers_of_the_definition(layer: str) -> None:
    agree(layer)


@each("centred", [False, True])
def test_plain_norms_give_each_group_a_mean_square_of_one(centred: bool) -> None:
    irreps = "6x0e+2x0o+3x1o"
    x = features(irreps, 5) + 2
    even, odd, vectors = blocks(PlainNorm(irreps, centred).double()(x), irreps)
    for group in (even, odd, vectors):
        torch.testing.assert_close(group.square().mean((1, 2)), torch.ones(5).double(), rtol=1e-4, atol=1e-4)
    assert bool((even.mean(1).abs() < 1e-12).all()) is centred, "of even scalars alone"
    assert bool((odd.mean(1).abs() > 1e-3).any())


def test_running_mean_squares_move_by_a_tenth() -> None:
    layer, x = PlainBatchNorm("2x0e+1x1o").double(), torch.tensor([[1.0, 2, 0, 0, 3], [3.0, 2, 3, 0, 0]]).double()
    layer(x)
    # mean squares 5 and 4 of the scalars, 3 of the components of the vectors
    torch.testing.assert_close(layer.running_squared_norm, torch.tensor([1.4, 1.3, 1.2]).double())


def test_whole_graphs_are_left_out_alike_at_every_call() -> None:
    batch = torch.arange(60) // 3
    layer = Drawn(plain_drop_path)
    out = layer(torch.ones(60, 2), batch)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert all(len(part.unique()) == 1 for part in out.split(3))
    assert torch.equal(layer(torch.ones(60, 2), batch), out)
