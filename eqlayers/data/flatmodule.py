"""Base of the data modules of molecules and of structures: parts, batches, and options of loaders."""

from __future__ import annotations

from typing import Any

import numpy as np
from lightning import LightningDataModule
from numpy.typing import NDArray
from torch_geometric.loader import DataLoader

from eqlayers.data.batches import EpochSampler, make_loader
from eqlayers.data.neighbors import check_cutoff

from ..core.checks import check_choice, check_integer, check_optional, check_path
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

    def eval_size(self, dataset: Any) -> int:
        """Structures in a batch of which even the largest have no more edges together than a training batch."""
        most = self.eval_batch_size if self.max_edges is None else self.max_edges // max(1, int(dataset.n_edges.max()))
        return max(1, min(self.eval_batch_size, most))

    def _loader(self, dataset: Any, batch_size: int, *order: Any) -> DataLoader:
        return make_loader(dataset, self.num_workers, self.seed, self.trainer, batch_size, *order)
