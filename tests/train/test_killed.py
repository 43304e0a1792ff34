"""A fit that is killed, wherever that is, leaves whole files, and resumed it ends as one that was not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from eqlayers.cli.main import main
from eqlayers.train import checkpoint_path, read_checkpoint, read_history

# `eqlayers` with a signal to itself at the n-th call of a function; files that it writes then are written by half
SCRIPT = """
import io, os, signal, sys
import torch
from eqlayers.cli.main import main
from eqlayers.train import history, report
from eqlayers.train.base import TrainedModule
from eqlayers.train.potential import PotentialModule

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background would ignore it
sent, where, left = getattr(signal, sys.argv[1]), sys.argv[2], int(sys.argv[3])
owner, name = {
    "step": (PotentialModule, "training_step"),
    "validation": (PotentialModule, "validation_step"),
    "checkpoint": (torch, "save"),
    "history": (history, "write_json"),
    "test": (PotentialModule, "test_step"),
    "report": (report, "save_figure"),
}[where]
whole = getattr(owner, name)

def dying(*args, **kwargs):
    global left
    left -= 1
    if not left:
        if where == "checkpoint":
            written = io.BytesIO()
            whole(args[0], written)
            args[1].write(written.getvalue()[: len(written.getvalue()) // 2])
            args[1].flush()
        os.kill(os.getpid(), sent)
    return whole(*args, **kwargs)

setattr(owner, name, dying)
raise SystemExit(main(sys.argv[4:]))
"""
CONFIG: dict[str, Any] = {
    "task": "potential",
    "report": False,
    "runs": "runs",
    "data": {"path": "ethanol_md", "split": "time", "train": 14, "val": 4, "test": 5, "cutoff": 3.0, "batch_size": 3},
    "model": {
        "second_stage": 0.5,
        "second_energy_weight": 10.0,
        "warmup_steps": 3,
        "model": {
            "class_path": "eqlayers.models.NequIP",
            "init_args": {"species": [1, 6, 8], "hidden": "4x0e + 4x1o", "lmax": 1, "layers": 2, "radial_hidden": [8]},
        },
    },
    # 5 batches and so 3 steps an epoch, the last of them of one batch
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 4,
        "log_every_n_steps": 1,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.3,
        "gradient_clip_algorithm": "value",
    },
    "ema": {"decay": 0.9},
}
ROWS = [
    # where, call, epochs that are finished then
    ("step", 8, 1),
    ("validation", 4, 2),  # one before training, which looks whether it works, and one an epoch
    ("checkpoint", 3, 1),  # best.ckpt of the second epoch
    ("checkpoint", 6, 2),  # last.ckpt of the third
    ("history", 4, 2),  # the first is summary.json; of the third epoch, before its last.ckpt
    ("test", 1, 4),
    ("report", 2, 4),
]

pytestmark = pytest.mark.kernels  # the fits of other processes have the backend of users


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "script.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("EQLAYERS_CACHE_DIR", str(folder / "cache"))
        assert main(["fit", "-c", "run.yaml", "--name", "whole"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(place / "cache"))


def interrupted(name: str, sent: str, where: str, call: int, *options: str) -> subprocess.CompletedProcess[str]:
    fit = ["fit", "-c", "run.yaml", "--name", name, *options]
    return subprocess.run(
        [sys.executable, "script.py", sent, where, str(call), *fit],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def result(name: str) -> dict[str, Any]:
    """All that must be equal: weights, averages, moments, counters, history and errors."""
    run = Path("runs") / name
    state: dict[str, Any] = {}
    for which in ("best", "last"):
        checkpoint = read_checkpoint(checkpoint_path(run, which))
        state |= {f"{which} {key}": checkpoint[key] for key in ("epoch", "global_step", "lr_schedulers")}
        for part in ("state_dict", "current_model_state"):
            state |= {f"{which} {part} {key}": value for key, value in checkpoint[part].items()}
        for number, moments in checkpoint["optimizer_states"][0]["state"].items():
            state |= {f"{which} moments {number} {key}": value for key, value in moments.items()}
    state["history"] = [{key: value for key, value in row.items() if key != "time_s"} for row in read_history(run)]
    metrics = json.loads((run / "metrics.json").read_text())
    return state | {key: value for key, value in metrics.items() if key.startswith("test_")}


def check_equal(name: str) -> None:
    want, resumed = result("whole"), result(name)
    assert resumed.keys() == want.keys()
    for key, value in want.items():
        same = torch.equal(resumed[key], value) if isinstance(value, torch.Tensor) else resumed[key] == value
        assert same, key


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize(("where", "call", "epochs"), ROWS, ids=[f"{where} {call}" for where, call, _ in ROWS])
def test_a_killed_fit_goes_on_to_the_same_end(where: str, call: int, epochs: int) -> None:
    name = f"{where}{call}"
    assert interrupted(name, "SIGKILL", where, call).returncode == -signal.SIGKILL
    last = checkpoint_path(Path("runs") / name, "last")
    assert read_checkpoint(last)["epoch"] + 1 == epochs
    read_checkpoint(checkpoint_path(Path("runs") / name))  # whole as well
    assert main(["fit", "-c", "run.yaml", "--name", name, "--resume"]) == 0
    check_equal(name)
    assert not list(Path("runs", name).rglob("*.tmp"))


@pytest.mark.long
def test_ctrl_c_says_how_to_go_on() -> None:
    done = interrupted("asked", "SIGINT", "step", 8)
    assert done.returncode == 130
    line = "files are whole; to go on: eqlayers fit -c run.yaml --name asked --resume"
    assert f"interrupted by Ctrl-C; {line}" in done.stderr
    assert "Traceback" not in done.stderr
    again = interrupted("asked", "SIGINT", "report", 1, "--resume")
    assert again.returncode == 130
    assert again.stderr.rstrip().endswith(line)
    assert main(["fit", "-c", "run.yaml", "--name", "asked", "--resume"]) == 0
    check_equal("asked")


@pytest.mark.long
@pytest.mark.parametrize("sent", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_in_its_first_epoch_leaves_no_folder(sent: str) -> None:
    done = interrupted("early", sent, "step", 2)
    assert done.returncode == {"SIGINT": 130, "SIGTERM": 143}[sent]
    assert not Path("runs", "early").exists()
    assert "to go on: eqlayers fit -c run.yaml --name early --resume" in done.stderr
