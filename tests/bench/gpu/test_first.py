"""`eqlayers bench first-gpu`: a stage that fails, hangs or is cut off loses itself alone, and a second call goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")

from eqlayers.bench import first as first_gpu
from eqlayers.bench.first import BUDGET, FILE, LEAST, STAGES, Setting, Stage, run_first_gpu
from eqlayers.bench.report import count_goals, page
from eqlayers.bench.results import load
from eqlayers.bench.roofline import TIMES_BOUND
from eqlayers.cli.main import main
from eqlayers.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def stage(code: str, seconds: int = 30) -> Stage:
    """One that runs a few lines of Python, which find their folder in ``here``."""

    def commands(setting: Setting) -> list[list[str]]:
        return [[sys.executable, "-c", f"from pathlib import Path\nhere = Path({str(setting.folder)!r})\n{code}"]]

    return Stage(seconds, f"runs {code[:20]}", commands)


COUNTS = "with (here / 'runs').open('a') as file: file.write('x')\n"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stage]:
    """Stages that take no time, in place of the real ones."""
    stages = {
        "first": stage(COUNTS + "print('all is well')"),
        "second": stage("print('x' * 9000 + ' the end'); raise SystemExit(3)"),
        "third": stage("(here / 'found-third.json').write_text('{\"rows\": [1]}')"),
    }
    monkeypatch.setattr(first_gpu, "STAGES", stages)
    return stages


def statuses(result: dict) -> dict[str, str]:
    return {row["stage"]: row["status"] for row in result["rows"]}


def test_a_stage_that_fails_is_told_and_the_next_goes_on(few: dict[str, Stage], tmp_path: Path) -> None:
    result = run_first_gpu(tmp_path, dry=True)
    assert statuses(result) == {"first": "done", "second": "failed", "third": "done"}
    first, second, third = result["rows"]
    assert second["reason"] == "exit status 3"
    assert second["tail"].endswith("the end\n")
    assert len(second["tail"]) == first_gpu.TAIL
    assert (tmp_path / "second.log").stat().st_size > 9000
    assert (first["tail"], third["found"]) == ("", {"rows": [1]})
    assert load(tmp_path / FILE)["rows"] == result["rows"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, "first.log", "runs", "second.log", "third.log"]
    assert "exit status 3" in page(result)


def test_a_second_call_runs_what_is_not_done(few: dict[str, Stage], tmp_path: Path) -> None:
    run_first_gpu(tmp_path, dry=True)
    few["second"] = stage("print('mended')")
    result = run_first_gpu(tmp_path, dry=True)
    assert statuses(result) == dict.fromkeys(few, "done")
    assert (tmp_path / "runs").read_text() == "x"
    run_first_gpu(tmp_path, dry=True, again=True, stages=["first"])
    assert (tmp_path / "runs").read_text() == "xx"
    assert statuses(load(tmp_path / FILE)) == dict.fromkeys(few, "done")


def test_dry_results_are_no_results_of_a_gpu(
    few: dict[str, Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_first_gpu(tmp_path, dry=True, stages=["first"])
    monkeypatch.setattr(first_gpu, "find_device", lambda name, what: None)
    result = run_first_gpu(tmp_path, stages=["first"])
    assert (tmp_path / "runs").read_text() == "xx"
    assert [row["dry"] for row in result["rows"]] == [False]


def test_a_stage_has_a_limit_and_keeps_what_it_had(
    few: dict[str, Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_gpu, "LEAST", 0.5)
    hangs = "(here / 'found-second.json').write_text('{\"rows\": [1, 2]}')\nprint('on its way', flush=True)\n"
    few["second"] = stage(hangs + "import time; time.sleep(100)", seconds=2)
    start = time.monotonic()
    result = run_first_gpu(tmp_path, dry=True, stages=["second", "third"])
    assert time.monotonic() - start < 60
    assert statuses(result) == {"second": "timed out", "third": "done"}
    assert (result["rows"][0]["found"], result["rows"][0]["tail"]) == ({"rows": [1, 2]}, "on its way\n")


def test_the_budget_is_that_of_all_stages(few: dict[str, Stage], tmp_path: Path) -> None:
    result = run_first_gpu(tmp_path, dry=True, budget=LEAST / 2)
    assert statuses(result) == dict.fromkeys(few, "no time")
    assert not (tmp_path / "runs").exists()
    assert BUDGET <= 25 * 60
    assert sum(one.seconds for one in STAGES.values()) <= BUDGET


CALL = """\
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
import test_first as tests
from eqlayers.bench import first as first_gpu
waits = "import os, time; (here / 'pid').write_text(str(os.getpid())); time.sleep(100)"
first_gpu.STAGES = dict(zip(("first", "second", "third"), map(tests.stage, (tests.COUNTS, waits, tests.COUNTS))))
first_gpu.run_first_gpu(Path({folder!r}), dry=True)
"""


@pytest.mark.slow
def test_a_call_that_is_killed_loses_the_stage_that_ran(few: dict[str, Stage], tmp_path: Path) -> None:
    code = CALL.format(here=str(Path(__file__).parent), folder=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    call = subprocess.Popen([sys.executable, "-c", code], env=environment)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 100
    while not (pid.exists() and pid.read_text()):
        assert call.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    call.send_signal(signal.SIGKILL)
    call.wait()
    assert statuses(load(tmp_path / FILE)) == {"first": "done"}
    if sys.platform == "linux":  # and the stage has ended as well
        while (
            Path("/proc", pid.read_text(), "cmdline").exists()
            and b"sleep" in Path("/proc", pid.read_text(), "cmdline").read_bytes()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    result = run_first_gpu(tmp_path, dry=True)
    assert statuses(result) == {"first": "done", "second": "failed", "third": "done"}
    assert (tmp_path / "runs").read_text() == "x"


def test_what_is_missing_leaves_a_stage_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_gpu, "find_spec", lambda name: None)
    monkeypatch.setattr(first_gpu.shutil, "which", lambda name: None)
    result = run_first_gpu(tmp_path, dry=True, stages=["kernels", "tests", "peers", "small", "sanitizer", "sweep"])
    assert set(statuses(result).values()) == {"left out"}
    reasons = {row["stage"]: row["reason"] for row in result["rows"]}
    assert reasons["tests"] == "pytest is not installed"
    assert all("PyYAML is not installed" in why for name, why in reasons.items() if name != "tests")
    monkeypatch.setattr(first_gpu, "ROOT", tmp_path)
    rows = run_first_gpu(tmp_path, dry=True, stages=["bandwidth"])["rows"]
    reasons = {row["stage"]: row["reason"] for row in rows}
    assert reasons["bandwidth"] == "it is a part of a source checkout"


def test_tests_ask_for_no_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setting = Setting(tmp_path, dry=False)
    (command,) = first_gpu._tests(setting)
    assert "-n" in command
    monkeypatch.setattr(first_gpu, "find_spec", lambda name: object() if name == "pytest" else None)
    (command,) = first_gpu._tests(setting)
    assert "-n" not in command
    assert "not slow and not long" in command
    files = command[-len(first_gpu.TESTS) :]
    assert all((ROOT / file).exists() for file in files)
    assert not any("aot" in file or "ptx" in file for file in files)


def test_times_are_judged_beside_their_bounds() -> None:
    rows = [{"problem": "mace-large", "layout": "ir_mul", "direction": "fwd", "bound_ms": 0.4, "times_bound": 1.2}]
    rows.append({**rows[0], "direction": "bwd", "times_bound": TIMES_BOUND + 0.1})
    rows.append({"problem": "mace-large", "layout": "ir_mul", "direction": "double_bwd", "error": "RuntimeError: no"})
    done = {"stage": "kernels", "about": "k", "status": "done", "seconds": 1.0, "reason": "", "found": {"rows": rows}}
    head = {"machine": {"load_average": None, "cpu": "c", "threads": 1, "cores": 1}, "versions": {}, "commit": None}
    result = first_gpu._result({"kernels": done}, {**head, "date": "d"}, False)
    assert [goal["met"] for goal in result["goals"]] == [True, False]
    assert count_goals(result) == "2 goals: 1 met, 1 missed, 0 not measured"
    assert "RuntimeError: no" in page(result)


def test_bad_input(few: dict[str, Stage], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a stage among first.*; got 'frist'. Did you mean 'first'"):
        run_first_gpu(tmp_path, dry=True, stages=["frist"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out must"):
        run_first_gpu(tmp_path / "file", dry=True)
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(ConfigError, match="a result must"):
        run_first_gpu(tmp_path, dry=True)


def test_without_a_gpu_it_must_be_dry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["bench", "first-gpu", "--out", str(tmp_path / "none")]) == 2
    assert "a CUDA or HIP device was expected for 'first-gpu'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.long
def test_the_dry_run_of_every_stage(tmp_path: Path) -> None:
    """From a checkout that is not installed, and without what the extras for tables and plots bring."""
    hidden = (
        "import sys\nfor name in ('rich', 'matplotlib', 'jsonargparse', 'vesin', 'ase'): sys.modules[name] = None\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hidden)
    path = [str(tmp_path), ".", "kernels"]
    command = [sys.executable, "-m", "eqlayers", "bench", "first-gpu", "--dry", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = load(tmp_path / "out" / FILE)
    facts = {row["stage"]: row["found"] for row in result["rows"]}
    rest = {row["stage"]: (row["status"], row["tail"]) for row in result["rows"] if row["status"] != "done"}
    assert rest.keys() <= {"sanitizer"}, rest
    assert facts.keys() == STAGES.keys()
    assert facts["environment"]["c"] == "runs"
    assert all(0 < row["times_bound"] < 1 for row in facts["smoke"]["rows"])
    assert facts["bandwidth"]["copy_bandwidth"]["median"] > 0
    assert all(facts["kernels"]["rows"][0][key] for key in ("registers", "bound_ms"))
    assert facts["sweep"]["rows"][1]["registers"] != facts["sweep"]["rows"][0]["registers"]
    assert "tests collected" in next(row["tail"] for row in result["rows"] if row["stage"] == "tests")
    for name in ("gpu-target", "gpu-overhead"):
        assert json.loads((tmp_path / "out" / f"{name}.json").read_text())["kind"] in ("run", "overhead")
    assert "| tests |" in done.stdout
