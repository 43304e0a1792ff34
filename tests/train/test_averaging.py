"""The average is the recursion of its formula, and validation, testing and checkpoints use it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from eqlayers.errors import ConfigError
from eqlayers.train import EMA, checkpoint_path, read_checkpoint


class Spy(Callback):
    """Keeps the raw weights after every step, and those seen by validation and test."""

    def __init__(self) -> None:
        self.raw: list[torch.Tensor] = []
        self.validated: list[torch.Tensor] = []
        self.tested: list[torch.Tensor] = []
        self.tables: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.raw.append(weight(pl_module))

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.validated.append(weight(pl_module))
        self.tables.append(pl_module.model.table.clone())

    def on_test_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.tested.append(weight(pl_module))


def weight(module: Any) -> torch.Tensor:
    return module.model.radial.weight.detach().clone()


def recursion(raw: list[torch.Tensor], decay: float) -> torch.Tensor:
    average = raw[0].double()
    for step, current in enumerate(raw[1:], start=1):
        now = min(decay, (1 + step) / (10 + step))
        average = now * average + (1 - now) * current.double()
    return average


@pytest.fixture
def run(make_run: Callable[..., Any], tmp_path: Path) -> tuple[Spy, Any, Any, Any]:
    spy = Spy()
    trainer, module, data = make_run(callbacks=(spy,), decay=0.45)
    trainer.fit(module, datamodule=data)
    return spy, trainer, module, data


def test_validation_test_and_checkpoint_use_the_average(run: tuple[Spy, Any, Any, Any], tmp_path: Path) -> None:
    spy, trainer, module, data = run
    expected = recursion(spy.raw, 0.45)
    assert (spy.raw[-1] - expected).abs().max() > 1e-4, "the average must be far from the last weights to be told apart"
    close = {"rtol": 1e-5, "atol": 1e-6}  # nine steps of float32
    torch.testing.assert_close(spy.validated[-1].double(), expected, **close)
    last = read_checkpoint(checkpoint_path(tmp_path / "run", "last"))
    torch.testing.assert_close(last["state_dict"]["model.radial.weight"].double(), expected, **close)
    assert torch.equal(last["current_model_state"]["model.radial.weight"], spy.raw[-1])
    best = read_checkpoint(checkpoint_path(tmp_path / "run"))
    trainer.test(module, datamodule=data, ckpt_path=str(checkpoint_path(tmp_path / "run")), verbose=False)
    assert torch.equal(spy.tested[-1], best["state_dict"]["model.radial.weight"])
    assert not torch.equal(spy.tested[-1], best["current_model_state"]["model.radial.weight"])


def test_validating_after_the_fit_judges_the_weights_it_was_given(run: tuple[Spy, Any, Any, Any]) -> None:
    spy, trainer, module, data = run
    with torch.no_grad():
        module.model.radial.weight.fill_(0.25)
    trainer.validate(module, datamodule=data, verbose=False)
    assert torch.equal(spy.validated[-1], torch.full_like(spy.validated[-1], 0.25))


def test_gradients_that_are_added_up_are_averaged_once(make_run: Callable[..., Any]) -> None:
    """One epoch of three micro-batches: two optimizer steps, and no average between them."""
    spy = Spy()
    trainer, module, data = make_run(callbacks=(spy,), decay=0.45, max_epochs=3, accumulate_grad_batches=2)
    trainer.fit(module, datamodule=data)
    steps = [raw for n, raw in enumerate(spy.raw) if n % 3]  # behind the second and the third micro-batch
    assert len(steps) == trainer.global_step == 6
    assert torch.equal(spy.raw[3], spy.raw[2])
    expected = recursion(steps, 0.45)
    assert (recursion(spy.raw, 0.45) - expected).abs().max() > 1e-5, "an average of each micro-batch must show"
    torch.testing.assert_close(spy.validated[-1].double(), expected, rtol=1e-6, atol=1e-6)


def test_integer_tables_and_float64_statistics_are_copied(make_run: Callable[..., Any], tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("eqlayers.train.averaging.ema_decay", lambda step, decay: 0.9)  # 0.9 n + 0.1 n rounds below n
    spy = Spy()
    trainer, module, data = make_run(callbacks=(spy,), max_epochs=1)
    trainer.fit(module, datamodule=data)
    table = torch.arange(3000)
    assert not torch.equal((table * 0.9 + table * (1 - 0.9)).long(), table), "averaging would have to show"
    assert all(torch.equal(seen, table) for seen in spy.tables)
    saved = read_checkpoint(checkpoint_path(tmp_path / "run"))["state_dict"]
    assert saved["model.scale"].item() == data.statistics.scale
    assert saved["model.shifts"][6].item() == data.statistics.shifts[6]


def test_buffers_follow_every_step(make_run: Callable[..., Any], tmp_path: Path) -> None:
    """Counters and running statistics would be spoiled by an average over steps."""

    class Count(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            pl_module.model.table += 1

    trainer, module, data = make_run(callbacks=(Count(),), max_epochs=1)
    trainer.fit(module, datamodule=data)
    assert trainer.global_step > 1
    saved = read_checkpoint(checkpoint_path(tmp_path / "run", "last"))["state_dict"]
    assert torch.equal(saved["model.table"], torch.arange(3000) + trainer.global_step)


def test_first_validation_sees_the_statistics(make_run: Callable[..., Any]) -> None:
    """The copy is made before the module takes the statistics from the data; the sanity check must see them."""
    seen = []

    class Look(Callback):
        def on_validation_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            seen.append(pl_module.model.scale.item())

    trainer, module, data = make_run(callbacks=(Look(),), max_epochs=1, num_sanity_val_steps=1)
    trainer.fit(module, datamodule=data)
    assert seen == [data.statistics.scale] * len(seen)
    assert len(seen) >= 2


def test_no_averaging_with_decay_zero(make_run: Callable[..., Any]) -> None:
    spy = Spy()
    trainer, module, data = make_run(callbacks=(spy,), decay=0.0, max_epochs=1)
    trainer.fit(module, datamodule=data)
    assert torch.equal(spy.validated[-1], spy.raw[-1])


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_bad_decay(decay: float) -> None:
    with pytest.raises(ConfigError, match=r"in \[0, 1\), got .* ema.decay"):
        EMA(decay)
