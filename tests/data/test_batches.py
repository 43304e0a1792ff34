"""Batches of bounded size: every sample once, never too large, as many in each epoch, and drawn anew."""

from __future__ import annotations

import numpy as np
import pytest

from eqlayers.data.batches import EdgeBatchSampler, EpochSampler
from eqlayers.errors import ConfigError


def sampler(n_edges, max_edges, batch_size=1000, seed=0) -> EdgeBatchSampler:
    return EdgeBatchSampler(EpochSampler(len(n_edges), seed), np.asarray(n_edges), max_edges, batch_size)


@pytest.mark.parametrize(("max_edges", "batch_size"), [(400, 1000), (400, 5), (3000, 16), (300, 1000)])
def test_bounds_and_counts(max_edges, batch_size):
    n_edges = np.random.default_rng(0).integers(0, 301, 200)
    batches = sampler(n_edges, max_edges, batch_size)
    seen = set()
    for _ in range(3):
        epoch = list(batches)
        assert sorted(np.concatenate(epoch).tolist()) == list(range(200))
        assert max(n_edges[batch].sum() for batch in epoch) <= max_edges
        assert max(len(batch) for batch in epoch) <= batch_size
        assert len(epoch) == len(batches)
        seen.add(str(epoch))
    assert len(seen) == 3
    least = max(n_edges.sum() / max_edges, 200 / batch_size)
    assert len(batches) < 1.35 * least + 1  # sizes are rounded up by 1/16, and packing loses some


def test_partners_change():
    """Samples of one size are shuffled among all batches."""
    batches = sampler(np.full(100, 72), 720)
    assert len(batches) == 10
    partners = {frozenset(batch) for _ in range(5) for batch in batches if 0 in batch}
    assert len(partners) == 5


def test_seed_and_epoch_alone_decide():
    n_edges = np.random.default_rng(1).integers(1, 100, 60)
    one, other = sampler(n_edges, 300, seed=3), sampler(n_edges, 300, seed=3)
    first, second = list(one), list(one)
    assert list(other) == first
    assert first != second
    other.sampler.set_epoch(1)  # as Lightning does
    assert list(other) == second
    assert list(sampler(n_edges, 300, seed=4)) != first


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"max_edges must be at least the 50 edges of the largest .*, got 40. Raise"):
        sampler([10, 50], 40)
    with pytest.raises(ConfigError, match="n_edges must be of the 3 samples, got 2"):
        EdgeBatchSampler(EpochSampler(3, 0), np.array([1, 2]), 10, 2)
    assert list(sampler([40, 40], 40)) in ([[0], [1]], [[1], [0]])
    assert len(sampler([0, 0, 0], 1)) == 1
