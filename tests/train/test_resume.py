"""A fit in a folder that has an earlier run: nothing is lost, and the message says the ways on."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eqlayers.cli.main import main
from eqlayers.errors import ConfigError
from eqlayers.train import checkpoint_path, read_checkpoint, run
from tests.train.frames import DATA, write_frames

CONFIG = {
    "task": "potential",
    "report": False,
    "data": DATA,
    "model": {
        "model": {
            "class_path": "eqlayers.models.NequIP",
            "init_args": {"species": [1, 6, 8], "hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1, "radial_hidden": [4]},
        }
    },
    "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1},
}
FIT = ["fit", "-c", "run.yaml", "--name", "own"]
RUN = Path("runs/own")


def write_inputs(folder: Path) -> None:
    """The configuration, and few frames of the embedded trajectory: each fit reads and checks a whole file."""
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    write_frames(folder)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)


def content(folder: Path = RUN) -> dict[str, str]:
    """All files of a run, by their bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def epochs() -> list[int]:
    return [row["epoch"] for row in json.loads((RUN / "history.json").read_text())]


def test_a_finished_run_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """A second call of the command is refused; --resume tests again; another name begins anew."""
    assert main(FIT) == 0
    before = content()
    capsys.readouterr()
    assert main(FIT) == 2
    error = capsys.readouterr().err
    for way in ("--resume", "--name", "move or remove the folder", "got runs/own with checkpoints/best.ckpt, "):
        assert way in error
    assert content() == before
    assert main([*FIT, "--resume"]) == 0
    assert epochs() == [1, 2]
    kept = ("checkpoints/best.ckpt", "checkpoints/last.ckpt", "history.json")
    assert {name: before[str(RUN / name)] for name in kept} == {name: content()[str(RUN / name)] for name in kept}
    before = content()
    assert main([*FIT, "--name", "other", "--trainer.fast_dev_run", "1"]) == 0
    assert main([*FIT, "--overwrite"]) == 2
    checkpoint_path(RUN, "last").unlink()  # without which a resumed run would begin, and write over the others
    del before[str(checkpoint_path(RUN, "last"))]
    capsys.readouterr()
    assert main([*FIT, "--resume"]) == 2
    assert "--resume must find runs/own/checkpoints/last.ckpt beside the results" in capsys.readouterr().err
    assert content() == before


