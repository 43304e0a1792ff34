"""The data set of a training, its batches, which depend on seed and epoch alone, and the loader of data modules."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data

from eqlayers.atoms.periodic import as_integers, folded, half_of
from eqlayers.data.neighbors import Edges, check_edges
from eqlayers.data.splits import check_integers, check_rows
from eqlayers.data.structures import StructureArrays, check_structures, completed_cells

from ..core.checks import check_dtype, check_integer, check_type
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


class _StepSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of one process of several that train together, each with as many batches in an epoch."""

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
    """

    def __init__(self, sampler: EpochSampler | Sequence[int], batch_size: int, rank: int, processes: int) -> None:
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
        parts = zip(starts, [*starts[1:], len(order)], strict=True)
        return [[list(order[a:b][rank :: self.processes]) for rank in ranks] for a, b in parts]


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
    """Indices of samples in batches of at most ``most`` edges and ``count`` samples; ``sizes`` are edges, descending.

    The next largest sample goes into the batch with the fewest edges. The number of batches is a multiple of
    ``processes`` where one exists: three samples that fill a batch each have none for two processes.
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


class StepLoader(DataLoader[Any]):
    """A loader of training batches, each with the number of rows of labels in its optimizer step.

    A pass begins when its first batch is asked for. Lightning calls ``iter`` before it sets the epoch of a run that
    goes on, and workers would already load the batches of another epoch.

    Each batch has ``step_rows``: by label, the rows in all batches of its step (of all processes, and of all batches
    whose gradients are added up), divided by the number of these batches.
    """

    steps_of: _StepSampler | None = None
    trainer: Any = None
    dataset: Any

    def __iter__(self) -> Any:
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
        of_sample, all_samples = np.repeat(updates, [len(samples) for samples in of_batch]), np.concatenate(of_batch)
        divisor = added * len(steps[0])
        sums = {name: np.bincount(of_sample, rows[all_samples]) for name, rows in self.dataset.n_rows.items()}
        counts = {name: rows[updates] / divisor for name, rows in sums.items()}
        return [{name: float(rows[step]) for name, rows in counts.items()} for step in range(len(steps))]


