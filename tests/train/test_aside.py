"""`eqlayers fit --overwrite` removes an earlier run when the new run has a checkpoint; before, nothing is lost."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eqlayers.cli.main import main
from eqlayers.train import again
from eqlayers.train.again import Aside, left_aside
from eqlayers.train.potential import PotentialModule

from .test_again import FIT, RUN, content, write_inputs

OVERWRITE = [*FIT, "--overwrite", "--trainer.max_epochs", "3", "--test_after_fit", "false"]
EARLIER = Path("runs/own.earlier")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two epochs, tested."""
    folder = tmp_path_factory.mktemp("finished")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(FIT) == 0
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of it to work in; Lightning ignores further signals after the first Ctrl-C."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(monkeypatch: pytest.MonkeyPatch, epoch: int, look: Callable[[int], None] = lambda epoch: None) -> None:
    """Ctrl-C in an epoch, counted from 0."""
    whole = PotentialModule.training_step

    def step(self: PotentialModule, *args: Any) -> Any:
        look(self.current_epoch)
        if self.current_epoch == epoch:
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(PotentialModule, "training_step", step)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("options", [[], ["--committee", "2"]], ids=["a run", "a committee"])
def test_an_interruption_before_the_first_epoch_puts_the_results_back(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content()
    interrupting(monkeypatch, 0, lambda epoch: None if (EARLIER / "potential.pt").exists() else pytest.fail("lost"))
    with pytest.raises(SystemExit) as ended:
        main([*OVERWRITE, *options])
    assert ended.value.code == 130
    assert {name: value for name, value in content().items() if name in before} == before
    assert not EARLIER.exists()
    assert not (RUN / "committee.json").exists()
    said = capsys.readouterr()
    assert "the earlier results are back in runs/own" in said.out
    assert "to go on: eqlayers fit -c run.yaml --name own --overwrite" in said.err, (
        "--resume would train the earlier run"
    )
    assert [path.name for path in (RUN / "csv").iterdir()] == ["version_0"]


@pytest.mark.usefixtures("place")
def test_the_results_go_when_the_first_epoch_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there: dict[int, bool] = {}
    interrupting(monkeypatch, 1, lambda epoch: there.update({epoch: (EARLIER / "potential.pt").exists()}))
    with pytest.raises(SystemExit):
        main(OVERWRITE)
    assert there == {0: True, 1: False}
    assert not EARLIER.exists()
    assert "--resume" in capsys.readouterr().err
    assert again.said_of(RUN).startswith("1 epochs and ")
    assert not (RUN / "potential.pt").exists()


@pytest.mark.usefixtures("place")
def test_a_fit_without_an_epoch_tests_no_earlier_weights(capsys: pytest.CaptureFixture[str]) -> None:
    before = content()
    assert main([*FIT, "--overwrite", "--trainer.max_epochs", "0"]) == 2
    assert "a fit must validate at least once" in capsys.readouterr().err
    assert {name: value for name, value in content().items() if name in before} == before


def run_of(folder: Path) -> dict[str, str]:
    """Write files of a run, and return their content."""
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "history.json", "config.yaml", "notes.txt"):
        (folder / name).write_text(f"earlier {name}")
    return files_of(folder)


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_an_interruption_while_results_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that is there is the earlier run's still."""
    before = run_of(tmp_path / "own")
    move = again._move

    def half(files: list[Path], start: Path, end: Path) -> None:
        move(list(files)[2:3], start, end)
        raise KeyboardInterrupt

    monkeypatch.setattr(again, "_move", half)
    held = Aside(tmp_path / "own")
    with pytest.raises(KeyboardInterrupt):
        held.take()
    monkeypatch.setattr(again, "_move", move)
    assert held.settle()
    assert not held.begun
    assert files_of(tmp_path) == {f"own/{name}": text for name, text in before.items()}


def test_what_a_killed_fit_set_aside_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "own"
    before = run_of(folder)
    Aside(folder).take()  # and then `kill -9`
    assert files_of(folder) == {"notes.txt": before["notes.txt"]}, "files that are no results stay"
    (place,) = left_aside(folder)
    assert again.beginning(folder, True, False, None) is None
    assert f"{place} has results of {folder} from before a fit that was killed" in capsys.readouterr().out
    (folder / "checkpoints" / "last.ckpt").write_text("new")
    held = Aside(folder)
    held.take()
    assert [one.name for one in left_aside(folder)] == ["own.earlier", "own.earlier-2"]
    (folder / "checkpoints" / "last.ckpt").write_text("newer")
    held.look()
    assert held.begun
    assert left_aside(folder) == [place]
    assert files_of(place) == {name: text for name, text in before.items() if name != "notes.txt"}
