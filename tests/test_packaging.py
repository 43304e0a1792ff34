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
from packaging.version import Version

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
    """Python files, type markers and templates of the two packages, as they have to lie in a wheel."""
    return {
        str(path.relative_to(folder))
        for top, folder in TOPS.items()
        for path in (folder / top).rglob("*")
        if path.suffix in (".py", ".html") or path.name == "py.typed"
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


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py would be missing from the wheel; `kernels/` itself must not have one."""
    folders = {path.parent for top, folder in TOPS.items() for path in (folder / top).rglob("*.py")}
    assert [str(path) for path in folders if not (path / "__init__.py").is_file()] == []
    assert not (ROOT / "kernels" / "__init__.py").exists()


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
        assert "eqlayers = eqlayers.cli:main" in entry_points
        assert "[nequip.extension]\ninit_always = eqlayers.integrations.nequip" in entry_points
    assert metadata["Version"] == version_of_the_sources()
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    assert {line.name for line in required if line.marker is None} == {"torch", "e3nn", "numpy", "opt-einsum"}
    assert {"triton", "bench", "train", "test", "docs", "dev"} == set(metadata.get_all("Provides-Extra", []))


def test_constraints_pin_every_requirement(built: dict[str, Path]) -> None:
    """Each direct requirement has one tested version, and the pin satisfies the declared bound."""
    pins = read_pins("tested")
    with zipfile.ZipFile(built["wheel"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    required = [line for line in map(Requirement, lines) if line.name != "eqlayers"]
    assert [line.name for line in required if canonical(line.name) not in pins] == []
    assert [str(line) for line in required if not line.specifier.contains(pins[canonical(line.name)])] == []
    assert (pins["torch"], pins["triton"]) == ("2.13.0", "3.7.1"), "torch 2.13.0 requires triton 3.7.1: change both"


@pytest.mark.parametrize(("name", "package", "e3nn"), [("nequip", "nequip", "0.6.0"), ("mace", "mace-torch", "0.4.4")])
def test_other_environments_differ_in_nothing_but_e3nn(name: str, package: str, e3nn: str) -> None:
    """Environments of noxfile.py, in which the package is tested too."""
    common, pins = read_pins("tested"), read_pins(name)
    assert {"torch", "numpy", "pytest", "pytest-timeout", "matplotlib", "rich", "pyyaml", package} <= set(pins)
    assert {key: pin for key, pin in pins.items() if key in common} == {
        key: e3nn if key == "e3nn" else pin for key, pin in common.items() if key in pins
    }


#: What other torches bring: pins of their own requirements.
OF_TORCH = {"torch", "triton", "sympy"}


@pytest.mark.parametrize("name", ["oldest", "newest"])
def test_environments_of_other_torches_differ_in_nothing_but_what_torch_brings(name: str) -> None:
    common, pins = read_pins("tested"), read_pins(name)
    assert {"torch", "e3nn", "numpy", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pyyaml"} <= set(pins)
    shared = {key: pin for key, pin in pins.items() if key in common and key not in OF_TORCH}
    assert shared == {key: common[key] for key in shared}


def test_the_torches_that_are_claimed_are_tested() -> None:
    """The bounds of pyproject.toml, and of the error of another torch, are the releases of the two environments."""
    (bounds,) = re.findall(
        r'^dependencies = \["torch>=([\d.]+),<2\.(\d+)"', (ROOT / "pyproject.toml").read_text(), re.M
    )
    oldest, newest = (Version(read_pins(name)["torch"]) for name in ("oldest", "newest"))
    assert oldest == Version(bounds[0])
    assert newest.minor == int(bounds[1]) - 1
    assert newest >= Version(read_pins("tested")["torch"])
    claimed = f"2.{oldest.minor} to 2.{newest.minor}"
    for file in ("eqlayers/core/torch_internals.py", "docs/start/installation.md"):
        assert claimed in (ROOT / file).read_text()


def read_pins(environment: str) -> dict[str, str]:
    """Version by canonical name."""
    pins = ROOT / ".ci" / "constraints" / f"{environment}.txt"
    lines = [line for line in pins.read_text().splitlines() if line and not line.startswith("#")]
    return {canonical(pin.name): next(iter(pin.specifier)).version for pin in map(Requirement, lines)}


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
