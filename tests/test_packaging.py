"""What a built wheel and sdist contain, and that a wheel works where the checkout cannot be seen."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.xdist_group("packaging")  # one worker builds the wheel once
TOPS = {"eqlayers": ROOT, "eqlayers_kernels": ROOT / "kernels"}  # import name -> folder that holds it
SOURCES = ("eqlayers", "kernels", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def module_files() -> set[str]:
    """Every Python file of the two packages and the two type markers, as they have to lie in a wheel."""
    return {
        str(path.relative_to(folder))
        for top, folder in TOPS.items()
        for path in (folder / top).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and an sdist, built from a copy of the sources, without network access."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(path, folder / "copy" / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "copy")
    (wheel,), (sdist,) = (list((folder / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    return {"wheel": wheel, "sdist": sdist}


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py would be missing from the wheel; `kernels/` itself must not have one."""
    folders = {path.parent for top, folder in TOPS.items() for path in (folder / top).rglob("*.py")}
    assert [str(path) for path in folders if not (path / "__init__.py").is_file()] == []
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_wheel_has_every_module_and_nothing_else(built: dict[str, Path]) -> None:
    names = {name for name in zipfile.ZipFile(built["wheel"]).namelist() if ".dist-info/" not in name}
    assert names == module_files()


def test_sdist_has_every_module(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {name for name in module_files() if name not in names and f"kernels/{name}" not in names}
    assert missing == set()
    assert {"pyproject.toml", "LICENSE", "README.md"} <= names


def test_metadata(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        assert "eqlayers = eqlayers.cli:main" in archive.read(name).decode()
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "eqlayers" / "__init__.py").read_text(), re.MULTILINE)
    assert version is not None
    assert metadata["Version"] == version[1]
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert {line.name for line in required if line.marker is None} == {"torch", "e3nn", "numpy"}
    assert {"triton", "train", "test", "docs", "dev"} == set(metadata.get_all("Provides-Extra", []))


def test_constraints_pin_every_requirement(built: dict[str, Path]) -> None:
    """Each direct requirement has one tested version, and the pin satisfies the declared bound."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            pins[canonical(pin.name)] = next(iter(pin.specifier)).version
    with zipfile.ZipFile(built["wheel"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    required = [line for line in map(Requirement, lines) if line.name != "eqlayers"]
    assert [line.name for line in required if canonical(line.name) not in pins] == []
    assert [str(line) for line in required if not line.specifier.contains(pins[canonical(line.name)])] == []
    assert (pins["torch"], pins["triton"]) == ("2.13.0", "3.7.1"), "torch 2.13.0 requires triton 3.7.1: change both"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


IMPORT_ALL = """
import importlib, pkgutil, sys

def fail(name):
    sys.exit(f"cannot import {name}")

sys.path[:0] = sys.argv[1:]
for top in ("eqlayers", "eqlayers_kernels"):
    package = importlib.import_module(top)
    assert package.__file__.startswith(sys.argv[1]), f"{top} came from {package.__file__}"
    for module in pkgutil.walk_packages(package.__path__, top + ".", onerror=fail):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_wheel_imports_where_the_checkout_cannot_be_seen(built: dict[str, Path], tmp_path: Path) -> None:
    """-I and -S: no working directory, no PYTHONPATH, no .pth file, so no editable installation either."""
    target = tmp_path / "installed"
    run(
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", target),
        built["wheel"],
    )
    paths = dict.fromkeys([str(target), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    out = run(sys.executable, "-I", "-S", "-c", IMPORT_ALL, *paths, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""})
    expected = {
        name[:-3].replace("/", ".").removesuffix(".__init__") for name in module_files() if name.endswith(".py")
    }
    assert set(out.split()) == expected - set(TOPS)
