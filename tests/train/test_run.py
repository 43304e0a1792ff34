"""A run leaves metrics, pictures and tables that say what happened; the same seed gives the same run."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch

from eqlayers.models import MoleculeNetwork
from eqlayers.pages.page import number
from eqlayers.train import checkpoint_path, read_checkpoint, read_history
from eqlayers.train.run import CompileAhead, run_folder

KEYS = {
    "test_U0_mae_meV": float,
    "test_U0_rmse_meV": float,
    "best_val_U0_mae_meV": float,
    "baseline_mean_mae_meV": float,
    "baseline_composition_mae_meV": float,
    "mae_ratio_to_composition": float,
    "train_time_s": float,
    "epochs": int,
    "steps": int,
    "num_parameters": int,
    "num_train": int,
    "num_test": int,
    "seed": int,
    "torch_version": str,
    "eqlayers_version": str,
}


pytestmark = pytest.mark.pictures


def test_a_folder_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_folder("~/runs", "own") == tmp_path / "runs" / "own"


@pytest.fixture(scope="module")
def tested(make_run_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("tested") / "run"
    trainer, module, data = make_run_in(folder)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, ckpt_path=str(checkpoint_path(folder)), verbose=False)
    return folder, trainer, data


def test_metrics(tested: tuple[Path, Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, trainer, data = tested
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {key: type(metrics.get(key)) for key in KEYS} == KEYS
    assert all(not isinstance(value, (dict, list)) for value in metrics.values()), "keys must be flat"
    assert metrics["test_U0_mae_meV"] == pytest.approx(float(trainer.callback_metrics["test/U0_mae_meV"]), rel=1e-11)
    train, test = data.train_set.taken, data.test_set.taken
    counts, species = train.counts(train.species), train.species
    fit = np.linalg.lstsq(counts, train.y)[0]
    for key, error in {"mean": test.y - train.y.mean(), "composition": test.y - test.counts(species) @ fit}.items():
        assert metrics[f"baseline_{key}_mae_meV"] == pytest.approx(np.abs(error).mean() * 1000, rel=1e-9)
        assert metrics[f"baseline_{key}_rmse_meV"] == pytest.approx(np.sqrt(np.square(error).mean()) * 1000, rel=1e-9)
    assert (metrics["steps"], metrics["epochs"], metrics["num_train"], metrics["seed"]) == (9, 3, 96, 7)
    ratio = metrics["test_U0_mae_meV"] / metrics["baseline_composition_mae_meV"]
    assert metrics["mae_ratio_to_composition"] == pytest.approx(ratio, rel=1e-14)
    rows = read_history(folder)
    assert metrics["best_val_U0_mae_meV"] == min(row["val_mae"] for row in rows)
    assert metrics["num_test"] == len(data.test_set)


def test_pictures_show_something(tested: tuple[Path, Any, Any]) -> None:
    for name in ("parity.png", "learning_curve.png"):
        image = matplotlib.image.imread(tested[0] / name)
        assert min(image.shape[:2]) >= 500
        colours = np.unique(image.reshape(-1, image.shape[2])[:, :3], axis=0)
        blue = colours[(colours[:, 2] > 0.6) & (colours[:, 0] < 0.3)]
        assert len(blue) > 0, f"{name} has no data in it"


def test_a_page_about_molecules(tested: tuple[Path, Any, Any]) -> None:
    folder, _, data = tested
    text = (folder / "report.html").read_text()
    titles = ["What was run", "Data", "Network", "Learning curves", "Errors", "Predictions", "Largest errors"]
    assert re.findall("<h2>(.*)</h2>", text) == titles
    values = json.loads((folder / "metrics.json").read_text())
    assert f"errors on 278 test structures: U0 {number(values['test_U0_mae_meV'])} meV" in text
    assert "composition regression" in text
    assert "heavy atoms" in text
    assert "http" not in text
    worst = text[text.index("<h2>Largest errors") :]
    assert int(re.search("<td>(.*?)</td>", worst).group(1)) in {int(sample.idx) for sample in data.test_set}


def test_logs_in_csv_and_tensorboard(tested: tuple[Path, Any, Any]) -> None:
    folder = tested[0]
    with (folder / "csv" / "version_0" / "metrics.csv").open() as file:
        columns = next(csv.reader(file))
    assert {"val/U0_mae_meV", "train/U0_mae_meV", "train/loss_step", "learning_rate/pg1"} <= set(columns)
    assert list((folder / "tensorboard").glob("version_0/events*"))


def test_predictions(tested: tuple[Path, Any, Any]) -> None:
    folder, trainer, data = tested
    trainer.predict(trainer.lightning_module, datamodule=data, ckpt_path=str(checkpoint_path(folder)))
    with (folder / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    labels = {int(sample.idx): float(sample.y) for sample in data.test_set}
    assert {int(row["idx"]): float(row["true"]) for row in rows} == labels
    assert {row["unit"] for row in rows} == {"eV"}
    mae = np.mean([abs(float(row["true"]) - float(row["predicted"])) for row in rows]) * 1000
    assert mae == pytest.approx(json.loads((folder / "metrics.json").read_text())["test_U0_mae_meV"], rel=1e-11)


def test_same_seed_same_result(tested: tuple[Path, Any, Any], make_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer, module, data = make_run()
    trainer.fit(module, datamodule=data)
    ends = []
    for folder in (tested[0], tmp_path / "run"):
        rows = [{key: row[key] for key in ("step", "train_mae", "val_mae")} for row in read_history(folder)]
        ends.append((rows, read_checkpoint(checkpoint_path(folder, "last"))["state_dict"]))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(ends[0][1][name], ends[1][1][name]) for name in ends[0][1])


def test_learns(make_run: Callable[..., Any], tmp_path: Path, make_data: Callable[..., Any]) -> None:
    trainer, module, data = make_run(max_epochs=6, data=make_data(limit_train=320), learning_rate=5e-3)
    trainer.fit(module, datamodule=data)
    rows = read_history(tmp_path / "run")
    assert rows[-1]["val_mae"] < 0.75 * rows[0]["val_mae"]


def test_the_real_network_trains(make_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer, module, data = make_run(max_epochs=1)
    module.model = MoleculeNetwork(hidden="4x0e + 4x1o", layers=1, radial_hidden=(8,))
    trainer.fit(module, datamodule=data)
    saved = read_checkpoint(checkpoint_path(tmp_path / "run", "last"))
    assert saved["state_dict"]["model.scale"].item() == data.statistics.scale


def test_kernels_compiled_ahead_change_no_fit(make_run: Callable[..., Any], tmp_path: Path) -> None:
    ends = []
    for name in ("ahead", "later"):
        trainer, module, data = make_run(name, max_epochs=1)
        module.model = MoleculeNetwork(hidden="4x0e + 4x1o", layers=1, radial_hidden=(8,))
        module.model.load_state_dict({**module.model.state_dict(), **(ends[0][0] if ends else {})})
        start = {key: value.clone() for key, value in module.model.state_dict().items()}
        kept = [one for one in trainer.callbacks if name == "ahead" or not isinstance(one, CompileAhead)]
        assert len(trainer.callbacks) - len(kept) == (name == "later")
        trainer.callbacks = kept
        trainer.fit(module, datamodule=data)
        ends.append((start, read_checkpoint(checkpoint_path(tmp_path / name, "last"))["state_dict"]))
    assert all(torch.equal(value, ends[1][1][name]) for name, value in ends[0][1].items())
