"""Batches of bounded size: every sample once, never too large, as many in each epoch, and drawn anew."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from eqlayers.data.batches import EdgeBatchSampler, EpochSampler, SharedBatchSampler, make_loader
from eqlayers.errors import ConfigError
from tests.each import each


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


def test_an_epoch_is_drawn_when_its_first_sample_is_asked_for():
    """Lightning calls iter() before it sets the epoch of a run that goes on."""
    orders = EpochSampler(12, 0), EdgeBatchSampler(EpochSampler(12, 0), np.full(12, 10), 40, 4)
    for order in (*orders, SharedBatchSampler(EpochSampler(12, 0), 5, 0, 1)):
        drawn, epochs = iter(order), getattr(order, "sampler", order)
        epochs.set_epoch(7)
        first = list(drawn)
        epochs.set_epoch(7)
        assert first == list(order)


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"max_edges must be at least the 50 edges of the largest .*, got 40. Raise"):
        sampler([10, 50], 40)
    with pytest.raises(ConfigError, match="n_edges must be of the 3 samples, got 2"):
        EdgeBatchSampler(EpochSampler(3, 0), np.array([1, 2]), 10, 2)
    assert list(sampler([40, 40], 40)) in ([[0], [1]], [[1], [0]])
    assert len(sampler([0, 0, 0], 1)) == 1


# -- several processes ------------------------------------------------------------------------------------------------


@each("processes", [1, 2, 3, 5])
@each("batch_size", [1, 2, 4])
def test_processes_share_every_sample_once_in_as_many_batches(batch_size, processes):
    for num in range(processes, 30):
        shares = [SharedBatchSampler(range(num), batch_size, rank, processes) for rank in range(processes)]
        batches = [list(share) for share in shares]
        assert {len(of_rank) for of_rank in batches} == {len(share) for share in shares} == {len(batches[0])}
        assert all(batch for of_rank in batches for batch in of_rank)
        assert sorted(np.concatenate([batch for of_rank in batches for batch in of_rank]).tolist()) == list(range(num))
        together = [sorted(np.concatenate(step).tolist()) for step in zip(*batches, strict=True)]
        assert np.concatenate(together).tolist() == list(range(num))  # step by step, what one process would take
        full = batch_size * processes
        assert [len(step) for step in together[:-1]] == [full] * (len(together) - 1)
        assert len(together[-1]) < full + processes


def test_one_process_has_the_usual_batches():
    usual = torch.utils.data.BatchSampler(range(11), 4, drop_last=False)
    assert list(SharedBatchSampler(range(11), 4, 0, 1)) == [list(batch) for batch in usual]


def test_processes_draw_the_same_order():
    shares = [SharedBatchSampler(EpochSampler(20, 0), 3, rank, 2) for rank in (0, 1)]
    first = [list(share) for share in shares]
    second = [list(share) for share in shares]
    for epoch in (first, second):
        assert sorted(np.concatenate([batch for of_rank in epoch for batch in of_rank]).tolist()) == list(range(20))
    assert first != second
    shares[0].sampler.set_epoch(0)  # as Lightning does
    assert list(shares[0]) == first[0]


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_batches_of_bounded_size(processes):
    n_edges = np.random.default_rng(2).integers(0, 301, 100)
    shares = [EdgeBatchSampler(EpochSampler(100, 0), n_edges, 400, 9, rank, processes) for rank in range(processes)]
    for _ in range(2):
        epoch = [list(share) for share in shares]
        assert {len(of_rank) for of_rank in epoch} == {len(share) for share in shares}
        assert sorted(np.concatenate([batch for of_rank in epoch for batch in of_rank]).tolist()) == list(range(100))
        assert max(n_edges[batch].sum() for of_rank in epoch for batch in of_rank) <= 400
    lone = [EdgeBatchSampler(EpochSampler(4, 0), np.zeros(4, int), 9, 9, rank, 2) for rank in (0, 1)]
    assert sorted(len(batch) for share in lone for batch in share) == [2, 2]
    # three batches of one sample each on two processes: the first comes twice
    odd = [list(EdgeBatchSampler(EpochSampler(3, 0), np.full(3, 9), 9, 9, rank, 2)) for rank in (0, 1)]
    assert [len(of_rank) for of_rank in odd] == [2, 2]
    assert odd[1][1] == odd[0][0]
    assert {batch[0] for of_rank in odd for batch in of_rank} == {0, 1, 2}


def test_more_processes_than_samples_are_refused():
    match = r"each part of the data must hold a structure for each of the 3 processes, got one with 2\. Lower"
    with pytest.raises(ConfigError, match=match):
        SharedBatchSampler(range(2), 4, 0, 3)
    with pytest.raises(ConfigError, match=match):
        EdgeBatchSampler(EpochSampler(2, 0), np.array([1, 1]), 9, 9, 0, 3)


# -- loaders of training ----------------------------------------------------------------------------------------------


class Samples(torch.utils.data.Dataset):
    """Samples with 1 to 13 edges; every third has no energy, and each has as many rows of forces as its number."""

    n_edges = np.arange(1, 14)
    n_rows = {"energy": (np.arange(13) % 3 > 0).astype(int), "forces": np.arange(13)}  # noqa: RUF012

    def __len__(self):
        return 13

    def __getitem__(self, index):
        return Data(idx=torch.tensor([index]), num_nodes=1)


@pytest.mark.filterwarnings("ignore:.*fork")
@each("processes", [1, 2])
@each("max_edges", [None, 20])
@each("added, limit", [(1, 99), (3, 99), (3, 2), (2, float("inf"))])
def test_batches_know_the_rows_of_their_step(added, limit, max_edges, processes):
    """By hand: the rows of all batches of a step, over all that are in it, and so the mean of the larger batch."""
    seen = []
    for rank in range(processes):
        trainer = SimpleNamespace(global_rank=rank, world_size=processes)
        trainer.strategy = SimpleNamespace(root_device=torch.device("cpu"))
        trainer.accumulate_grad_batches, trainer.num_training_batches = added, limit
        loader = make_loader(Samples(), 0, 0, trainer, 2, EpochSampler(13, 0), max_edges)
        seen.append([(batch.idx.tolist(), getattr(batch, "step_rows", None)) for batch in loader])
    most = int(min(limit, len(seen[0])))
    for first in range(0, most, added):
        step = [seen[rank][batch] for rank in range(processes) for batch in range(first, min(first + added, most))]
        samples = np.concatenate([idx for idx, _ in step])
        for name, rows in Samples.n_rows.items():
            want = rows[samples].sum() / (added * processes)
            assert [counts[name] for _, counts in step] == pytest.approx([want] * len(step), rel=1e-12)
    assert all(rows is None for of_rank in seen for _, rows in of_rank[most:])


def test_workers_load_the_epoch_that_is_set_after_iter():
    loader = make_loader(Samples(), 1, 0, None, 4, EpochSampler(13, 0))
    batches = iter(loader)
    loader.sampler.set_epoch(5)
    order = np.concatenate([batch.idx for batch in batches]).tolist()
    assert order == np.random.default_rng([0, 5]).permutation(13).tolist()
