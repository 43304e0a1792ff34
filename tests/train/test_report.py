"""The report of a test: predictions in a file, the worst molecules, and errors beside simpler predictors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from eqlayers.data import TARGETS
from eqlayers.train import PredictionTable, TestReport
from eqlayers.train.base import TrainedModule
from eqlayers.train.report import Errors, largest_errors
from tests.each import each


class Module(TrainedModule):
    """A module that predicts in eV."""

    def __init__(self) -> None:
        pass

    def unit(self) -> str:
        return "eV"


def written(folder: Path, batches: list[dict[str, Any]], rank: int = 0, processes: int = 1) -> str:
    trainer: Any = SimpleNamespace(world_size=processes, global_rank=rank)
    PredictionTable(folder).write_on_epoch_end(trainer, Module(), batches, [])
    (path,) = folder.glob("*.csv")
    return f"{path.name}\n{path.read_text()}"


def test_predictions_have_the_columns_that_all_batches_have(tmp_path: Path) -> None:
    """Labels that are not known in one batch are known in none; the digits of a total energy are kept."""
    batches = [
        {"idx": [7, 5], "true": [1.0, 2.0], "predicted": [-1111.000000001, float("nan")], "other": [0, 0]},
        {"idx": [3], "predicted": [2.5]},
    ]
    expected = "predictions.csv\nidx,predicted,unit\n7,-1111.000000001,eV\n5,nan,eV\n3,2.5,eV\n"
    assert written(tmp_path, batches) == expected
    alone = written(tmp_path / "other", [{"predicted": [1.0]}], 1, 2)
    assert alone == "predictions-1.csv\npredicted,unit\n1.0,eV\n", "each process writes its own"


def test_molecules_with_the_largest_errors_come_first() -> None:
    """By their numbers in the source, of which the molecules are in another order."""

    class Molecules:
        idx, z = np.array([30, 10, 20]), [[6, 1, 1, 1, 1], [8, 1, 1], [7, 1, 1, 1]]

        def take(self, rows: np.ndarray) -> SimpleNamespace:
            return SimpleNamespace(z=np.array(self.z[rows[0]]))

    values = {"idx": np.array([10.0, 20, 30]), "true": np.array([1.0, 2, 3]), "predicted": np.array([1.1, 1.5, 3.2])}
    (table,) = largest_errors(SimpleNamespace(data=Molecules(), rows=[0, 1, 2]), values, TARGETS["U0"]).blocks
    assert [row[:2] for row in table.rows] == [("20", "H3N"), ("30", "CH4"), ("10", "H2O")]
    assert [row[-1] for row in table.rows] == ["-500", "200", "100"], "meV, with their signs"


@each("best", [2.0, 0.0])
def test_other_predictors_are_as_many_times_worse(best: float) -> None:
    rows = {"Net": Errors(best, 3.0), "mean of the training part": Errors(5.0, 6.0)}
    table = TestReport("x")._table(TARGETS["U0"], rows, 9)
    assert [row[-1] for row in table.rows] == ["1", "2.50" if best else "-"]
    assert table.headings[1:3] == ("MAE (meV)", "RMSE (meV)")
