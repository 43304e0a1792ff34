"""The optimizer of a training: names, classes, options, and what a resumed run does with another."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eqlayers import Linear
from eqlayers.cli.main import main
from eqlayers.optim import SOAP
from eqlayers.train import read_checkpoint
from eqlayers.train.optimizers import build_optimizer
from tests.each import refused

FIT = ["fit", "--data.dataset", "mini", "--data.limit_train", "12", "--data.batch_size", "6", "--report", "false"]
FIT += [
    "--data.cutoff",
    "2.0",
    "--model.model",
    "eqlayers.models.MoleculeNetwork",
    "--model.model.hidden",
    "4x0e + 4x1o",
    "--model.model.layers",
    "1",
    "--runs",
    "runs",
]
FIT += ["--trainer.accelerator", "cpu", "--test_after_fit", "false"]
FIT += ["--model.warmup_steps", "0", "--model.final_factor", "1.0"]  # the schedule of a run cut short is the same


class Own(torch.optim.SGD):
    """An optimizer of a user's, for a module."""

    def __init__(self, module: nn.Module, lr: float, weight_decay: float, momentum: float = 0.0) -> None:
        super().__init__(module.parameters(), lr=lr, weight_decay=weight_decay, momentum=momentum)


def build(choice: Any, betas: Any = None) -> torch.optim.Optimizer:
    return build_optimizer(choice, Linear("4x0e", "4x0e", biases=True), 0.1, betas, 0.01)


def test_names_give_an_optimizer_with_its_usual_betas() -> None:
    for name, cls, betas in (("adamw", torch.optim.AdamW, (0.9, 0.999)), ("soap", SOAP, (0.95, 0.98))):
        optimizer = build(name)
        assert type(optimizer) is cls
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
        assert {(group["lr"], group["betas"]) for group in optimizer.param_groups} == {(0.1, betas)}
        assert build(name, [0.5, 0.6]).param_groups[0]["betas"] == (0.5, 0.6)


def test_options_and_classes_by_their_paths() -> None:
    assert "basis every 3 steps" in repr(build({"class_path": "soap", "init_args": {"precondition_every": 3}}))
    theirs = build({"class_path": "torch.optim.NAdam", "init_args": {"momentum_decay": 0.5}})
    assert type(theirs) is torch.optim.NAdam
    assert {group["momentum_decay"] for group in theirs.param_groups} == {0.5}
    own = build({"class_path": f"{__name__}.Own", "init_args": {"momentum": 0.5}})
    (group,) = own.param_groups
    assert (group["lr"], group["weight_decay"], group["momentum"], len(group["params"])) == (0.1, 0.01, 0.5, 2)


test_other_choices_are_refused = refused(
    "choice, message",
    [
        ("sopa", "model.optimizer must be .*got 'sopa'"),
        ("torch.optim.NoSuch", "must be a class that can be imported, got 'torch.optim.NoSuch'"),
        ("no_such_package.Adam", "must be a class that can be imported"),
        ("torch.nn.Linear", "must be a class of torch.optim.Optimizer, got 'torch.nn.Linear'"),
        ("torch.optim.LBFGS", "must take parameters and lr, got torch.optim.LBFGS"),
        ({"class_path": "soap", "init_args": {"blok": 3}}, "must take parameters and lr, betas, blok"),
        ({"class_path": "soap", "init_args": {"block": 0}}, "^block must"),
        ({"class": "soap"}, "soap or adamw, or class_path and init_args"),
        (3, "soap or adamw, or class_path and init_args"),
    ],
    lambda choice: build(choice),
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fit(name: str, *options: str) -> int:
    return main([*FIT, "--name", name, *options])


def test_a_resumed_run_is_the_unbroken_one_and_keeps_its_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit("whole", "--trainer.max_epochs", "4") == 0
    assert fit("cut", "--trainer.max_epochs", "4", "--trainer.max_steps", "4") == 0
    assert fit("cut", "--trainer.max_epochs", "4", "--resume") == 0
    whole, cut = (read_checkpoint(f"runs/{name}/checkpoints/last.ckpt") for name in ("whole", "cut"))
    states = [one["optimizer_states"][0]["state"] for one in (whole, cut)]
    assert "gram" in states[0][0]
    assert all(torch.equal(states[0][i][name], states[1][i][name]) for i in states[0] for name in states[0][i])
    weights = [one["current_model_state"] for one in (whole, cut)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    capsys.readouterr()
    assert fit("cut", "--model.optimizer", "adamw", "--trainer.max_epochs", "6", "--resume") == 2
    assert "model.optimizer must be 'soap', with which the run was begun, got 'adamw'" in capsys.readouterr().err
    other = "{class_path: soap, init_args: {block: 2}}"
    assert fit("cut", "--model.optimizer", other, "--trainer.max_epochs", "6", "--resume") == 2
    assert (
        "with which the run was begun, got {'class_path': 'soap', 'init_args': {'block': 2}}" in capsys.readouterr().err
    )
