"""Checkpoints: written whole, refused with a reason, and resumed to the same end."""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from eqlayers.errors import ConfigError, DataError
from eqlayers.train import AtomicCheckpointIO, checkpoint_path, read_checkpoint, read_history
from eqlayers.train.checkpoints import Stopping

VERSION = {"pytorch-lightning_version": "2.6.0"}


class Interrupted(Exception):
    pass


class Interrupt(Callback):
    """Stops a run in the middle of an epoch."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2 and batch_idx == 1:
            raise Interrupted


def finish(folder: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    rows = [{key: value for key, value in row.items() if key != "time_s"} for row in read_history(folder)]
    return read_checkpoint(checkpoint_path(folder, "last")), rows


def test_interrupted_and_resumed_equals_uninterrupted(make_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer, module, data = make_run("whole", max_epochs=4)
    trainer.fit(module, datamodule=data)
    trainer, module, data = make_run("parts", max_epochs=4, callbacks=(Interrupt(),))
    with pytest.raises(Interrupted):
        trainer.fit(module, datamodule=data)
    assert len(read_history(tmp_path / "parts")) == 2
    trainer, module, data = make_run("parts", max_epochs=4)
    torch.manual_seed(99)  # a resumed process has another random state
    trainer.fit(module, datamodule=data, ckpt_path=str(checkpoint_path(tmp_path / "parts", "last")))
    (whole, rows), (parts, again) = finish(tmp_path / "whole"), finish(tmp_path / "parts")
    assert rows == again
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    for part in ("state_dict", "current_model_state"):
        assert whole[part].keys() == parts[part].keys()
        assert all(torch.equal(whole[part][name], parts[part][name]) for name in whole[part]), part
    best = [read_checkpoint(checkpoint_path(tmp_path / name))["epoch"] for name in ("whole", "parts")]
    assert best[0] == best[1]


def test_a_run_whose_folder_was_moved_keeps_its_best(make_run: Callable[..., Any], tmp_path: Path) -> None:
    """The best begins anew with a checkpoint of another run, which is in no folder of this one."""
    trainer, module, data = make_run("before", max_epochs=4, learning_rate=0.5)
    trainer.fit(module, datamodule=data)
    (tmp_path / "before").rename(tmp_path / "after")
    for name in ("after", "other"):
        trainer, module, data = make_run(name, max_epochs=5 if name == "after" else 6, learning_rate=0.5)
        with warnings.catch_warnings():
            warnings.filterwarnings("error" if name == "after" else "ignore", "The dirpath has changed")
            trainer.fit(module, datamodule=data, ckpt_path=str(checkpoint_path(tmp_path / "after", "last")))
    errors = [row["val_mae"] for row in read_history(tmp_path / "after")]
    assert errors.index(min(errors)) < 4, "the test needs a best epoch before the move"
    best = read_checkpoint(checkpoint_path(tmp_path / "after"))
    assert best["epoch"] == errors.index(min(errors))
    states = read_checkpoint(checkpoint_path(tmp_path / "after", "last"))["callbacks"]
    paths = [state[key] for state in states.values() for key in ("dirpath", "best_model_path") if key in state]
    assert len(paths) == 4
    assert all(str(tmp_path / "after") in path for path in paths)
    assert read_checkpoint(checkpoint_path(tmp_path / "other"))["epoch"] == 5


def test_last_is_the_last_epoch_and_best_the_best(make_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer, module, data = make_run(max_epochs=4, learning_rate=0.5)  # so high that a later epoch is worse
    trainer.fit(module, datamodule=data)
    errors = [row["val_mae"] for row in read_history(tmp_path / "run")]
    assert errors.index(min(errors)) != 3, "the test needs a best epoch before the last one"
    assert read_checkpoint(checkpoint_path(tmp_path / "run"))["epoch"] == errors.index(min(errors))
    assert read_checkpoint(checkpoint_path(tmp_path / "run", "last"))["epoch"] == 3


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, io = tmp_path / "last.ckpt", AtomicCheckpointIO()
    io.save_checkpoint(VERSION | {"state_dict": {"a": torch.ones(3)}}, path)

    def fail(checkpoint: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        io.save_checkpoint({"state_dict": {}}, path)
    assert torch.equal(read_checkpoint(path)["state_dict"]["a"], torch.ones(3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_cut_checkpoint_is_refused(keep: float, tmp_path: Path) -> None:
    path = tmp_path / "cut.ckpt"
    torch.save(VERSION | {"state_dict": {"a": torch.ones(1000)}}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep >= 1 or keep == 0 else keep * len(whole))])
    with pytest.raises(DataError, match=r"a file .*, got .*cut.ckpt \(.* bytes\): it .*\. Use another checkpoint"):
        read_checkpoint(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(DataError, match="it holds a list, not a dictionary"):
        read_checkpoint(tmp_path / "list.ckpt")
    with pytest.raises(ConfigError, match=r"a checkpoint must .*got nothing at .*no.ckpt"):
        read_checkpoint(tmp_path / "no.ckpt")


def test_a_fit_refuses_a_corrupt_checkpoint(make_run: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "bad.ckpt"
    path.write_bytes(b"not a checkpoint")
    trainer, module, data = make_run()
    with pytest.raises(DataError, match=r"it is no whole archive.*\. Use another checkpoint"):
        trainer.fit(module, datamodule=data, ckpt_path=str(path))


@pytest.mark.parametrize(("monitor", "kept"), [("val/loss", False), ("val/mae", True)])
def test_stopping_waits_anew_where_the_loss_has_other_weights(monitor: str, kept: bool) -> None:
    """Losses of two stages are not compared; an error without weights is. A resumed run knows the weights."""
    trainer: Any = SimpleNamespace(sanity_checking=False)
    first: Any = SimpleNamespace(loss_weights=lambda: {"energy": 1.0, "forces": 100.0})
    second: Any = SimpleNamespace(loss_weights=lambda: {"energy": 10.0, "forces": 100.0})
    before = Stopping(monitor, patience=2)
    before.on_validation_start(trainer, first)
    before.best_score, before.wait_count = torch.tensor(0.25), 1
    before.on_validation_start(trainer, first)
    assert (float(before.best_score), before.wait_count) == (0.25, 1)
    after = Stopping(monitor, patience=2)
    after.load_state_dict(before.state_dict())
    after.on_validation_start(trainer, second)
    assert (float(after.best_score), after.wait_count) == ((0.25, 1) if kept else (torch.inf, 0))
