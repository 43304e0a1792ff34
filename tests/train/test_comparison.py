"""Runs beside each other: what is read, how it is sorted, what is left out, and what is written."""

import csv
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eqlayers.cli import main
from eqlayers.errors import ConfigError
from eqlayers.train import comparison
from eqlayers.train.comparison import differences, find_runs, run, sorted_runs
from eqlayers.train.runs import Kind, read_run
from tests.train.test_runs import FORCES, config, history, metrics, write_run

pytestmark = pytest.mark.pictures


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder of a run by its name."""
    return lambda name, **files: write_run(tmp_path / "runs" / name, **files)


@pytest.mark.parametrize(
    ("files", "note"),
    [
        ({"history": history(9.0)}, "not tested; epochs done: 1 of 3"),
        ({"history": history(9, 8, 7), "metrics": metrics(5.0, epochs=2)}, "tested after epoch 2 and trained further"),
        (
            {"history": history(9.0), "metrics": metrics(5.0, epochs=None, checkpoint="else.ckpt")},
            "its test errors are of other weights: else.ckpt",
        ),
        ({"metrics": '{"test_'}, "the errors of a run must be JSON, got in .*metrics.json, line 1"),
        ({"metrics": "[1]"}, "metrics.json must hold keys with values, got another content"),
        ({"metrics": metrics("many")}, "test_forces_mae_meV_A must be a number, got 'many'"),
        ({"metrics": metrics(5.0), "history": "[{}]"}, "the history of a run must be a list of epochs"),
        ({"metrics": metrics(5.0), "config": "a: [1"}, "a configuration must be YAML, got in .*config.yaml, line 1"),
        ({"metrics": metrics(5.0), "config": None}, "config.yaml must hold keys with values"),
    ],
)
def test_what_is_unfinished_or_damaged_is_said_and_the_rest_is_kept(
    make: Callable[..., Path], files: dict[str, Any], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make("good", config=config(), metrics=metrics(6.0), history=history(7.0, 6.5, 6.0))
    folder = make("odd", **{"config": config(), **files})
    run([str(folder.parent)])
    shown = capsys.readouterr().out
    (said,) = [line for line in shown.splitlines() if line.startswith("note: odd")]
    assert read_run(folder).notes
    assert re.search(note, said)
    assert re.search("^ *good  +3 ", shown, re.MULTILINE)
    assert re.search("^ *odd  ", shown, re.MULTILINE)


def test_runs_are_sorted_by_their_error_and_untested_ones_come_last(make: Callable[..., Path]) -> None:
    make("early", config=config(), history=history(1.0, 0.5), summary={"error": "forces_mae_meV_A", "unit": "meV/A"})
    make("worse", config=config(), metrics=metrics(9.0))
    make("nan", config=config(), metrics=metrics(float("nan")))
    make("better", config=config(), metrics=metrics(5.0))
    folder = make("dipole", config={"data": {"target": "mu", "dataset": "mini"}}, history=history(0.2))
    runs, _ = find_runs([folder, folder.parent])
    groups = sorted_runs(runs)
    assert [run.label for run in groups.pop(FORCES)] == ["better", "worse", "early", "nan"]
    assert [run.label for run in groups.pop(Kind("property", "mu", "D"))] == ["dipole"]
    assert groups == {}


def test_each_run_counts_once_and_equal_names_are_told_apart(make: Callable[..., Path], tmp_path: Path) -> None:
    first = make("a", config=config())
    second = tmp_path / "other" / "a"
    second.mkdir(parents=True)
    (second / "config.yaml").write_text("task: potential\n")
    (tmp_path / "link").symlink_to(first)
    empty = tmp_path / "empty"
    empty.mkdir()
    runs, notes = find_runs([first, tmp_path / "link", first.parent, second, empty, tmp_path / "none"])
    assert [run.label for run in runs] == [str(first), str(second)]
    assert [note.rpartition(", ")[2] for note in notes] == ["a folder without a run's files", "nothing there"]
    with pytest.raises(ConfigError, match=r"must be a folder that `eqlayers fit` wrote, got .*, a folder without"):
        read_run(empty)


def test_a_folder_that_cannot_be_read(make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make(name, config=config()) for name in ("open", "closed")]

    def asked(folder: Path) -> bool:
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied")
        return True

    monkeypatch.setattr(comparison, "is_run", asked)
    runs, notes = find_runs(folders)
    assert [run.label for run in runs] == ["open"]
    assert notes == [f"left out, as it is no run: {folders[1]}, Permission denied"]


def test_only_keys_that_differ(make: Callable[..., Path]) -> None:
    network = {"class_path": "mine.Net", "init_args": {"width": 8, "lmax": 2}}
    other = config(learning_rate=0.02, model=network, stress_weight=1.0) | {"name": "another"}
    other["trainer"] = {"max_epochs": 3, "gradient_clip_val": 10.0}
    runs = [read_run(make(name, config=c)) for name, c in (("a", config()), ("b", config()), ("c", other))]
    assert differences(runs) == {
        "model.learning_rate": {"0.01": ["a", "b"], "0.02": ["c"]},
        "model.model.class_path": {"eqlayers.models.MACE": ["a", "b"], "mine.Net": ["c"]},
        "model.stress_weight": {"-": ["a", "b"], "1": ["c"]},
    }, "not names, equal numbers, nor options of another network"
    assert differences(runs[:1]) == differences(runs[:2]) == {}


def test_errors_on_different_test_parts(make: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    make("a", config=config(), metrics=metrics(5.0))
    folder = make("b", config=config(), metrics=metrics(6.0, num_test=30))
    run([str(folder.parent)])
    said = "errors of forces were measured on different test parts: 40 of frames/ethanol.xyz (time) (a), 30 of"
    assert said in capsys.readouterr().out


def test_files_of_a_report(make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_a_file = {"test_forces_of_300K_mae_meV_A": 3.0}  # for the files, not the screen
    make("a|b", config=config(), metrics=metrics(5.0) | of_a_file, history=history(9.0, float("nan"), 6.0))
    folder = make("c", config=config(learning_rate=0.02), metrics=metrics(4.0), history=history(9.0))
    output = tmp_path / "report"
    run([str(folder.parent), "--output", str(output)])
    assert sorted(os.listdir(output)) == ["report.csv", "report.html", "report.json"]
    with (output / "report.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], float(row["forces_mae (meV/A)"])) for row in rows] == [("c", 4.0), ("a|b", 5.0)]
    assert float(rows[1]["forces_of_300K_mae (meV/A)"]) == 3.0
    assert "300K" not in capsys.readouterr().out
    text = (output / "report.html").read_text()
    assert '<th class="number">forces of 300K, meV/A</th>' in text
    assert '<td class="number">3</td>' in text
    assert "0.01 (a|b); 0.02 (c)" in text
    assert text.count("<svg") == 1
    stored = json.loads((output / "report.json").read_text())
    assert stored["differences"] == {"model.learning_rate": {"0.02": ["c"], "0.01": ["a|b"]}}
    before = {name: (output / name).read_bytes() for name in os.listdir(output)}
    with pytest.raises(ConfigError, match=r"without an earlier report, got .* with report.html, .* pass --overwrite"):
        run([str(folder), "--output", str(output)])
    assert {name: (output / name).read_bytes() for name in os.listdir(output)} == before
    (folder / "history.json").unlink()
    run([str(folder), "--output", str(output), "--overwrite", "--against", "time"])
    assert "axes_1" not in (output / "report.html").read_text(), "a picture without curves"


def test_a_single_run_gives_its_summary(make: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    run([str(make("only", config=config(), metrics=metrics(21.5), history=history(30.0, 20.0, 25.0)))])
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("run only", "39,312", "2 min 0 s", "21.5 meV/A (RMSE 43, no geometry 700)", "20 meV/A"):
        assert part in shown, part
    assert "differs" not in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("report", "eqlayers report must have RUN after it, got nothing"),
        ("report none", "at least one folder must be a run, got none, nothing there. Pass folders such as runs/*."),
        ("report a.txt .", "at least one folder must be a run, got a.txt, a file, ., a folder without a run's files."),
        ("report . --against loss", "--against must be one of epochs, steps, time, got 'loss'"),
        ("report . -o a.txt", "--output must be a file that can be written, got 'a.txt/report.html'"),
    ],
)
def test_a_command_that_cannot_be_carried_out(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("kept")
    assert main(line.split()) == 2
    assert f"eqlayers: error: {message}" in capsys.readouterr().err
    assert (tmp_path / "a.txt").read_text() == "kept"
