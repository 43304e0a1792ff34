"""The facts of a run from its folder: network, data, progress and errors, as far as its files can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eqlayers.train import checkpoint_path
from eqlayers.train.runs import Kind, read_run

FORCES = Kind("potential", "forces", "meV/A")


def config(**model: Any) -> dict[str, Any]:
    network = {"class_path": "eqlayers.models.MACE", "init_args": {"hidden": "8x0e + 8x1o", "lmax": 2}}
    return {
        "task": "potential",
        "name": "whatever",
        "trainer": {"max_epochs": 3, "gradient_clip_val": 10},
        "model": {"model": network, "learning_rate": 0.01} | model,
        "data": {"path": "frames/ethanol.xyz", "split": "time", "cutoff": 4.0},
    }


def history(*errors: float) -> list[dict[str, float]]:
    return [
        {"epoch": n, "step": 10 * n, "train_mae": 1.0, "val_mae": error, "learning_rate": 0.1, "time_s": 40.0 * n}
        for n, error in enumerate(errors, 1)
    ]


def metrics(forces: float, **other: Any) -> dict[str, Any]:
    return {
        "test_energy_mae_meV": 2.0,
        "test_energy_rmse_meV": 3.0,
        "test_forces_mae_meV_A": forces,
        "test_forces_rmse_meV_A": 2 * forces,
        "test_forces_on_C_mae_meV_A": 1.0,
        "baseline_forces_mae_meV_A": 700.0,
        "train_time_s": 120.0,
        "epochs": 3,
        "num_parameters": 39312,
        "num_train": 320,
        "num_test": 40,
        "dataset": "frames/ethanol.xyz",
        "split": "time",
    } | other


def write_run(folder: Path, **files: Any) -> Path:
    """A run's folder with these files: mappings and lists, or text for damaged ones."""
    folder.mkdir(parents=True)
    for file, content in files.items():
        path = folder / (f"{file}.yaml" if file == "config" else f"{file}.json")
        dumped = yaml.safe_dump(content) if file == "config" else json.dumps(content)
        path.write_text(content if isinstance(content, str) else dumped)
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder of a run by its name."""
    return lambda name, **files: write_run(tmp_path / "runs" / name, **files)


def test_everything_about_a_run(make: Callable[..., Path]) -> None:
    folder = make("a", config=config(), history=history(30.0, 20.0, 25.0), metrics=metrics(21.0))
    run = read_run(folder)
    assert (run.label, run.kind, run.network) == ("a", FORCES, "MACE hidden 8x0e+8x1o, lmax 2, cutoff 4")
    assert (run.num_parameters, run.num_train, run.epochs, run.steps) == (39312, 320, 3, 30)
    assert (run.time_s, run.best, run.data) == (120.0, 20.0, "frames/ethanol.xyz (time)")
    assert list(run.errors) == ["forces", "energy"], "the error of the kind first, and no single species"
    assert run.errors["forces"] == ("meV/A", 21.0, 42.0, 700.0)
    assert run.notes == []


def test_a_property(make: Callable[..., Path]) -> None:
    """Its unit stands in the file, as the key's has no signs; a run before its first test takes it from the target."""
    values = {"test_alpha_mae_a0_3": 0.5, "test_alpha_rmse_a0_3": 0.7, "unit": "a0^3", "target": "alpha"}
    settings = {"data": {"dataset": "mini", "target": "alpha", "split": "random"}}
    tested = read_run(make("tested", config=settings, metrics=values))
    early = read_run(make("early", config=settings, history=history(4.0)))
    assert tested.kind == early.kind == Kind("property", "alpha", "a0^3")
    assert (tested.errors["alpha"].mae, early.best, early.num_parameters) == (0.5, 4.0, None)


def test_a_run_in_its_first_epoch_says_what_it_trains(make: Callable[..., Path]) -> None:
    summary = {"network": "MACE", "num_parameters": 7, "num_train": 5, "error": "energy_per_atom_mae_meV"}
    run = read_run(make("a", config=config(), summary=summary | {"unit": "meV"}))
    assert (run.kind.quantity, run.num_parameters, run.num_train) == ("energy_per_atom", 7, 5)
    assert run.notes == ["not tested; epochs done: none"]


def test_a_run_that_was_trained_lacks_nothing(make_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer, module, data = make_run()
    trainer.fit(module, datamodule=data)
    folder = tmp_path / "run"
    before = read_run(folder)
    assert (before.kind, before.num_train) == (Kind("property", "U0", "meV"), 96)
    trainer.test(module, datamodule=data, ckpt_path=str(checkpoint_path(folder)), verbose=False)
    run, recorded = read_run(folder), json.loads((folder / "metrics.json").read_text())
    assert run.num_parameters == before.num_parameters == recorded["num_parameters"]
    assert run.errors["U0"].mae == recorded["test_U0_mae_meV"]
    assert (run.best, run.time_s) == (recorded["best_val_U0_mae_meV"], recorded["train_time_s"])
    assert (run.epochs, run.steps) == (3, 9)
    assert run.notes == ["no config.yaml: what differs from the others is not known"], "the command line writes it"
