"""The command line of training: the task that words and files name, and what the ends of a command become."""

from pathlib import Path

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from eqlayers.errors import ConfigError, DataError
from eqlayers.train.cli import run, task_of
from eqlayers.train.configuration import Command
from tests.each import each


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_named_task_counts_more_than_keys_of_data() -> None:
    """Whichever file names it."""
    Path("named.yaml").write_text("task: potential")
    Path("keys.yaml").write_text("data: {target: U0}")
    for files in (["named.yaml", "keys.yaml"], ["keys.yaml", "named.yaml"]):
        command = Command.of(["fit", *(word for file in files for word in ("-c", file))])
        assert task_of(command) == "potential"
        assert task_of(command.with_words(["--task", "property"])) == "property"
    assert task_of(Command.of(["fit", "-c", "keys.yaml"])) == "property"


@each(
    "data, task",
    [
        ("{path: a.xyz, cutoff: 4.0}", "potential"),
        ("{dataset: mini}", "property"),
        ("{cutoff: 4.0, batch_size: 8}", "property"),
        ("[path]", "property"),
    ],
)
def test_keys_that_the_data_of_one_task_have_tell_it(data: str, task: str) -> None:
    Path("own.yaml").write_text(f"data: {data}\n")
    command = Command.of(["fit", "own.yaml"])
    assert task_of(command) == task
    with pytest.raises(ConfigError, match=r"task must .*got 'potentials'"):
        task_of(command.with_words(["--task", "potentials"]))


def ending_with(error: BaseException, cause: BaseException | None = None) -> None:
    """Run a command that ends with an error, which another one may have caused."""

    def cli(command: Command) -> None:
        try:
            if cause is not None:
                raise cause
        finally:
            raise error

    run(Command("fit", typed=("fit", "my.yaml")), cli)  # type: ignore[arg-type]


@each(
    "error, cause, status, by",
    [
        (KeyboardInterrupt(), None, 130, "Ctrl-C"),
        (SIGTERMException(), None, 143, "SIGTERM"),
        (SystemExit(1), KeyboardInterrupt(), 130, "Ctrl-C"),
    ],
)
def test_a_command_that_is_stopped_says_how_to_go_on(
    error: BaseException, cause: BaseException | None, status: int, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        ending_with(error, cause)
    assert ended.value.code == status
    (line,) = capsys.readouterr().err.splitlines()
    assert f"interrupted by {by}; files are whole; to go on: eqlayers fit my.yaml --resume" in line


def test_errors_of_others_keep_their_type() -> None:
    """An error of the trainer's options names them; a fault of this package is not told as a wrong checkpoint."""
    with pytest.raises(ConfigError, match="options of trainer must"):
        ending_with(MisconfigurationException("no such strategy."))
    with pytest.raises(KeyError, match="own"):
        ending_with(KeyError("own"))
    with pytest.raises(DataError, match="own"):
        ending_with(DataError("own"))
    with pytest.raises(SystemExit, match="3"):
        ending_with(SystemExit(3))
