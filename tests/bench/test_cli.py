"""The command line of `eqlayers bench`: settings that are found, files that are written, tables that are printed."""

import importlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eqlayers.bench import cli as console
from eqlayers.bench import measure
from eqlayers.bench.cases import Suite
from eqlayers.bench.cli import parser, run
from eqlayers.bench.products.suite import Case
from eqlayers.bench.results import load
from eqlayers.errors import ConfigError
from tests.bench.test_step import molecules
from tests.each import refused
from tests.fresh import fresh

STORED = Path(__file__).parent / "stored" / "run.json"
FOLDER = Path(__file__).resolve().parents[2] / "configs" / "bench"


def test_the_extra_of_benchmarks_is_enough() -> None:
    """Without the packages that only the extra for training brings, and without its own ones for tables and plots."""
    others = ("jinja2", "jsonargparse", "lightning", "pandas", "tensorboard", "ase", "vesin", "rich", "matplotlib")
    hidden = f"import sys\nfor name in {others}: sys.modules[name] = None\n"
    done = fresh(hidden + "from eqlayers.bench import cli\ncli.parser()")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("config", ["", "gpu-"])
@pytest.mark.parametrize("kind", ["step", "overhead"])
def test_the_shipped_settings_can_be_read(kind: str, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the first measurement."""

    class Reached(Exception):
        pass

    def reached(*args: object, **options: object) -> None:
        raise Reached

    monkeypatch.setattr(f"eqlayers.bench.{kind}.describe", reached)
    monkeypatch.setattr(f"eqlayers.bench.{kind}.find_device", lambda name, what: torch.device("cpu"))
    with pytest.raises(Reached):
        run([kind, "--config", f"{config}{kind}"], lambda options: molecules())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("kind", ["step", "overhead"])
def test_settings_of_a_gpu_where_there_is_none(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"a CUDA or HIP device was expected for 'gpu-{kind}', torch finds none"):
        run([kind, "--config", f"gpu-{kind}"], lambda options: molecules())


def test_a_suite_that_is_cut_off_leaves_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**20)
    suites = importlib.import_module("eqlayers.bench.run")
    right, file = suites._run_case, tmp_path / "smoke.json"

    def cut_off(suite: Suite, case: Case, *rest: Any) -> Any:
        if case.name == "fused/small/E40":
            raise KeyboardInterrupt
        return right(suite, case, *rest)

    monkeypatch.setattr(suites, "_run_case", cut_off)
    monkeypatch.setattr(suites, "_memory", lambda *args: 1)
    with pytest.raises(KeyboardInterrupt):
        run(["run", "smoke", "--only", "fused/*", "--peers", "", "--runs", "2", "--json", str(file)], molecules)
    (case,) = load(file)["cases"]
    assert case["name"] == "fused/small/E20"
    assert {row["implementation"] for row in case["results"]} == {"eqlayers"}, "no peer was named"
    assert case["runs"] == 2, "instead of the suite's"


def test_report_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["report", str(STORED), "--out", str(tmp_path)], molecules)
    printed = capsys.readouterr().out
    assert "suite smoke, float32, cpu" in printed
    assert f"wrote {tmp_path}/smoke.md" in printed


@pytest.mark.parametrize("rich", [True, False])
def test_a_result_without_goals_has_no_line_about_goals(
    rich: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_has_rich", lambda: rich)
    result = json.loads(STORED.read_text())
    result["group_goals"] = []
    for case in result["cases"]:
        case["goals"] = []
    file = tmp_path / "run.json"
    file.write_text(json.dumps(result))
    run(["report", str(file)], molecules)
    printed = capsys.readouterr().out
    assert "suite smoke" in printed
    assert "goals" not in printed
    run(["report", str(STORED)], molecules)
    assert re.search(r"^\d+ goals: \d+ met", capsys.readouterr().out, re.MULTILINE)


def test_help_names_every_peer_and_command() -> None:
    text = parser().format_help()
    assert all(
        word in text
        for word in ("run", "report", "layers", "step", "overhead", "e3nn-compiled", "cuequivariance", "einsum")
    )


test_words_that_no_command_takes = refused(
    "words, message",
    [
        ("run", "must have suite after it, got nothing"),
        ("run smoke --runs 0", "--runs must be a positive integer, got '0'"),
        ("run smoke --runs many", "--runs must be a positive integer, got 'many'"),
        ("run smoke --backend fast", "backend must be one of .*, got 'fast'"),
        ("networks ours --sizes 64,0", "--sizes must be a list of positive integers, with commas, got '64,0'"),
        ("layer", "command must be one of run, .*, got 'layer'. Did you mean 'layers'"),
        ("step --run 3", "must have options that it knows, got '--run'"),
    ],
    lambda words: run(words.split(), lambda options: molecules()),
)


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    """Told before anything is measured."""
    both = ["--json", str(tmp_path / "a"), "--csv", str(tmp_path / "other" / ".." / "a")]
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"--json and --csv must .*got .* for both"):
        run(["run", "smoke", *both], lambda options: molecules())
    assert not (tmp_path / "a").exists()


def test_a_result_that_was_edited_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    result = json.loads(STORED.read_text())
    del result["cases"][0]["ratios"]
    file.write_text(json.dumps(result))
    with pytest.raises(ConfigError, match=r"must have all that `eqlayers bench` writes, got one in .* \(KeyError\)"):
        run(["report", str(file)], lambda options: molecules())


def test_a_terminal_has_a_bar_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    with console.progress("bench cpu", 3) as say:
        say("the first")
        say("the second [1]")
    assert all(text in written.getvalue() for text in ("bench cpu", "1/3", "the second [1]"))
