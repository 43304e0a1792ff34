"""The table of predictions of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eqlayers.data.structures import Label
from eqlayers.train import PredictionTable
from eqlayers.train.base import TrainedModule


class Module(TrainedModule):
    """A module that predicts in eV."""

    def __init__(self) -> None:
        pass

    def labels_of_test(self) -> dict[str, Label]:
        return {"y": Label("gap", "N", (), "eV", "meV", "meV")}


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
