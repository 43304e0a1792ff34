"""`fit --compile` trains the same weights, however steps are made up, and says what it does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from eqlayers.cli.main import main
from eqlayers.train import base, checkpoint_path, read_checkpoint
from tests.train.frames import DATA, write_frames

pytestmark = pytest.mark.kernels
NETWORK = {"species": [1, 6, 8], "hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1, "radial_hidden": [4]}
CONFIG = {
    "task": "potential",
    "report": False,
    "data": DATA | {"train": 7},
    "model": {"model": {"class_path": "eqlayers.models.NequIP", "init_args": NETWORK}, "warmup_steps": 2},
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1},
}
EXACT = ["--trainer.precision", "64-true", "--data.dtype", "float64"]
#: Ways in which a step is made up.
WAYS = {
    "plain": [],
    "accumulated and clipped": ["--trainer.accumulate_grad_batches", "2", "--trainer.gradient_clip_val", "0.1"],
    "second stage": ["--model.second_stage", "0.5", "--model.second_energy_weight", "10", "--model.loss", "huber"],
    "adamw, averaged": ["--model.optimizer", "adamw", "--ema.decay", "0.5", "--model.weight_decay", "0.1"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration, and few frames of the embedded trajectory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    write_frames(tmp_path)


def fit(name: str, compile_: str, *options: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights and history of a run."""
    assert main(["fit", "-c", "run.yaml", "--name", name, "--compile", compile_, *options]) == 0
    weights = read_checkpoint(checkpoint_path(Path("runs") / name, "last"))["state_dict"]
    return weights, json.loads((Path("runs") / name / "history.json").read_text())


def assert_near(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor], near: float = 1e-4) -> None:
    """Equal to rounding, which an optimizer divides by small numbers."""
    assert weights.keys() == others.keys()
    for name, one in weights.items():
        torch.testing.assert_close(
            one, others[name], rtol=near, atol=near / 10, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_fit_trains_the_same_weights(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    compiled, history = fit("compiled", "true", *EXACT, *WAYS[way])
    assert "compile: the network is traced" in capsys.readouterr().out
    plain, other = fit("plain", "false", *EXACT, *WAYS[way])
    assert "compile:" not in capsys.readouterr().out
    assert_near(compiled, plain, 1e-8)
    for row, one in zip(history, other, strict=True):
        assert row["val_mae"] == pytest.approx(one["val_mae"], rel=1e-8)


def test_a_resumed_compiled_fit_is_the_unbroken_one() -> None:
    """Bit for bit, and a run may change between both ways."""
    whole, _ = fit("whole", "true")
    fit("parts", "true", "--trainer.max_steps", "3")
    parts, _ = fit("parts", "true", "--resume", "--trainer.max_steps", "-1")
    assert all(torch.equal(one, parts[name]) for name, one in whole.items())
    fit("mixed", "false", "--trainer.max_steps", "3")
    assert_near(fit("mixed", "true", "--resume", "--trainer.max_steps", "-1")[0], whole)


def test_a_long_fit_is_compiled_by_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fit("short", "auto", "--trainer.max_epochs", "1")
    assert "compile:" not in capsys.readouterr().out
    monkeypatch.setattr(base, "WORTH_COMPILING", 3)
    fit("long", "auto", "--trainer.max_epochs", "1")
    assert "compile: the network is traced" in capsys.readouterr().out
    fit("less memory", "auto", "--trainer.max_epochs", "1", "--model.checkpointing", "true")
    assert "compile:" not in capsys.readouterr().out


def test_what_is_not_traced_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--compile", "true", "--model.checkpointing", "true"]
    assert main(["fit", "-c", "run.yaml", "--name", "refused", *options]) == 2
    assert "compile must be auto or false where a network cannot be traced, got model.checkpointing" in (
        capsys.readouterr().err
    )
    assert main(["fit", "-c", "run.yaml", "--name", "refused", "--compile", "sometimes"]) == 2
    assert "compile" in capsys.readouterr().err
