"""Orders and batches that depend on a seed and the epoch alone, and the loader that all data modules use."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.loader import DataLoader

from eqlayers.checks import check_integer, check_type
from eqlayers.data.splits import check_integers
from eqlayers.errors import ConfigError

__all__ = ["EdgeBatchSampler", "EpochSampler", "make_loader"]


class EpochSampler(torch.utils.data.Sampler[int]):
    """Random order of a dataset that depends on the seed and the epoch alone.

    The global random state is neither read nor changed, so the order does not depend on the model, and a resumed run
    continues with the batches that the interrupted one would have had. Lightning calls `set_epoch`; without it every
    pass is the next epoch.

    Args:
        num_samples: Length of the dataset.
        seed: A non-negative integer.

    Example:
        >>> sampler = EpochSampler(5, seed=0)
        >>> first, second = list(sampler), list(sampler)
        >>> sampler.set_epoch(0)
        >>> first == list(sampler), first == second
        (True, False)
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples = check_integer("num_samples", num_samples, 0)
        self.seed = check_integer("seed", seed, 0)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self.epoch = check_integer("epoch", epoch, 0)

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples)
        self.epoch += 1
        return iter(order.tolist())


class EdgeBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Random batches of at most some number of edges, and as many batches in every epoch.

    Memory grows with the edges of a batch, so it is flat where structures differ in size. Sizes are rounded up by
    1/16 at most and packed once, the largest first into the batch with the fewest edges; an epoch draws which
    structures of a size fill the places, and the order of the batches. A schedule of learning rates can therefore
    count on the number of batches.

    Args:
        sampler: Its order decides.
        n_edges: Edges of every sample, `[N]`.
        max_edges: Most edges in a batch.
        batch_size: Most samples in a batch.

    Raises:
        ConfigError: A single sample has more edges than ``max_edges``.

    Example:
        >>> batches = EdgeBatchSampler(EpochSampler(4, seed=0), np.array([60, 40, 60, 40]), max_edges=128, batch_size=8)
        >>> len(batches), sorted(sum(batches, []))
        (2, [0, 1, 2, 3])
    """

    def __init__(self, sampler: EpochSampler, n_edges: NDArray[np.int64], max_edges: int, batch_size: int) -> None:
        check_type("sampler", sampler, EpochSampler, "an EpochSampler", "Pass EpochSampler(len(dataset), seed).")
        n_edges = check_integers("n_edges", n_edges, "[N], of each sample")
        max_edges, batch_size = check_integer("max_edges", max_edges, 1), check_integer("batch_size", batch_size, 1)
        if len(n_edges) != len(sampler):
            raise ConfigError(
                f"n_edges must be of the {len(sampler)} samples, got {len(n_edges)}. Take those of the dataset."
            )
        if n_edges.max(initial=0) > max_edges:
            raise ConfigError(
                f"max_edges must be at least the {n_edges.max()} edges of the largest structure, got {max_edges}. "
                "Raise it, or lower the cutoff."
            )
        self.sampler = sampler  # Lightning calls its set_epoch
        step = 2 ** np.maximum(np.log2(np.maximum(n_edges, 1)).astype(np.int64) - 4, 0)
        self._sizes = np.minimum(-(-n_edges // step) * step, max_edges)
        self._places = _pack(np.sort(self._sizes)[::-1], max_edges, batch_size)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.fromiter(self.sampler, dtype=np.int64, count=len(self._sizes))
        by_size = order[np.argsort(-self._sizes[order], kind="stable")]
        place_in_order = np.empty_like(order)
        place_in_order[order] = np.arange(len(order))
        batches = [by_size[places] for places in self._places]
        batches.sort(key=lambda batch: int(place_in_order[batch].min()))
        return iter([batch.tolist() for batch in batches])


def _pack(sizes: NDArray[np.int64], most: int, count: int) -> list[NDArray[np.int64]]:
    """Places of descending sizes in as few batches as the rule "into the emptiest" needs."""
    num = max(-(-int(sizes.sum()) // most), -(-len(sizes) // count))
    while True:
        batches: list[list[int]] = [[] for _ in range(num)]
        heap = [(0, batch) for batch in range(num)]
        for place, size in enumerate(sizes.tolist()):
            if not heap or heap[0][0] + size > most:
                break
            filled, batch = heapq.heappop(heap)
            batches[batch].append(place)
            if len(batches[batch]) < count:
                heapq.heappush(heap, (filled + size, batch))
        else:
            return [np.array(batch, dtype=np.int64) for batch in batches if batch]
        num += max(1, num // 50)


def make_loader(dataset: Any, num_workers: int, seed: int, on_gpu: bool, **batches: Any) -> DataLoader:
    """A loader of graphs that draws nothing from the global random state.

    Args:
        dataset: Of ``torch_geometric.data.Data``.
        num_workers: Processes that build batches; 0 builds them in the main process.
        seed: Of the workers.
        on_gpu: Whether batches go to a GPU.
        **batches: ``batch_size`` and ``sampler``, or ``batch_sampler``.
    """
    return DataLoader(
        dataset,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=on_gpu,
        # A loader without a generator draws a seed for its workers from the global one at every epoch.
        generator=torch.Generator().manual_seed(seed),
        **batches,
    )
