"""Parts that do not belong together are refused: network and target, checkpoint and data, one run and another."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from eqlayers.cli.main import main
from eqlayers.data.qm9 import TARGETS
from eqlayers.errors import ConfigError
from eqlayers.models import MoleculeNetwork
from eqlayers.train import checkpoints
from eqlayers.train.checkpoints import check_network
from tests.each import refused

pytestmark = [pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)")]

SETTINGS = {
    "name": "run",
    "threads": 1,
    "data": {"limit_train": 48, "batch_size": 16, "eval_batch_size": 64},
    "model": {
        "model": {
            "class_path": "eqlayers.models.MoleculeNetwork",
            "init_args": {"hidden": "4x0e + 4x1o", "layers": 1, "radial_hidden": [8]},
        }
    },
    "trainer": {"accelerator": "cpu", "max_epochs": 1},
}


class Data:
    """The part of a data module that is compared."""

    dataset, split, cutoff = "mini", "random", 5.0

    class statistics:
        species = (1, 6)

    def __init__(self, target: str) -> None:
        self.target = TARGETS[target]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreement")
    settings = SETTINGS | {"runs": str(folder / "runs")}
    settings["data"] = dict(SETTINGS["data"], cache_dir=str(folder / "cache"))
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    return folder


def command(place: Path, *args: str) -> list[str]:
    return [args[0], "-c", str(place / "run.yaml"), *args[1:]]


test_pooling_and_readout_follow_the_target = refused(
    "target, options, message",
    [
        ("homo", {"pooling": "sum"}, "pooling to mean"),
        ("U0", {"pooling": "mean"}, "pooling to sum"),
        ("U0", {"readout": "vector"}, "readout to scalar"),
        ("U0", {"readout": "extent"}, "for the target r2, got U0. Set model.model.init_args.readout to scalar"),
        ("mu", {"readout": "extent"}, "readout to scalar"),
        ("r2", {"readout": "extent", "pooling": "mean"}, "pooling to sum"),
    ],
    lambda target, options: check_network(MoleculeNetwork(hidden="2x0e + 2x1o", layers=1, **options), Data(target)),
)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("homo", {"pooling": "mean"}),
        ("U0", {}),
        ("mu", {"readout": "vector"}),
        ("mu", {"readout": "scalar"}),
        ("r2", {"readout": "extent"}),
        ("r2", {}),
    ],
)
def test_what_fits_is_accepted(target: str, options: dict[str, str]) -> None:
    check_network(MoleculeNetwork(hidden="2x0e + 2x1o", layers=1, **options), Data(target))


def test_parts_with_structures_that_were_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is drawn is refused; of a file of its own, the share is returned. Copies of the run itself may be."""
    saved = {"train": torch.tensor([1, 2, 3]), "val": torch.tensor([5]), "test": torch.tensor([3, 9])}
    for drawn, now, share in ((True, [3, 9, 8], None), (False, [2, 3, 9, 1], 0.5), (False, [7], None)):
        monkeypatch.setattr(checkpoints, "identities", lambda data, now=now: {"test": torch.tensor(now)})
        data = SimpleNamespace(is_drawn=lambda name, drawn=drawn: drawn)
        said = checkpoints.check_unseen(saved, data, ("val", "test"))
        assert said.get("test", (None,))[0] == share
        assert checkpoints.check_unseen(saved, data, ("val",)) == {}
    assert "2 of 4 test structures, 50%, were trained on" in _said(monkeypatch, saved, [2, 3, 9, 1])
    drawn_data = SimpleNamespace(is_drawn=lambda name: True)
    with pytest.raises(ConfigError, match=r"the test part must hold no structure .* trained on, got 2 of 4\. Set data"):
        checkpoints.check_unseen(saved, drawn_data, ("test",))


def _said(monkeypatch: pytest.MonkeyPatch, saved: dict[str, torch.Tensor], now: list[int]) -> str:
    monkeypatch.setattr(checkpoints, "identities", lambda data: {"test": torch.tensor(now)})
    return checkpoints.check_unseen(saved, SimpleNamespace(is_drawn=lambda name: False), ("test",))["test"][1]


@pytest.mark.filterwarnings("ignore:`ModelCheckpoint.* could not find the monitored key")  # no validation, on purpose
@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # weights of another run, on purpose
def test_runs_do_not_mix(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "runs" / "run"
    assert main(command(place, "fit")) == 0
    first = json.loads((run / "metrics.json").read_text())
    assert first["checkpoint"].endswith("best.ckpt")
    capsys.readouterr()
    # the target and the split of the checkpoint count
    assert main(command(place, "test", "--data.target", "zpve")) == 2
    assert "Set data.target to U0" in capsys.readouterr().err
    assert main(command(place, "test", "--data.split", "size")) == 2
    assert "the test part must hold no structure that the checkpoint was trained on, got" in capsys.readouterr().err
    assert json.loads((run / "metrics.json").read_text()) == first
    # baselines of a part of the test molecules are of this part
    assert main(command(place, "test", "--trainer.limit_test_batches", "0.25")) == 0
    part = json.loads((run / "metrics.json").read_text())
    assert part["num_test"] == 64
    assert part["baseline_mean_mae_meV"] != first["baseline_mean_mae_meV"]
    ratio = part["test_U0_mae_meV"] / part["baseline_mean_mae_meV"]
    assert part["mae_ratio_to_mean"] == pytest.approx(ratio, rel=1e-12)
    # weights from elsewhere bring no history of this run
    other = ["--name", "other", "--ckpt_path", str(run / "checkpoints" / "last.ckpt")]
    assert main(command(place, "test", *other)) == 0
    elsewhere = json.loads((place / "runs" / "other" / "metrics.json").read_text())
    assert elsewhere["train_time_s"] is None
    capsys.readouterr()
    # a fit that ends before it validates has no result
    assert main(command(place, "fit", "--name", "short", "--trainer.max_steps", "1")) == 2
    assert "must validate at least once" in capsys.readouterr().err
    assert not (run.with_name("short") / "metrics.json").exists()
    assert not (run.with_name("short") / "checkpoints" / "best.ckpt").exists()


@pytest.mark.long
def test_sigterm_is_not_success(place: Path) -> None:
    long = command(place, "fit", "--name", "killed", "--trainer.max_epochs", "1000")
    process = subprocess.Popen(
        [sys.executable, "-m", "eqlayers", *long],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )
    checkpoint = place / "runs" / "killed" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert checkpoint.exists()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "; to go on: eqlayers fit -c " in error
    assert error.rstrip().endswith(" --resume")


def test_a_fit_looks_at_its_network(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(place, "fit", "--name", "refused", "--model.model.init_args.pooling", "mean")) == 2
    assert "pooling to sum" in capsys.readouterr().err
