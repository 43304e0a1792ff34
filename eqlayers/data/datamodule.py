"""The Lightning data modules: their base, with parts, batches and options of loaders, and the module of molecules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightning import LightningDataModule
from numpy.typing import NDArray
from torch_geometric.loader import DataLoader

from eqlayers.data.batches import EpochSampler, make_loader
from eqlayers.data.cache import user_cache_dir
from eqlayers.data.embedded import load_mini
from eqlayers.data.neighbors import check_cutoff, neighbor_edges
from eqlayers.data.qm9 import load_qm9, thermochemical_atomref
from eqlayers.data.splits import check_split, limited, make_split
from eqlayers.data.statistics import Statistics, compute_baselines, compute_statistics
from eqlayers.data.structure_dataset import MoleculeDataset
from eqlayers.data.structures import MoleculeArrays
from eqlayers.data.targets import Target, get_target

from ..core.checks import check_choice, check_flag, check_integer, check_optional, check_path
from ..core.errors import ConfigError, DataError

PARTS = ("train", "val", "test")


class FlatDataModule(LightningDataModule):
    """A training, a validation and a test part of a data set, in batches of a loader of torch-geometric.

    A module derives from it, calls `read_options`, and sets `train_set`, `val_set` and `test_set` in `make_parts`.
    """

    train_set: Any
    val_set: Any
    test_set: Any
    max_edges: int | None = None

    def read_options(
        self, cutoff: float, batch_size: int, eval_batch_size: int, num_workers: int, seed: int, **folders: Any
    ) -> None:
        """Check and keep the options that all data modules have; ``folders`` may be None."""
        self.cutoff = check_cutoff(cutoff)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.eval_batch_size = check_integer("eval_batch_size", eval_batch_size, 1)
        self.num_workers = check_integer("num_workers", num_workers, 0)
        self.seed = check_integer("seed", seed, 0)
        for name, folder in folders.items():
            check_optional(lambda key, value: check_path(key, value, "a folder, or None"), name, folder)
        self._rows: dict[str, NDArray[np.int64]] = {}

    def make_parts(self) -> dict[str, NDArray[np.int64]]:
        """Read and describe the data, make the datasets of the parts, and return the rows of each part."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Read, check, split and describe the data; every stage needs all of it, so a second call does nothing."""
        if stage is not None:
            check_choice("stage", stage, ("fit", "validate", "test", "predict"))
        self._rows = self._rows or self.make_parts()

    def train_dataloader(self) -> DataLoader:
        """Training batches that depend on `seed` and the epoch alone."""
        dataset = self.part("train")
        return self._loader(dataset, self.batch_size, EpochSampler(len(dataset), self.seed), self.max_edges)

    def val_dataloader(self) -> DataLoader | list[DataLoader]:
        """Validation batches in the order of the split; an empty list without a validation part."""
        dataset = self.part("val")
        return self._loader(dataset, self.eval_size(dataset)) if len(dataset) else []

    def test_dataloader(self) -> DataLoader:
        """Test batches in the order of the split."""
        dataset = self.part("test")
        if len(dataset) == 0:
            raise DataError("the test part must hold at least one structure, got none. Set test or test_path.")
        return self._loader(dataset, self.eval_size(dataset))

    def predict_dataloader(self) -> DataLoader:
        """Batches of the test part; `idx` tells the rows."""
        return self.test_dataloader()

    def part(self, name: str) -> Any:
        """The dataset of a part."""
        if not self._rows:
            raise ConfigError("the data must be set up before they are used, got no call of setup(). Call it first.")
        return getattr(self, f"{name}_set")

    def is_drawn(self, name: str) -> bool:
        """Whether a part is drawn from the data set, and is no file of its own."""
        return True

    def eval_size(self, dataset: Any) -> int:
        """Structures in a batch of which even the largest have no more edges together than a training batch."""
        most = self.eval_batch_size if self.max_edges is None else self.max_edges // max(1, int(dataset.n_edges.max()))
        return max(1, min(self.eval_batch_size, most))

    def _loader(self, dataset: Any, batch_size: int, *order: Any) -> DataLoader:
        return make_loader(dataset, self.num_workers, self.seed, self.trainer, batch_size, *order)


