"""The machinery that runs e3nn's own tests against our layers, on a made-up suite of a few tests."""

import importlib.util
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent

SUITE = """
import random, pytest, torch
from e3nn import nn, o3
from e3nn.nn.models import gate_points_2101
from e3nn.o3._linear import Linear as direct

OURS = o3.Linear.__module__.startswith("eqlayers")
CASES = [random.random() for _ in range(2)]

def test_one_class_everywhere():
    gate = nn.Gate("0e", [abs], "1x0e", [abs], "1x1o")
    homes = {type(gate).__module__.split(".")[0], gate_points_2101.TensorProduct.__module__.split(".")[0]}
    assert homes == {direct.__module__.split(".")[0]} == {"eqlayers" if OURS else "e3nn"}

@pytest.mark.parametrize("case", CASES)
def test_drawn_alike(case):
    assert o3.Linear("2x0e", "1o").output_mask.sum() == 0

def test_leaves_another_default_dtype_behind():
    torch.set_default_dtype(torch.float64)

def test_runs_in_the_dtype_of_the_run():
    if torch.get_default_dtype() != torch.float32:
        pytest.skip("not again in float64")

def test_worse():
    assert not OURS, "ours | differ"

def test_in_neither():
    pytest.skip("needs something")
"""


def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("e3nn_suite_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.syspath_prepend(str(FOLDER))  # as for a script
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # NamedTuples look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    (tmp_path / "x_test.py").write_text(SUITE)
    name = f"e3nn-{version('e3nn')}"
    with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "x_test.py", f"{name}/tests/o3/x_test.py")
        archive.add(tmp_path / "x_test.py", f"{name}/e3nn/x_test.py")  # not a test: must not be unpacked
    return tmp_path / f"{name}.tar.gz"


@pytest.mark.long
def test_the_suite_runs_with_both_and_the_page_tells_the_difference(sdist: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, str(FOLDER / "run.py"), "--sdist", str(sdist), "--output", str(page), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "passes with e3nn's layers only: o3.x_test::test_worse" in done.stdout
    assert done.stdout.count("passes with e3nn's layers only") == 1
    text = page.read_text()
    assert "| `o3/x_test` | 6 | 0 | 1 | 5 | 1 | 1 |" in text
    assert "| **all** | **6** | **0** | **1** | **5** | **1** | **1** |" in text
    assert "| `o3/x_test::test_worse` | AssertionError: ours \\| differ | 0 | 1 |" in text
    assert "| `o3/x_test::test_in_neither` | needs something | 1 | 1 |" in text


def test_worse_counts_tests_that_did_not_run_but_no_deselected_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    passed, failed = module.Outcome("passed", ""), module.Outcome("failed", "")
    names = ["o3.a_test::test_1[x]", "o3.a_test::test_2", "o3.a_test::test_3", "o3.a_test::test_4"]
    theirs = dict(zip(names, (passed, passed, failed, passed), strict=True))
    ours = {names[1]: passed, names[2]: failed, names[3]: failed}
    assert module.worse({"e3nn": theirs, "eqlayers": ours}) == [names[0], names[3]]
    monkeypatch.setitem(module.DESELECTED, "tests/o3/a_test.py::test_1", "a reason")
    assert module.worse({"e3nn": theirs, "eqlayers": ours}) == [names[3]]
    assert "- `tests/o3/a_test.py::test_1`: a reason" in module.page({"e3nn": theirs, "eqlayers": ours})


def test_an_archive_without_tests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "e3nn-0.0.0.tar.gz"
    with tarfile.open(archive, "w:gz") as empty:
        empty.add(FOLDER / "run.py", "e3nn-0.0.0/setup.py")
    with pytest.raises(SystemExit, match=r"must hold a folder tests, got none\. Take the source distribution"):
        load(monkeypatch).unpack_tests(archive, tmp_path)


@pytest.mark.long
def test_a_run_of_no_tests_is_no_success(sdist: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [
        sys.executable,
        str(FOLDER / "run.py"),
        "--sdist",
        str(sdist),
        "--output",
        str(page),
        "-k",
        "no_such_test",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "pytest must run at least one test, got none. Correct the arguments" in done.stderr
    assert not page.exists()
