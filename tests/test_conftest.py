"""The rules of `tests/conftest.py` itself, in runs of pytest of their own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
SKIPS = """
import pytest

@pytest.mark.skip(reason="marked")
def test_marked(): ...

@pytest.mark.skipif(True, reason="a condition")
def test_condition(): ...

@pytest.mark.parametrize("x", [])
def test_nothing(x): ...

def test_inside():
    pytest.skip("inside")

@pytest.mark.xfail(reason="known", strict=True)
def test_known():
    assert False

def test_passes(): ...
"""
MODULE = "import pytest\npytest.importorskip('no_such_package')\n\ndef test_never(): ...\n"
GPU = "import pytest\n\n@pytest.mark.gpu\n@pytest.mark.skip(reason='no GPU')\ndef test_gpu(): ...\n"


def outcomes(folder: Path, texts: list[str], *options: str) -> tuple[dict[str, int], str]:
    """How many of each outcome in a run of all texts, and what was printed."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    for number, text in enumerate(texts):
        (folder / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    words = done.stdout.strip().splitlines()[-1].replace(",", "").split()
    names = {"error": "errors", "failed": "failed"}
    return {names.get(words[i + 1], words[i + 1]): int(words[i]) for i in range(0, len(words) - 2, 2)}, done.stdout


def test_no_installed_package_hides_the_tests() -> None:
    """A folder without `__init__.py` gives way to a package `tests` anywhere on the path; mace-torch installs one."""
    spec = importlib.util.find_spec("tests")
    assert spec is not None
    assert spec.origin == str(CONFTEST.with_name("__init__.py"))


@pytest.fixture(scope="module")
def shared() -> None:
    """A fixture of this file."""


def test_tests_that_share_a_fixture_have_one_worker(shared: None, request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 groups tests by a suffix of their names, which pytest 9.2 ignores."""
    groups = getattr(request.config.option, "loadgroup", False)  # of a worker
    assert request.node.nodeid.endswith(f"@{request.path}") == bool(groups)


@pytest.mark.long
def test_only_a_gpu_excuses_a_skip(tmp_path: Path) -> None:
    assert outcomes(tmp_path, [SKIPS])[0] == {"passed": 1, "skipped": 4, "xfailed": 1}
    counts, text = outcomes(tmp_path, [SKIPS, MODULE, GPU], "--no-skips", "--continue-on-collection-errors")
    # errors: before the test was called, one of them while its module was imported
    assert counts == {"passed": 1, "failed": 1, "errors": 4, "skipped": 1, "xfailed": 1}
    for reason in ("marked", "a condition", "got empty parameter set", "inside", "no_such_package"):
        assert reason in text
    assert text.count("Put what it needs into the extra `test`") >= 4