class MoleculeDataModule(FlatDataModule):
    """Molecular graphs with one label each, split, batched and described.

    Batches come from `torch_geometric.loader.DataLoader`: `z` `[A]`, `pos` `[A, 3]` (Angstrom), `edge_index` `[2, E]`
    (src, dst; dst receives), `y` `[G]` float64 (the target's unit), `idx` `[G]`, `batch` `[A]`, `num_graphs`.

    After `setup`: `target`, `train_set`, `val_set`, `test_set` and `statistics`.

    Args:
        dataset: `"mini"`, the embedded set (GFN2-xTB, 2,785 molecules), or `"qm9"` (B3LYP, 130,831 molecules).
        target: One of `eqlayers.data.TARGETS`; energies in eV.
        root: Folder of the data. `"mini"`: `examples/data` of the source checkout if None. `"qm9"`: required; holds, or
            receives, `raw/` and `processed/` as `torch_geometric.datasets.QM9` lays them out.
        cutoff: Neighbour distance in Angstrom.
        split: `"random"` (80/10/10), `"size"` (`"mini"`), `"standard"` or `"cormorant"` (`"qm9"`).
        batch_size: Molecules in a training batch.
        eval_batch_size: Molecules in a validation, test or prediction batch.
        num_workers: Processes that build batches; 0 builds them in the main process.
        seed: Seed of the order of training batches; the split does not depend on it.
        limit_train: Train on this many molecules, drawn once and nested for growing numbers; all if None.
        offline: Never download; missing files are an error at once.
        cache_dir: Folder of cached neighbour lists. `root/cache` if None, and the user's cache folder for the embedded
            set in a source checkout.
        shifts: Per-species shifts of extensive targets: `"regression"`, a least-squares fit to the training part, or
            `"atomref"`, QM9's own energies of free atoms (only QM9's U0, U, H and G). The fit includes the mean binding
            of an atom, which leaves a residual about ten times smaller.

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
    statistics: Statistics
    train_set: MoleculeDataset
    val_set: MoleculeDataset
    test_set: MoleculeDataset

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
        limit_train: int | None = None,
        offline: bool = False,
        cache_dir: str | None = None,
        shifts: Literal["regression", "atomref"] = "regression",
    ) -> None:
        super().__init__()
        check_split(split, dataset)
        check_choice("shifts", shifts, ("regression", "atomref"))
        check_flag("offline", offline)
        self.read_options(cutoff, batch_size, eval_batch_size, num_workers, seed, root=root, cache_dir=cache_dir)
        limit_train = None if limit_train is None else check_integer("limit_train", limit_train, 1)
        if dataset == "qm9" and root is None:
            raise ConfigError(
                'root must be a folder for dataset="qm9" (it holds, or receives, raw/ and processed/), got None. '
                'Set for example root="data/qm9", or use dataset="mini", which needs no download.'
            )
        self.target = get_target(target)
        if shifts == "atomref" and (dataset != "qm9" or thermochemical_atomref(self.target) is None):
            raise ConfigError(
                'shifts: expected "regression", as only U0, U, H and G of dataset="qm9" have atomic references; got '
                f'"atomref" with dataset={dataset!r}, target={target!r}; use shifts="regression"'
            )
        self.save_hyperparameters(logger=False)  # the model logs its own cutoff, and Lightning refuses two of a name
        self.dataset, self.root, self.split, self.limit_train = dataset, root, split, limit_train
        self.shifts, self.offline, self.cache_dir = shifts, offline, cache_dir
        self._molecules: MoleculeArrays | None = None

    def prepare_data(self) -> None:
        """Fetch and process what is missing and fill the caches, in one process only."""
        molecules = self._load()
        neighbor_edges(molecules, self.cutoff, self._cache())

    def make_parts(self) -> dict[str, NDArray[np.int64]]:
        """Read, split and describe the data."""
        molecules = self._load()
        edges = neighbor_edges(molecules, self.cutoff, self._cache())
        train, val, test = make_split(self.split, self.dataset, molecules.heavy)
        train = limited(train, self.limit_train)
        atomref = thermochemical_atomref(self.target) if self.shifts == "atomref" else None
        self.statistics = compute_statistics(molecules, edges, train, self.target, atomref)
        parts = (train, val, test)
        self.train_set, self.val_set, self.test_set = (MoleculeDataset(molecules, edges, part) for part in parts)
        return dict(zip(PARTS, parts, strict=True))

    def baselines(self, stage: Literal["train", "val", "test"] = "test") -> dict[str, float]:
        """Mean absolute errors, in the target's unit, of two predictors that see no geometry.

        Args:
            stage: The part to evaluate on.

        Returns:
            `"mean"`: the mean of the training labels; `"composition"`: a linear regression on the number of atoms of
            each species, with an intercept for an intensive target.

        Raises:
            ConfigError: For another stage, or before `setup`.
        """
        self.part("train")
        check_choice("stage", stage, PARTS)
        data: Any = self.train_set.data
        return compute_baselines(data, self._rows["train"], self._rows[stage], self.target)

    def _load(self) -> MoleculeArrays:
        if self._molecules is None:
            if self.dataset == "mini":
                self._molecules = load_mini(self.root, self.target)
            else:
                assert self.root is not None  # checked by __init__
                self._molecules = load_qm9(self.root, self.target, self._cache(), self.offline)
        return self._molecules

    def _cache(self) -> Path:
        if self.cache_dir is not None:
            return Path(self.cache_dir)
        return user_cache_dir() / self.dataset if self.root is None else Path(self.root) / "cache"
