"""Contents of a built wheel and sdist, that a wheel works where the checkout cannot be seen, and an editable clone."""

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
pytestmark = [pytest.mark.packaging, pytest.mark.xdist_group("packaging")]  # one worker builds the wheel once
TOPS = {"eqlayers": ROOT, "eqlayers_kernels": ROOT / "kernels"}  # import name -> folder that holds it
SOURCES = ("eqlayers", "kernels", "configs", "pyproject.toml", "README.md", "LICENSE")
SUITES = Path("share", "eqlayers", "bench")  # where an installation has the files of configs/bench


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def module_files() -> set[str]:
    """Python files, type markers, templates, C and C++ of the two packages, as they have to lie in a wheel."""
    return {
        str(path.relative_to(folder))
        for top, folder in TOPS.items()
        for path in (folder / top).rglob("*")
        if path.suffix in (".py", ".html", ".h", ".cpp") or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, in a folder that is named as a clone is."""
    folder = tmp_path_factory.mktemp("above") / "eqlayers"
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(path, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and an sdist, built from the copy, without network access."""
    folder = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, clone)
    (wheel,), (sdist,) = (list(folder.glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    return {"wheel": wheel, "sdist": sdist}


def test_wheel_has_every_module_and_nothing_else(built: dict[str, Path]) -> None:
    names = {name for name in zipfile.ZipFile(built["wheel"]).namelist() if not is_about_the_wheel(name)}
    assert names == module_files()


def is_about_the_wheel(name: str) -> bool:
    """Metadata, or a file that is installed outside the packages."""
    return name.partition("/")[0].endswith((".dist-info", ".data"))


def test_wheel_has_every_suite_of_the_benchmarks(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        files = {name.partition(".data/data/")[2]: name for name in archive.namelist() if ".data/" in name}
        suites = list((ROOT / "configs" / "bench").iterdir())
        assert set(files) == {str(SUITES / path.name) for path in suites}
        assert [p.name for p in suites if archive.read(files[str(SUITES / p.name)]) != p.read_bytes()] == []


def test_sdist_has_every_module(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {name for name in module_files() if name not in names and f"kernels/{name}" not in names}
    assert missing == set()
    suites = {str(path.relative_to(ROOT)) for path in (ROOT / "configs" / "bench").iterdir()}
    assert {"pyproject.toml", "LICENSE", "README.md", *suites} <= names


def test_metadata(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        entry_points = archive.read(name).decode()
        assert "eqlayers = eqlayers.cli.main:main" in entry_points
        assert "[lammps.plugins]\neqlayers = eqlayers.lammps:plugins" in entry_points
        assert "[nequip.extension]\ninit_always = eqlayers.integrations.nequip" in entry_points
    assert metadata["Version"] == version_of_the_sources()
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert {line.name for line in required if line.marker is None} == {"torch", "e3nn", "numpy", "opt-einsum"}
    assert {"triton", "lammps", "bench", "train", "test", "docs", "dev"} == set(metadata.get_all("Provides-Extra", []))


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


@pytest.fixture(scope="module")
def installed(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, installed in a folder of its own."""
    target = tmp_path_factory.mktemp("installed")
    run(
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", target),
        built["wheel"],
    )
    return target


def python(installed: Path, code: str, cwd: Path) -> str:
    """The text that code prints with the installed wheel; its ``sys.argv`` has the folders to import from.

    -I and -S: no working directory, no PYTHONPATH, no .pth file, so no editable installation either.
    """
    paths = dict.fromkeys([str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    return run(sys.executable, "-I", "-S", "-c", code, *paths, cwd=cwd, env={**os.environ, "PYTHONPATH": ""})


def test_wheel_imports_where_the_checkout_cannot_be_seen(installed: Path, tmp_path: Path) -> None:
    out = python(installed, IMPORT_ALL, tmp_path)
    expected = {
        name[:-3].replace("/", ".").removesuffix(".__init__") for name in module_files() if name.endswith(".py")
    }
    assert set(out.split()) == expected - set(TOPS)


READ_SUITES = """
import sys

sys.path[:0] = sys.argv[1:]
from eqlayers.bench import read_suite

for name in ("cpu", "gpu", "smoke"):
    assert read_suite(name).cases
    print(name)
"""


def test_installed_suites_can_be_read(installed: Path, tmp_path: Path) -> None:
    """By name, with the problems and graphs beside them."""
    assert python(installed, READ_SUITES, tmp_path).split() == ["cpu", "gpu", "smoke"]


@pytest.fixture(scope="module")
def environment(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with an editable installation of the clone; it sees what is installed here."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # a path in a .pth file: the .pth files in that folder itself, of an editable installation say, are not read
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install")
    run(*pip, "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", clone)
    return folder / "bin"


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-c", "import eqlayers, eqlayers_kernels; print('eqlayers', eqlayers.__version__)"),
        ("python", "-m", "eqlayers", "--version"),
        ("eqlayers", "--version"),
    ],
    ids=["import", "module", "command"],
)
def test_an_editable_clone_works_in_the_folder_above_it(environment: Path, clone: Path, command: tuple[str]) -> None:
    """Python finds the clone there, a folder named eqlayers without __init__.py, and must not take that."""
    output = run(environment / command[0], *command[1:], cwd=clone.parent, env={**os.environ, "PYTHONPATH": ""})
    assert output.split() == ["eqlayers", version_of_the_sources()]


def version_of_the_sources() -> str:
    text = (ROOT / "eqlayers" / "__init__.py").read_text()
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]
