"""The lock on the folder of a run: a second fit is refused, and a process that is gone holds nothing."""

import errno
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("lightning")  # which `eqlayers fit` trains with

from eqlayers.cli.main import main
from eqlayers.core.files import lock
from eqlayers.core.files.lock import LOCK, locked
from eqlayers.errors import ConfigError
from eqlayers.train.run import remove_if_empty

#: `eqlayers` that says when its first step begins, and stays there.
SCRIPT = """
import sys, time
from eqlayers.cli.main import main
from eqlayers.train.potential import PotentialModule

def waiting(*args):
    print("\\ntraining", flush=True)
    time.sleep(600)

PotentialModule.training_step = waiting
raise SystemExit(main(sys.argv[1:]))
"""
#: A process that has a lock, says so, and stays.
HOLDER = """
import fcntl, os, pathlib, platform, sys, time

pathlib.Path(sys.argv[1]).mkdir(parents=True)
with open(pathlib.Path(sys.argv[1], ".lock"), "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("process", os.getpid(), "on host", platform.node(), file=file, flush=True)
    print("training", flush=True)
    time.sleep(600)
"""
NETWORK = {"hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1, "radial_hidden": [4], "species": [1, 6, 8]}
CONFIG = {
    "task": "potential",
    "report": False,
    "data": {"path": "ethanol_md", "split": "time", "train": 8, "val": 2, "test": 2, "cutoff": 3.0, "batch_size": 4},
    "model": {"model": {"class_path": "eqlayers.models.NequIP", "init_args": NETWORK}},
    "trainer": {"accelerator": "cpu", "max_epochs": 1},
}


def begun(script: str, *words: str) -> subprocess.Popen[str]:
    """A process that has come to "training"."""
    paths = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **paths})
    assert process.stdout is not None
    for line in process.stdout:
        if line == "training\n":
            return process
    raise AssertionError(f"the process ended with {process.wait()}")


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lock")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder


@pytest.fixture(scope="module")
def process(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A fit into runs/one, in its first step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("EQLAYERS_CACHE_DIR", str(place / "cache"))
        process = begun(SCRIPT, "fit", "-c", "run.yaml", "--name", "one")
    yield process
    killed(process)


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(place / "cache"))


@pytest.mark.parametrize("options", [[], ["--resume"], ["--committee", "2"], ["--committee", "2", "--resume"]])
def test_a_second_fit_is_refused(
    options: list[str], process: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path("runs").rglob("*"))
    assert Path("runs/one", LOCK) in before
    assert main(["fit", "-c", "run.yaml", "--name", "one", *options]) == 2
    holder = f"process {process.pid} on host {platform.node()}"
    assert f"must have one run at a time, got runs/one, where {holder} writes. Wait for" in capsys.readouterr().err
    assert sorted(Path("runs").rglob("*")) == before, "the folder of the first fit is as it was"
    assert process.poll() is None


def test_members_of_a_committee_have_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """A member that is trained by itself keeps the committee out of its folder."""
    holder = begun(HOLDER, "runs/com/member-1")
    assert main(["fit", "-c", "run.yaml", "--name", "com", "--committee", "2"]) == 2
    assert f"got runs/com/member-1, where process {holder.pid} on host" in capsys.readouterr().err
    killed(holder)


def test_a_process_that_is_gone_holds_nothing() -> None:
    folder = Path("runs/gone")
    holder = begun(HOLDER, str(folder))
    with pytest.raises(ConfigError, match=f"where process {holder.pid} on host"), locked(folder):
        pass
    killed(holder)
    assert str(holder.pid) in (folder / LOCK).read_text()
    with locked(folder):
        assert (folder / LOCK).read_text() == f"process {os.getpid()} on host {platform.node()}\n"


def test_a_fit_leaves_no_lock(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "-c", "run.yaml", "--name", "whole", "--resume"]) == 0
    assert Path("runs/whole/potential.pt").exists()
    assert not Path("runs/whole", LOCK).exists()
    assert main(["fit", "-c", "run.yaml", "--name", "bad", "--runs", "other", "--data.path", "no.xyz"]) == 2
    assert not Path("other").exists(), "folders that were made for the lock go with it"


def test_folders_that_were_there_stay(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with locked(tmp_path / "runs" / "a"):
        assert (tmp_path / "runs" / "a" / LOCK).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    with locked(tmp_path / "b"):
        (tmp_path / "b" / "result").write_text("")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["result"]
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "c" / "d"):
        raise ZeroDivisionError
    assert not (tmp_path / "c").exists()


def test_an_empty_run_keeps_its_lock_to_the_end(tmp_path: Path) -> None:
    with locked(tmp_path / "a"):
        (tmp_path / "a" / "csv").mkdir()
        (tmp_path / "a" / "csv" / "row").write_text("")
        (tmp_path / "a" / "config.yaml").write_text("")
        remove_if_empty(tmp_path / "a")
        assert [path.name for path in (tmp_path / "a").iterdir()] == [LOCK]
    assert not (tmp_path / "a").exists()
    remove_if_empty(tmp_path / "a")


def test_a_file_that_its_owner_removes_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of another fit, between the opening of its file and the lock on it."""
    take, calls = lock.fcntl.lockf, []

    def late(file: object, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / "a" / LOCK).unlink()
        take(file, how)

    monkeypatch.setattr(lock.fcntl, "lockf", late)
    with locked(tmp_path / "a"):
        assert len(calls) == 2
        assert (tmp_path / "a" / LOCK).exists()


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "lockf", refuse)
    with locked(tmp_path / "a"):
        pass
    assert "a/.lock cannot be locked (No locks available): keep other runs off yourself" in capsys.readouterr().out


def test_the_file_of_a_lock_is_no_other_and_says_who_holds_it_now(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / LOCK).write_text("process 1 on a host with a long name\n" * 3)
    with locked(tmp_path / "a"):
        assert (tmp_path / "a" / LOCK).read_text() == f"process {os.getpid()} on host {platform.node()}\n"
    (tmp_path / "other").write_text("kept")
    (tmp_path / "a" / LOCK).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"), locked(tmp_path / "a"):
        pass
    assert (tmp_path / "other").read_text() == "kept"


def test_a_holder_that_has_not_yet_said_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(lock.fcntl, "lockf", refuse)
    with pytest.raises(ConfigError, match=r"got .*/a, where another process writes\. Wait"), locked(tmp_path / "a"):
        pass