@pytest.mark.parametrize(
    "name",
    [
        *("checkpoints/last.ckpt", "checkpoints/first_stage.ckpt", "summary.json", "metrics.json", "potential.pt"),
        *("predictions.csv", "parity_forces.png", "report.html", "committee.json", "member-2/potential.pt"),
    ],
)
@pytest.mark.parametrize("committee", [False, True])
def test_a_folder_with_any_result_is_refused(name: str, committee: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """By a run and by a committee, and is untouched."""
    (RUN / name).parent.mkdir(parents=True)
    (RUN / name).write_text('{"members": 2}')
    before = content()
    assert main([*FIT, *(["--committee", "2"] if committee else [])]) == 2
    assert f"got runs/own with {name}. Go on with --resume" in capsys.readouterr().err
    assert content() == before
    assert [path.name for path in RUN.parent.iterdir()] == ["own"]


def test_a_dry_run_is_no_run() -> None:
    """It compiles kernels, wherever results are."""
    RUN.mkdir(parents=True)
    (RUN / "potential.pt").write_text("a result")
    assert main([*FIT, "--trainer.fast_dev_run", "1"]) == 0
    assert [*content()] == [str(RUN / "potential.pt")]
    assert (RUN / "potential.pt").read_text() == "a result"


@pytest.mark.slow
def test_a_fit_after_a_dry_run_compiles_nothing(tmp_path: Path) -> None:
    """In other processes, whose kernels are on disk alone."""
    environment = {
        **os.environ,
        "EQLAYERS_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "eqlayers", *FIT]
    kernels = []
    for options in (["--trainer.fast_dev_run", "1"], []):
        done = subprocess.run([*command, *options], capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        kernels.append({path.name: path.stat().st_ino for path in (tmp_path / "cache").rglob("*.so")})
    assert len(kernels[0]) > 5
    assert kernels[1] == kernels[0]


def test_a_configuration_alone_says_what_to_learn(capsys: pytest.CaptureFixture[str]) -> None:
    """Without -c, and without a task, which the keys of the data tell."""
    Path("own.yaml").write_text(yaml.safe_dump({name: value for name, value in CONFIG.items() if name != "task"}))
    assert main(["fit", "own.yaml", "--name", "own", "--trainer.max_epochs", "1", "--test_after_fit", "false"]) == 0
    assert "run: runs/own" in capsys.readouterr().out
    assert yaml.safe_load((RUN / "config.yaml").read_text())["task"] == "potential"
    assert main(["validate", "runs/own/config.yaml"]) == 0


@pytest.mark.parametrize(("rank", "resumes"), [(0, False), (1, False), (0, True), (1, True)])
def test_every_process_begins_alike(rank: int, resumes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes restore the checkpoint; the first alone refuses, as the others find what the first has begun."""
    last = checkpoint_path(RUN, "last")
    last.parent.mkdir(parents=True)
    last.write_text("")
    monkeypatch.setattr(run, "first_process", lambda: rank == 0)
    if resumes:
        assert run.first_checkpoint(RUN, True, None) == str(last)
    elif rank:
        assert run.first_checkpoint(RUN, False, None) is None
    else:
        with pytest.raises(ConfigError, match="without results"):
            run.first_checkpoint(RUN, False, None)


def test_a_run_is_continued_without_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    """Also with the configuration that the run wrote, which names no checkpoint.

    Patience 0 ends a run at the first epoch that is not better, not before.
    """
    more = ["--resume", "--test_after_fit", "false", "--early_stopping.patience", "0"]
    assert main([*FIT, *more, "--trainer.max_epochs", "1"]) == 0
    assert "resume: nothing in runs/own, so the run begins" in capsys.readouterr().out
    assert main([*FIT, *more]) == 0
    said = capsys.readouterr().out
    assert "resume: runs/own/checkpoints/last.ckpt" in said
    assert "schedule: 4 steps (2 epochs), before 2 steps (1 epochs); the learning rate goes on with " in said
    assert epochs() == [1, 2]
    saved = (RUN / "config.yaml").read_text()
    assert "resume" not in saved
    assert "ckpt_path: null\n" in saved
    again = ["fit", "-c", str(RUN / "config.yaml"), "--resume", "--trainer.max_epochs", "3"]
    again += ["--early_stopping.patience", "9"]
    assert main([*again, "--model.learning_rate", "0.1"]) == 0
    assert "learning rate: model.learning_rate stays 0.01, " in capsys.readouterr().out
    assert epochs() == [1, 2, 3]
    assert main(again) == 0
    said = capsys.readouterr().out
    assert "the run has 3 epochs, and trainer.max_epochs is 3" in said
    assert "schedule:" not in said
    assert main([*again, "--trainer.max_epochs", "2"]) == 0
    assert "the run has 3 epochs, and trainer.max_epochs is 2" in capsys.readouterr().out
    assert epochs() == [1, 2, 3]


def test_a_run_that_ended_by_itself_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing got better for as long as early stopping waits: going on would train one epoch more each time."""
    stopping = ["--early_stopping.patience", "0", "--early_stopping.min_delta", "1000", "--trainer.max_epochs", "9"]
    stopping += ["--trainer.logger", "false"]
    assert main([*FIT, *stopping]) == 0
    assert not [*RUN.glob("csv"), *RUN.glob("tensorboard")]
    before = content()
    assert read_checkpoint(checkpoint_path(RUN, "last"))["epoch"] < 8
    assert main([*FIT, *stopping, "--resume"]) == 0
    said = capsys.readouterr().out
    assert "training ends: val/loss got no better in " in said
    assert "nothing got better for 0 epochs; it is tested again" in said
    last = str(checkpoint_path(RUN, "last"))
    assert content()[last] == before[last]


def test_a_resumed_run_finds_its_checkpoint_itself(capsys: pytest.CaptureFixture[str]) -> None:
    RUN.mkdir(parents=True)
    (RUN / "potential.pt").write_text("a result")
    assert main([*FIT, "--resume", "--ckpt_path", "other.ckpt"]) == 2
    assert "--resume must find the checkpoint itself, got --ckpt_path other.ckpt" in capsys.readouterr().err
    assert (RUN / "potential.pt").read_text() == "a result"


def test_a_checkpoint_begins_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not write over results, not even of the run that it is of."""
    assert run.first_checkpoint(RUN, False, "other.ckpt") == "other.ckpt"
    RUN.mkdir(parents=True)
    (RUN / "potential.pt").write_text("a result")
    for path in ("other.ckpt", str(checkpoint_path(RUN, "last"))):
        with pytest.raises(ConfigError, match="must have a folder without results, got runs/own with potential"):
            run.first_checkpoint(RUN, False, path)


@pytest.mark.parametrize("path", [["--ckpt_path", "other.ckpt"], ["--ckpt_path=other.ckpt"]], ids=["two words", "one"])
def test_the_command_that_goes_on_names_no_checkpoint(path: list[str]) -> None:
    """A run is resumed from its own checkpoint, and --resume beside a path is refused."""
    command = run.command_to_resume([*FIT, *path])
    assert command == "eqlayers fit -c run.yaml --name own --resume"
    assert run.command_to_resume(["test", *path]) == " ".join(["eqlayers test", *path])


def test_a_configuration_cannot_ask_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be asked for every time."""
    Path("run.yaml").write_text(yaml.safe_dump({**CONFIG, "resume": True}))
    assert main(FIT) == 2
    assert "must be a known one, got 'resume'" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--committee", "2"]], ids=["a run", "a committee"])
def test_a_fit_that_fails_before_its_first_epoch_leaves_no_folder(more: list[str], monkeypatch) -> None:
    from eqlayers.train.potential import PotentialModule

    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(PotentialModule, "training_step", fail)
    with pytest.raises(ZeroDivisionError):
        main([*FIT, *more])
    assert not RUN.exists()
    RUN.mkdir(parents=True)
    (RUN / "notes.txt").write_text("of the user's")
    with pytest.raises(ZeroDivisionError):
        main([*FIT, *more])
    assert (RUN / "notes.txt").exists()
