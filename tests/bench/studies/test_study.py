"""The command line of the studies: options reach the measurement, results are kept, shown, and shown again."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from eqlayers.bench.measure import describe
from eqlayers.bench.report import Layout, same
from eqlayers.bench.results import goal
from eqlayers.errors import ConfigError
from tests.by_path import ROOT, loaded

study = loaded("docs/benchmarks/studies/study.py")
SCRIPT = str(ROOT / "docs" / "benchmarks" / "studies" / "cold.py")
NAMES = ("card", "cold", "dynamics", "printed_kernels", "radial_tables")


def options(parser: argparse.ArgumentParser) -> None:
    study.add_config(parser, SCRIPT)
    study.add_options(parser, "threads")


def measure(config: str, num_threads: int, say: Any) -> dict[str, Any]:
    say("half")
    goals = [goal("count_of_things", 3, float(num_threads), where="here")]
    rows = [{"what": Path(config).name, "number": num_threads}]
    return {"kind": "few", **describe(), "rows": rows, "goals": goals, "notes": ["A note."]}


LAYOUT = Layout("few things", same("what", ">number"), words={"count_of_things": "things"})
FEW = study.Study(SCRIPT, "Counts.", "few", LAYOUT, measure, options, figures=lambda result: {})


def test_a_result_is_kept_shown_and_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("few.json", "few.csv")]
    words = ["--threads", "2", "--json", files[0], "--csv", files[1], "--out", str(tmp_path / "page")]
    study.run_study(FEW, words)
    printed = capsys.readouterr()
    assert "cold: half" in printed.err
    assert "1 goals: 1 met" in printed.out
    assert json.loads(Path(files[0]).read_text())["rows"] == [{"what": "cold.yaml", "number": 2}]
    assert "cold.yaml,2" in Path(files[1]).read_text()
    text = (tmp_path / "page" / "few.md").read_text()
    assert text.startswith("# few things\n\n| what | number |")
    assert "| here | <= 3 things | 2 | met |" in text
    again = FEW._replace(measure=None)  # nothing is measured
    study.run_study(again, ["--stored", files[0], "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "few.md").read_text() == text


def test_files_that_cannot_be_written_are_refused_before(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--json must"):
        study.run_study(FEW._replace(measure=None), ["--json", str(tmp_path)])


def test_results_of_other_programs_are_refused() -> None:
    stored = str(ROOT / "tests" / "bench" / "stored" / "run.json")
    with pytest.raises(ConfigError, match="a result must be one of format 1"):
        study.run_study(FEW, ["--stored", stored])


def test_a_program_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["cold.py", "--threads", "0"])
    with pytest.raises(SystemExit, match=r"^cold\.py: error: --threads must .*got '0'"):
        study.main(FEW)


def test_a_task_is_computed_by_the_child(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["cold.py", study.TASK, '{"number": 3}'])
    study.main(FEW._replace(child=lambda task: [task["number"] + 1]))
    assert capsys.readouterr().out == "[4]\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_study_has_options_and_its_configuration(name: str) -> None:
    script = loaded(f"docs/benchmarks/studies/{name}.py")
    if name == "card":  # `eqlayers bench first-gpu` runs its stages
        assert set(script.STAGES) == {"bandwidth", "sweep"}
        return
    words = ["mace"] if name == "dynamics" else []
    args = study.parser_of(script.STUDY).parse_args(words)
    assert name == "dynamics" or Path(args.config).is_file()
    assert {"json", "csv", "out", "stored"} <= set(vars(args))


@pytest.mark.parametrize("name", ["committee", "gpu_networks"])
def test_other_programs_find_what_they_import(name: str) -> None:
    assert loaded(f"docs/benchmarks/{name}.py").main


def test_all_studies_are_named() -> None:
    folder = Path(SCRIPT).parent
    assert {path.stem for path in folder.glob("*.py")} == {*NAMES, "study"}
