"""Requirements and their pins: one tested version of each, in every environment that tests run in."""

import re
import sys
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings there

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read_pins(environment: str) -> dict[str, str]:
    """Version by canonical name."""
    pins = ROOT / ".ci" / "constraints" / f"{environment}.txt"
    lines = [line for line in pins.read_text().splitlines() if line and not line.startswith("#")]
    return {canonical(pin.name): next(iter(pin.specifier)).version for pin in map(Requirement, lines)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_folder_with_code_is_a_package() -> None:
    """A folder without __init__.py would be missing from the wheel; `kernels/` itself must not have one."""
    folders = {path.parent for top in ("eqlayers", "kernels/eqlayers_kernels") for path in (ROOT / top).rglob("*.py")}
    assert [str(path) for path in folders if not (path / "__init__.py").is_file()] == []
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_constraints_pin_every_requirement() -> None:
    """Each direct requirement has one tested version, and the pin satisfies the declared bound."""
    pins = read_pins("tested")
    lines = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    required = [line for line in map(Requirement, lines) if line.name != "eqlayers"]
    assert len(required) > 30
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
    bounds = re.fullmatch(r"torch>=([\d.]+),<2\.(\d+)", PROJECT["dependencies"][0]).groups()
    oldest, newest = (Version(read_pins(name)["torch"]) for name in ("oldest", "newest"))
    assert oldest == Version(bounds[0])
    assert newest.minor == int(bounds[1]) - 1
    assert newest >= Version(read_pins("tested")["torch"])
    claimed = f"2.{oldest.minor} to 2.{newest.minor}"
    for file in ("eqlayers/core/torch_internals.py", "docs/start/installation.md"):
        assert claimed in (ROOT / file).read_text()
