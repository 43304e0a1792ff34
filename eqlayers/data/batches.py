"""Orders and batches that depend on a seed and the epoch alone, and the loader that all data modules use."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.loader import DataLoader

from eqlayers.data.splits import check_integers

from ..core.checks import check_integer, check_type
from ..core.errors import ConfigError


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

    def order(self) -> list[int]:
        """The order of the next pass."""
        order: list[int] = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        order = self.order()  # when the first sample is asked for: Lightning sets the epoch after iter()
        self.epoch += 1
        yield from order


class _Order(Iterable[int], Sized, Protocol): ...


class _StepSampler(torch.utils.data.Sampler[list[int]]):
    """The batches of one of several processes, which take the same steps."""

    sampler: Any  # Lightning calls its set_epoch
    rank: int

    def steps(self, order: Sequence[int]) -> list[list[list[int]]]:
        """The batches of all processes for each step of a pass through the samples in this order."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps(list(self.sampler)):
            yield step[self.rank]


class SharedBatchSampler(_StepSampler):
    """The batches of one of several processes: every sample in one of them, and as many batches in each.

    Together the batches of a step are one batch of ``processes * batch_size`` samples in the given order, so several
    processes take the steps that one would take with larger batches. What is left at the end is shared as well; if it
    is less than a sample a process, the step before gets it.

    Example:
        >>> [list(SharedBatchSampler(range(7), 2, rank, processes=2)) for rank in (0, 1)]
        [[[0, 2], [4, 6]], [[1, 3], [5]]]
    """

    def __init__(self, sampler: _Order, batch_size: int, rank: int, processes: int) -> None:
        self.sampler = sampler
        self.batch_size, self.rank, self.processes = batch_size, rank, processes
        check_shared(len(sampler), processes)

    def __len__(self) -> int:
        steps, rest = divmod(len(self.sampler), self.batch_size * self.processes)
        return max(1, steps + (rest >= self.processes))

    def steps(self, order: Sequence[int]) -> list[list[list[int]]]:
        """The batches of all processes for each step of a pass through the samples in this order."""
        size, ranks = self.batch_size * self.processes, range(self.processes)
        starts = [number * size for number in range(len(self))]
        stops = [*starts[1:], len(order)]
        return [
            [list(order[a:b][rank :: self.processes]) for rank in ranks] for a, b in zip(starts, stops, strict=True)
        ]


def check_shared(num: int, processes: int) -> None:
    """Refuse processes without a sample: the others would wait for them."""
    if num < processes:
        raise ConfigError(
            f"each part of the data must hold a structure for each of the {processes} processes, got one with {num}. "
            "Lower trainer.devices, or enlarge the part."
        )


