"""The Lightning data modules: their base, with parts, batches and options of loaders, and the module of molecules."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from eqlayers.atoms.periodic import check_cutoff
from eqlayers.data.batches import EpochSampler, StructureDataset, make_loader
from eqlayers.data.cache import user_cache_dir
from eqlayers.data.embedded import FURTHER, load_extra, load_mini
from eqlayers.data.neighbors import Edges, structure_edges
from eqlayers.data.plausible import check_parts, check_reach, check_shifts
from eqlayers.data.qm9 import ENERGY, TARGETS, Target, auxiliary_of, get_target, load_qm9, thermochemical_atomref
from eqlayers.data.splits import check_split, limited, make_split
from eqlayers.data.statistics import Statistics, compute_statistics
from eqlayers.data.structures import Auxiliary, StructureArrays, auxiliary_key, plain

from ..core.checks import check_choice, check_flag, check_integer, check_number, check_optional, check_path, check_type
from ..core.errors import ConfigError, DataError, EqlayersWarning

PARTS = ("train", "val", "test")


class SplitDataModule(LightningDataModule):
    """A training, a validation and a test part of a data set, in batches of a loader of torch-geometric.

    A module derives from it, calls `read_options`, and reads and splits its source in `read_parts`. After `setup`, it
    has `train_set`, `val_set`, `test_set`, `statistics`, `labels` of the training part, `report`, the lines that say
    what was read, which are logged as well, and `findings`, the warnings about mistakes that may be none.

    Attributes:
        target: The property that is learned; None for energies and what belongs to them.
        auxiliary: Weights of further labels by name.
        sum_of: Names of two further labels whose sum is the target.
        without_target: Name of the further label that only molecules without the target are trained on, or None.
        cache_dir: Folder of the cached neighbour lists, and of geometries of QM9.
    """

    target: Target | None = None
    statistics: Statistics
    labels: tuple[str, ...]
    train_set: StructureDataset
    val_set: StructureDataset
    test_set: StructureDataset
    max_edges: int | None = None
    e0s: str | dict[int, float] = "fit"
    dtype = torch.float32
    #: Structures at the beginning of the training part that are new; None for all.
    num_new: int | None = None
    auxiliary: Mapping[str, float] = {}
    sum_of: tuple[str, ...] = ()
    without_target: str | None = None
    cache_dir: Path

    def read_options(
        self,
        cutoff: float,
        batch_size: int,
        eval_batch_size: int,
        num_workers: int,
        seed: int,
        limit_train: int | float | None,
        **folders: Any,
    ) -> None:
        """Check the options that all data modules have, and set them as attributes; a folder may be None."""
        self.cutoff = check_cutoff(cutoff)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.eval_batch_size = check_integer("eval_batch_size", eval_batch_size, 1)
        self.num_workers = check_integer("num_workers", num_workers, 0)
        self.seed = check_integer("seed", seed, 0)
        if isinstance(limit_train, float):
            check_number("limit_train", limit_train, above=0, at_most=1, fix="A fraction, or an integer for a number.")
        elif limit_train is not None:
            check_integer("limit_train", limit_train, 1)
        self.limit_train = limit_train
        for name, folder in folders.items():
            check_optional(lambda key, value: check_path(key, value, "a folder, or None"), name, folder)
        # the model logs its own cutoff, and Lightning refuses two of a name
        self.save_hyperparameters(logger=False)
        self.report: list[str] = []
        self.findings: list[str] = []
        self._rows: dict[str, NDArray[np.int64]] = {}
        self._parts: tuple[StructureArrays, dict[str, NDArray[np.int64]]] | None = None

    def further(self) -> Mapping[str, Auxiliary]:
        """The further labels by name, whose values the data have after `setup`."""
        return self.load()[0].auxiliary

    def read_parts(self) -> tuple[StructureArrays, dict[str, NDArray[np.int64]]]:
        """Read the source: all structures that are used, and their rows by part."""
        raise NotImplementedError

    def load(self) -> tuple[StructureArrays, dict[str, NDArray[np.int64]]]:
        """The structures and their rows by part, which are read once."""
        self._parts = self._parts or self.read_parts()
        return self._parts

    def prepare_data(self) -> None:
        """Fetch what is missing and fill the cache of neighbour lists, in one process only."""
        structure_edges(self.load()[0], self.cutoff, self.cache_dir)

    def setup(self, stage: str | None = None) -> None:
        """Read, check, split and describe the data; every stage needs all of it, so a second call does nothing."""
        if stage is not None:
            check_choice("stage", stage, ("fit", "validate", "test", "predict"))
        if self._rows:
            return
        structures, rows = self.load()
        edges = structure_edges(structures, self.cutoff, self.cache_dir)
        self.statistics = compute_statistics(structures, edges, rows["train"], self.e0s, self.target, self.sum_of)
        self.labels = structures.take(rows["train"][: self.num_new]).labels
        self.findings += [*self._unlabelled(structures, rows), *check_reach(structures, edges)]
        self.findings += check_parts(structures, rows)
        if self.target is None and self.e0s != "none":
            self.findings += check_shifts(structures, self.statistics.shifts)
        sets = {name: StructureDataset(structures, edges, part, self.dtype) for name, part in rows.items()}
        self.train_set, self.val_set, self.test_set = (sets[name] for name in PARTS)
        if self.without_target is not None:  # a row for each molecule, which has one of the two labels
            key, counts = auxiliary_key(list(self.auxiliary).index(self.without_target)), self.train_set.n_rows
            counts["y"] = counts[key] = np.maximum(counts["y"], counts[key])
        self.report.append("parts: " + ", ".join(f"{len(rows[name]):,} {name}" for name in PARTS))
        self.report += self.describe(structures, edges)
        for line in self.report:
            rank_zero_info(line)
        for sentence in self.findings:
            warnings.warn(sentence, EqlayersWarning, stacklevel=2)
        self._rows = rows

    def describe(self, structures: StructureArrays, edges: Edges) -> list[str]:
        """Lines on the statistics of the property."""
        statistics, target = self.statistics, self.target
        assert target is not None
        unit = target.unit + (", less shifts of atoms by species" if target.extensive else "")
        return [
            f"{target.name}: mean {statistics.mean:.6g}, deviation {statistics.scale:.4g} {unit}",
            f"{statistics.mean_neighbors:.1f} neighbours within {self.cutoff:g} A",
        ]

    def _unlabelled(self, structures: StructureArrays, rows: Mapping[str, NDArray[np.int64]]) -> list[str]:
        """A sentence for each part without a label that the new structures of the training part have."""
        lacks = {name: {*self.labels} - {*structures.take(part).labels} for name, part in rows.items() if len(part)}
        shown = {key: each.label.name for key, each in structures.auxiliaries.items()}
        lacks = {name: {shown.get(label, label) for label in no} for name, no in lacks.items()}
        fix = "no error of it is reported. Name it in keys, or draw the part from structures that have it"
        return [f"the {name} part has no {' and no '.join(sorted(no))}: {fix}" for name, no in lacks.items() if no]

    def train_dataloader(self) -> DataLoader[Any]:
        """Training batches that depend on `seed` and the epoch alone."""
        dataset = self.part("train")
        return self._loader(dataset, self.batch_size, EpochSampler(len(dataset), self.seed), self.max_edges)

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """Validation batches in the order of the split; an empty list without a validation part."""
        dataset = self.part("val")
        return self._loader(dataset, self.eval_size(dataset)) if len(dataset) else []

    def test_dataloader(self) -> DataLoader[Any]:
        """Test batches in the order of the split."""
        dataset = self.part("test")
        if len(dataset) == 0:
            raise DataError("the test part must hold at least one structure, got none. Set test or test_path.")
        return self._loader(dataset, self.eval_size(dataset))

    def predict_dataloader(self) -> DataLoader[Any]:
        """Batches of the test part; `idx` tells the rows."""
        return self.test_dataloader()

    def part(self, name: str) -> StructureDataset:
        """The dataset of the part "train", "val" or "test", after `setup`."""
        if not self._rows:
            raise ConfigError("the data must be set up before they are used, got no call of setup(). Call it first.")
        dataset: StructureDataset = getattr(self, f"{name}_set")
        return dataset

    def is_drawn(self, name: str) -> bool:
        """Whether a part is drawn from the data set, and is no file of its own."""
        return True

    def eval_size(self, dataset: Any) -> int:
        """Batch size for evaluation: so many copies of the largest structure have at most `max_edges` edges."""
        most = self.eval_batch_size if self.max_edges is None else self.max_edges // max(1, int(dataset.n_edges.max()))
        return max(1, min(self.eval_batch_size, most))

    def _loader(self, dataset: Any, batch_size: int, *order: Any) -> DataLoader[Any]:
        return make_loader(dataset, self.num_workers, self.seed, self.trainer, batch_size, *order)


def auxiliaries(data: Any) -> dict[str, Auxiliary]:
    """The further labels of a data module by their names in samples, such as "auxiliary_0"; none of another one."""
    further = data.further() if getattr(data, "auxiliary", None) else {}
    return {auxiliary_key(number): each for number, each in enumerate(further.values())}


def read_auxiliary(auxiliary: Any, target: str, known: Sequence[str] | None = None) -> dict[str, float]:
    """Weights of further labels by name, checked; ``known`` are the names that there are."""
    fix = "Set for example data.auxiliary.zpve to 0.5."
    weights = check_type("auxiliary", {} if auxiliary is None else auxiliary, Mapping, "weights by name, or None", fix)
    for name in weights:
        if name == target or (known is not None and name not in known):
            there = "" if known is None else f" ({', '.join(known)})"
            what = "the target itself" if name == target else repr(name)
            raise ConfigError(f"auxiliary must be further labels of the data{there}, got {what}. Name others.")
    if len({plain(name) for name in (*weights, target)}) <= len(weights):
        raise ConfigError(
            f"auxiliary must be names that differ in letters or digits, got {', '.join(map(repr, weights))} beside "
            f"{target!r}, which metrics could not tell apart. Rename one in the file."
        )
    fix = "Use a value such as 1.0."
    return {name: float(check_number(f"auxiliary.{name}", w, at_least=0, fix=fix)) for name, w in weights.items()}


class MoleculeDataModule(SplitDataModule):
    """QM9, or a small set like it, with one property, split, batched and described.

    Batches are `torch_geometric.data.Batch`: what `StructureDataset` gives, concatenated, with `batch`
    `[A]` and `num_graphs`; the property is `y` `[G]` float64 (the target's unit).

    Args:
        dataset: `"mini"`, the embedded set (GFN2-xTB, 2,785 molecules), or `"qm9"` (B3LYP, 130,831 molecules).
        target: One of `eqlayers.data.TARGETS`; energies in eV.
        root: Folder of the data. `"mini"`: `examples/data` of the source checkout if None. `"qm9"`: required; holds, or
            receives, QM9's three files in `raw/`.
        cutoff: Neighbour distance in Angstrom.
        split: `"random"` (80/10/10), `"size"` (`"mini"`), `"standard"` or `"cormorant"` (`"qm9"`).
        batch_size: Molecules in a training batch.
        eval_batch_size: Molecules in a validation, test or prediction batch.
        num_workers: Processes that build batches; 0 builds them in the main process.
        seed: Seed of the order of training batches; the split does not depend on it.
        limit_train: Train on this many molecules, or on this fraction of the training part (a float up to 1.0), drawn
            once and nested for growing numbers; all if None.
        offline: Never download; missing files are an error at once.
        cache_dir: Folder of cached neighbour lists. `root/cache` if None, and the user's cache folder for the embedded
            set in a source checkout.
        shifts: Per-species shifts of extensive targets: `"regression"`, a least-squares fit to the training part, or
            `"atomref"`, QM9's own energies of free atoms (only QM9's U0, U, H and G). The fit includes the mean binding
            of an atom, which leaves a residual about ten times smaller.
        auxiliary: Weights in the loss of further labels by name, which the network learns beside the target: other
            targets, `energy` (electronic), and of `"mini"` `charges` (of atoms) and `dipole`. With the target U0 and
            `zpve`, U0 is the sum of the outputs `energy` and `zpve`.
        extra: File of further training molecules for `"mini"` without the target; see
            :func:`eqlayers.data.embedded.load_extra`.

    Raises:
        ConfigError: For an option outside its list or range.
        DataError: From `prepare_data` and `setup`, if data are missing, incomplete, corrupt or empty.

    Example:
        >>> import tempfile
        >>> data = MoleculeDataModule("mini", target="U0", limit_train=100, cache_dir=tempfile.mkdtemp())
        >>> data.setup()
        >>> len(data.train_set), len(data.val_set), len(data.test_set)
        (100, 279, 278)
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.num_graphs, batch.y.dtype
        (32, torch.float64)
    """

    target: Target

    def __init__(
        self,
        dataset: Literal["mini", "qm9"] = "mini",
        target: str = "U0",
        root: str | None = None,
        cutoff: float = 5.0,
        split: str = "random",
        batch_size: int = 32,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 2026,
        limit_train: int | float | None = None,
        offline: bool = False,
        cache_dir: str | None = None,
        shifts: Literal["regression", "atomref"] = "regression",
        auxiliary: dict[str, float] | None = None,
        extra: str | None = None,
    ) -> None:
        super().__init__()
        check_split(split, dataset)
        check_choice("shifts", shifts, ("regression", "atomref"))
        check_flag("offline", offline)
        folders = {"root": root, "cache_dir": cache_dir}
        self.read_options(cutoff, batch_size, eval_batch_size, num_workers, seed, limit_train, **folders)
        if dataset == "qm9" and root is None:
            raise ConfigError(
                'root must be a folder for dataset="qm9" (it holds, or receives, raw/), got None. '
                'Set for example root="data/qm9", or use dataset="mini", which needs no download.'
            )
        self.target = get_target(target)
        if shifts == "atomref" and (dataset != "qm9" or thermochemical_atomref(self.target) is None):
            raise ConfigError(
                'shifts: expected "regression", as only U0, U, H and G of dataset="qm9" have atomic references; got '
                f'"atomref" with dataset={dataset!r}, target={target!r}; use shifts="regression"'
            )
        self.dataset, self.root, self.split, self.offline = dataset, root, split, offline
        usual = user_cache_dir() / dataset if root is None else Path(root) / "cache"
        self.cache_dir = usual if cache_dir is None else Path(cache_dir)
        known = FURTHER if dataset == "mini" else (*TARGETS, ENERGY)
        self.auxiliary = read_auxiliary(auxiliary, target, [name for name in known if name != target])
        if target == "U0" and "zpve" in self.auxiliary:
            self.sum_of = (ENERGY, "zpve")
        if ENERGY in self.sum_of and ENERGY not in self.auxiliary:
            self.auxiliary, self.without_target = self.auxiliary | {ENERGY: 1.0}, ENERGY
        self.extra = check_optional(lambda key, value: check_path(key, value, "a file, or None"), "extra", extra)
        if extra is not None and (dataset != "mini" or not {"charges", ENERGY} & {*self.auxiliary}):
            raise ConfigError(
                'extra must be left out but for dataset="mini" with charges or energy among data.auxiliary, which its '
                f"molecules have, got {extra!r}. Set data.auxiliary.charges to 1.0, or leave extra out."
            )
        if shifts == "atomref":
            self.e0s = dict(thermochemical_atomref(self.target) or {})

    def read_parts(self) -> tuple[StructureArrays, dict[str, NDArray[np.int64]]]:
        """Read and split the data set."""
        if self.dataset == "mini":
            molecules = load_mini(self.root, self.target, list(self.auxiliary))
        else:
            assert self.root is not None  # checked by __init__
            molecules = load_qm9(self.root, self.target, self.cache_dir, self.offline, list(self.auxiliary))
        train, val, test = make_split(self.split, self.dataset, molecules.heavy)
        train = limited(train, self.limit_train)
        if self.extra is not None:
            more = load_extra(self.extra, self.root, np.concatenate([val, test]), list(self.auxiliary))
            train = np.concatenate([train, len(molecules) + np.arange(len(more))])
            molecules = StructureArrays.joined([molecules, more])
        return molecules, dict(zip(PARTS, (train, val, test), strict=True))

    def further(self) -> Mapping[str, Auxiliary]:
        """The further labels by name; values only after `setup`."""
        return {n: FURTHER[n][0] if self.dataset == "mini" else auxiliary_of(n) for n in self.auxiliary}
