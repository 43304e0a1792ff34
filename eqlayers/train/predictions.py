"""The table that `eqlayers predict` writes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from ..core.checks import check_path
from ..files import atomic_write
from .base import trained_module

COLUMNS = ("idx", "group", "true", "predicted")


class PredictionTable(BasePredictionWriter):
    """Writes `predictions.csv`: `idx`, `group` and `true` where the data have them, `predicted`, `unit`.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(write_interval="epoch")
        self.path = Path(check_path("folder", folder)) / "predictions.csv"

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write the predictions of all batches, in their order; each process of several writes its own file."""
        unit = trained_module(pl_module).unit()
        columns = [name for name in COLUMNS if all(name in batch for batch in predictions)]
        table = pandas.DataFrame(
            {name: [*chain.from_iterable(batch[name] for batch in predictions)] for name in columns}
        )
        text = table.assign(unit=unit).to_csv(index=False, na_rep="nan", lineterminator="\n")
        path = self.path if trainer.world_size == 1 else self.path.with_stem(f"predictions-{trainer.global_rank}")
        with atomic_write(path) as file:
            file.write(text.encode())
        print(f"predictions: {path}")