def make_loader(
    dataset: Any,
    num_workers: int,
    seed: int,
    trainer: Any,
    batch_size: int,
    sampler: EpochSampler | None = None,
    max_edges: int | None = None,
) -> DataLoader[Any]:
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
    options: dict[str, Any] = {
        "num_workers": num_workers,
        "collate_fn": collated,
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


class Samples(Sequence[Data]):
    """Samples of a data set by their indices: `collated` makes a batch of them, other functions read single ones."""

    def __init__(self, dataset: StructureDataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: Any) -> Any:
        picked = self.indices[number]
        return Samples(self.dataset, picked) if isinstance(number, slice) else self.dataset[picked]

    def __reduce__(self) -> Any:
        return list, (list(self),)  # another process gets no data set


def collated(samples: Sequence[Data]) -> Batch:
    """The batch of some samples, equal to ``torch_geometric.data.Batch.from_data_list`` but for ``half``.

    ``half`` ``[E / 2]`` has the numbers of edges, one of each pair, see ``eqlayers.models.Structures.of``. Code that
    changes the edges of a batch on a GPU must remove it; on a CPU ``of`` finds that it does not fit.
    """
    made = samples.dataset.batch(samples.indices) if isinstance(samples, Samples) else Batch.from_data_list(samples)
    edges, shifts = (getattr(made, name, None) for name in _OF_EDGES)
    if edges is None or "y" in made:  # networks of a property have no use for pairs
        return made
    if (half := half_of(edges.numpy(), None if shifts is None else as_integers(shifts))) is not None:
        made.half = torch.from_numpy(half)
    return made


class StructureDataset(torch.utils.data.Dataset[Data]):
    """Map-style dataset of structures: samples and batches are gathered from flat tensors.

    A sample is a `torch_geometric.data.Data` with `z` `[A]` int64, `pos` `[A, 3]` (Angstrom; images of the atoms around
    their centre, where float32 is finest, unless the data set has float32 already), `edge_index` `[2, E]` int64 (src,
    dst; dst receives), `idx` and `group` `[1]` int64 (an index of `groups`), and those labels that a structure of the
    data set has, NaN where this one lacks them: `energy` `[1]` float64 (eV), `forces` `[A, 3]` (eV/Angstrom), `stress`
    `[1, 3, 3]` (eV/Angstrom^3), `dipole` `[1, 3]` (e Angstrom), `polarizability` `[1, 3, 3]` (Angstrom^3), `y` `[1]`
    float64 (a property in its own unit), `auxiliary_0` and so on, float64 (`auxiliary` of the data set in its order,
    `[1]`, `[1, 3]` or `[A]`); if a structure of the set is periodic, all have `cell` `[1, 3, 3]` and
    `shifts` `[E, 3]`. Batches of a loader have what ``eqlayers.models.Structures.of`` reads.

    Args:
        structures: The data set.
        edges: Its neighbour lists.
        rows: Rows of ``structures`` in this dataset, in order; all if None.
        dtype: Of positions, cells, shifts, forces, stress, dipoles and polarizabilities.

    Attributes:
        structures: The data set.
        rows: Rows of the data set, as a list.
        labels: Names of the labels that occur in these rows.
        groups: Names of their groups, which is what `config_type` of the structures says.
        n_edges: Edges of every sample, `[N]`.
        n_rows: Rows of each label in every sample, `[N]`: its atoms for forces, 1 for others, 0 where it is missing.

    Example:
        >>> pair = StructureArrays.of("a test", n_atoms=[2], z=[1, 1], pos=[[0, 0, 0], [0, 0, 0.74]], energy=[-31.0])
        >>> from eqlayers.data.neighbors import structure_edges
        >>> dataset = StructureDataset(pair, structure_edges(pair, cutoff=5.0))
        >>> dataset[0].energy, dataset.labels
        (tensor([-31.], dtype=torch.float64), ('energy',))
    """

    def __init__(
        self,
        structures: StructureArrays,
        edges: Edges,
        rows: NDArray[np.int64] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_edges(edges, check_structures(structures))
        self.structures, self.dtype = structures, check_dtype("dtype", dtype)
        self.labels: tuple[str, ...] = ()
        if rows is not None and np.shape(rows) == (0,):  # a part that is not used, such as a test part
            chosen = np.empty(0, np.int64)
        else:
            chosen = np.arange(len(structures)) if rows is None else check_rows("rows", rows, len(structures))
            self.labels = structures.take(chosen).labels
        self.rows: list[int] = chosen.tolist()
        self.n_edges = edges.n_edges[chosen]
        self.n_rows = {name: counts[chosen] for name, counts in structures.label_rows().items()}
        names, group = np.unique(structures.config_type[chosen], return_inverse=True)
        self.groups: tuple[str, ...] = tuple(names.tolist())
        self._group = torch.from_numpy(group.astype(np.int64))
        cell, pos, self._moved = completed_cells(structures.cell, structures.pbc), structures.pos, None
        if pos.dtype == np.float64:
            pos, moved = folded(pos, cell, structures.pbc, structures.n_atoms, edges.cutoff)
            self._moved = torch.from_numpy(moved)
        labels = {name: structures.labelled(name) for name in structures.labels}
        arrays = {"z": structures.z, "idx": structures.idx} | {name: values for name, (_, values) in labels.items()}
        arrays["pos"] = pos
        self._periodic = structures.has_cells
        if self._periodic:
            arrays["cell"] = cell
            shifts = np.zeros((len(edges.local[0]), 3), np.int16) if edges.shifts is None else edges.shifts
            self._shifts = torch.from_numpy(shifts)
        of_atoms = {"z", "pos"} | {name for name, (label, _) in labels.items() if label.axis == "A"}
        self._tensors = [(name, self._tensor(name, array), name in of_atoms) for name, array in arrays.items()]
        self._local = torch.from_numpy(edges.local)
        self._rows = torch.from_numpy(chosen)
        offsets = (np.append(0, np.cumsum(counts)) for counts in (structures.n_atoms, edges.n_edges))
        self._atom_offsets, self._edge_offsets = map(torch.from_numpy, offsets)

    def _tensor(self, name: str, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        kept = array.dtype.kind != "f" or name in ("energy", "y", *self.structures.auxiliaries)
        return tensor if kept else tensor.to(self.dtype)

    @property
    def taken(self) -> StructureArrays:
        """The structures of these rows alone, at least one."""
        return self.structures.take(np.array(self.rows, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Data:
        return Data(**self._gathered([index])[0])

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Data]:
        """The samples of a batch, for loaders; one by one if a subclass makes other samples."""
        others = type(self).__getitem__ is not StructureDataset.__getitem__
        return [self[index] for index in indices] if others else Samples(self, indices)

    def batch(self, indices: Sequence[int]) -> Batch:
        """These samples as one batch: what ``Batch.from_data_list`` makes of them, by one gather for each tensor."""
        values, atoms, edges = self._gathered(indices)
        lone = torch.arange(len(indices) + 1)
        steps = {name: atoms for name, _, of_atoms in self._tensors if of_atoms} | dict.fromkeys(_OF_EDGES, edges)
        batch = Batch(_base_cls=Data, **values)
        batch.batch = torch.repeat_interleave(atoms.diff())
        batch.ptr = atoms.clone()
        batch._num_graphs = len(indices)
        batch._slice_dict = {name: steps.get(name, lone) for name in values}
        batch._inc_dict = {name: torch.zeros(len(indices), dtype=torch.int64) for name in values}
        batch._inc_dict["edge_index"] = atoms[:-1].clone()
        return batch

    def _gathered(self, indices: Sequence[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        """The tensors of some samples, and the numbers of their first atoms and edges, with the ends."""
        index = torch.tensor([operator.index(one) for one in indices], dtype=torch.int64)
        rows = self._rows[index]
        first_atom, atoms = _ranges(self._atom_offsets, rows)
        first_edge, pairs = _ranges(self._edge_offsets, rows)
        edge_index = self._local[:, pairs] + first_atom[:-1].repeat_interleave(first_edge.diff())
        values = {"edge_index": edge_index, "group": self._group[index]}
        for name, tensor, of_atoms in self._tensors:
            values[name] = tensor[atoms if of_atoms else rows]
        if self._periodic:
            shifts = self._shifts[pairs]
            if self._moved is not None:
                src, dst = edge_index
                moved = self._moved[atoms]
                shifts = shifts + moved[dst] - moved[src]
            values["shifts"] = shifts.to(self.dtype)
        return values, first_atom, first_edge


#: Names of the tensors of a sample with a row or column for each edge.
_OF_EDGES = ("edge_index", "shifts")


def _ranges(offsets: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Offsets of rows that will lie side by side, with the end, and the index of all their elements."""
    starts = offsets[rows]
    counts = offsets[rows + 1] - starts
    first = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return first, torch.arange(int(first[-1])) + (starts - first[:-1]).repeat_interleave(counts)