class EdgeBatchSampler(_StepSampler):
    """Random batches of at most some number of edges, and as many batches in every epoch.

    Memory grows with the edges of a batch, so it is flat where structures differ in size. Sizes are rounded up by
    1/16 at most and packed once, the largest first into the batch with the fewest edges; an epoch draws which
    structures of a size are in which batch, and the order of the batches. A schedule of learning rates can therefore
    count on the number of batches. Several processes get as many each; only where the batches cannot be packed so,
    the first ones of an epoch come twice.

    Args:
        sampler: Its order decides.
        n_edges: Edges of every sample, `[N]`.
        max_edges: Most edges in a batch.
        batch_size: Most samples in a batch.
        rank: Number of this process among several, which get different batches, and as many each.
        processes: How many there are.

    Raises:
        ConfigError: A single sample has more edges than ``max_edges``, or there are fewer samples than processes.

    Example:
        >>> batches = EdgeBatchSampler(EpochSampler(4, seed=0), np.array([60, 40, 60, 40]), max_edges=128, batch_size=8)
        >>> len(batches), sorted(sum(batches, []))
        (2, [0, 1, 2, 3])
    """

    def __init__(
        self,
        sampler: EpochSampler,
        n_edges: NDArray[np.int64],
        max_edges: int,
        batch_size: int,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        check_type("sampler", sampler, EpochSampler, "an EpochSampler", "Pass EpochSampler(len(dataset), seed).")
        n_edges = check_integers("n_edges", n_edges, "[N], of each sample")
        max_edges, batch_size = check_integer("max_edges", max_edges, 1), check_integer("batch_size", batch_size, 1)
        if len(n_edges) != len(sampler):
            raise ConfigError(
                f"n_edges must be of the {len(sampler)} samples, got {len(n_edges)}. Take n_edges of the dataset."
            )
        if n_edges.max(initial=0) > max_edges:
            raise ConfigError(
                f"max_edges must be at least the {n_edges.max()} edges of the largest structure, got {max_edges}. "
                "Raise it, or lower the cutoff."
            )
        self.processes = check_integer("processes", processes, 1)
        self.rank = check_integer("rank", rank, 0, self.processes - 1)
        if self.processes > 1:
            check_shared(len(n_edges), self.processes)
        self.sampler = sampler
        step = 2 ** np.maximum(np.log2(np.maximum(n_edges, 1)).astype(np.int64) - 4, 0)
        self._sizes = np.minimum(-(-n_edges // step) * step, max_edges)
        self._packed = _pack(np.sort(self._sizes)[::-1], max_edges, batch_size, self.processes)

    def __len__(self) -> int:
        return -(-len(self._packed) // self.processes)

    def steps(self, order: Sequence[int]) -> list[list[list[int]]]:
        """The batches of all processes for each step of a pass through the samples in this order."""
        samples = np.array(order, dtype=np.int64)
        by_size = samples[np.argsort(-self._sizes[samples], kind="stable")]
        position = np.empty_like(samples)
        position[samples] = np.arange(len(samples))
        batches = [by_size[indices] for indices in self._packed]
        batches.sort(key=lambda batch: int(position[batch].min()))
        batches += batches[: -len(batches) % self.processes]
        listed = [batch.tolist() for batch in batches]
        return [listed[first : first + self.processes] for first in range(0, len(listed), self.processes)]


def _pack(sizes: NDArray[np.int64], most: int, count: int, processes: int) -> list[NDArray[np.int64]]:
    """Indices of descending sizes in as few batches as the rule "into the emptiest" needs, as many for each process.

    Where no such number will do, as for three batches of one sample on two processes, it is none of their multiples.
    """
    sizes = np.maximum(sizes, 1) if processes > 1 else sizes  # an isolated atom fills something, too
    num = max(-(-int(sizes.sum()) // most), -(-len(sizes) // count))
    while True:
        num = -(-num // processes) * processes
        if num > len(sizes) and processes > 1:
            return _pack(sizes, most, count, 1)
        batches: list[list[int]] = [[] for _ in range(num)]
        heap = [(0, batch) for batch in range(num)]
        for index, size in enumerate(sizes.tolist()):
            if not heap or heap[0][0] + size > most:
                break
            filled, batch = heapq.heappop(heap)
            batches[batch].append(index)
            if len(batches[batch]) < count:
                heapq.heappush(heap, (filled + size, batch))
        else:
            return [np.array(batch, dtype=np.int64) for batch in batches if batch]
        num += max(1, num // 50)


class StepLoader(DataLoader):
    """Batches of a training, which know how many rows of labels the whole optimizer step has.

    A pass begins when its first batch is asked for. Lightning calls ``iter`` before it sets the epoch of a run that
    goes on, and workers would already load the batches of another epoch.

    Each batch has ``step_rows``: by label, the rows in all batches of its step (of all processes, and of all batches
    whose gradients are added up), divided by the number of these batches.
    """

    steps_of: _StepSampler | None = None
    trainer: Any = None

    def __iter__(self) -> Iterator[Any]:
        rows = iter(self._step_rows())
        for batch in super().__iter__():
            batch.step_rows = next(rows, None)
            yield batch

    def _step_rows(self) -> list[Mapping[str, float]]:
        """The rows of each batch of the next pass; none for a loader that Lightning made with another order."""
        if self.steps_of is None:
            return []
        steps = self.steps_of.steps(self.steps_of.sampler.order())
        most = getattr(self.trainer, "num_training_batches", None) or len(steps)  # trainer.limit_train_batches
        added = getattr(self.trainer, "accumulate_grad_batches", 1)
        steps = steps[: int(min(most, len(steps)))]
        of_batch = [np.concatenate(step).astype(np.int64) for step in steps]
        updates = np.arange(len(steps)) // added
        of_sample = np.repeat(updates, [len(samples) for samples in of_batch])
        divisor = added * len(steps[0])
        counts = {
            name: np.bincount(of_sample, rows[np.concatenate(of_batch)])[updates] / divisor
            for name, rows in self.dataset.n_rows.items()
        }
        return [{name: float(rows[step]) for name, rows in counts.items()} for step in range(len(steps))]


def make_loader(
    dataset: Any,
    num_workers: int,
    seed: int,
    trainer: Any,
    batch_size: int,
    sampler: EpochSampler | None = None,
    max_edges: int | None = None,
) -> DataLoader:
    """A loader of graphs that draws nothing from the global random state; each of several processes gets its share."""
    rank, processes = (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
    steps: _StepSampler
    if max_edges is not None and sampler is not None:
        steps = EdgeBatchSampler(sampler, dataset.n_edges, max_edges, batch_size, rank, processes)
    else:
        steps = SharedBatchSampler(sampler or range(len(dataset)), batch_size, rank, processes)
    # Lightning replaces the sampler of a plain loader, for trainer.overfit_batches and predictions
    plain = processes == 1 and not isinstance(steps, EdgeBatchSampler)
    batches: dict[str, Any] = {"batch_size": batch_size, "sampler": sampler} if plain else {"batch_sampler": steps}
    options = {
        "num_workers": num_workers,
        "persistent_workers": num_workers > 0,
        "pin_memory": trainer is not None and trainer.strategy.root_device.type == "cuda",
        # A loader without a generator draws a seed for its workers from the global one at every epoch.
        "generator": torch.Generator().manual_seed(seed),
    }
    if sampler is None:
        return DataLoader(dataset, **options, **batches)
    loader = StepLoader(dataset, **options, **batches)
    loader.steps_of, loader.trainer = steps, trainer
    return loader
