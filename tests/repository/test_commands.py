"""Commands of a checkout say what they do, as pages say it; requirements have one tested version each."""

import re
import sys
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
COMMANDS = dict(re.findall(r"^does\.([\w-]+) +:= (.+)$", MAKEFILE, re.MULTILINE))


def test_every_command_says_what_it_does() -> None:
    """First of all: before a set-up, whose lines are many."""
    listed = re.search(r"^COMMANDS := (.+)$", MAKEFILE, re.MULTILINE)[1].split()
    told = list(COMMANDS)
    assert listed == told, f"COMMANDS of the Makefile must be the `does.` lines in their order, {told}, got {listed}"
    rules = dict(re.findall(r"^([\w-]+): *(.*)$", MAKEFILE, re.MULTILINE))
    silent = [name for name in listed if rules.get(name, "").split()[:1] != [f"about-{name}"]]
    assert not silent, f"{silent} of the Makefile do not say first what they do: begin their needs with about-NAME"
    quoted = [name for name, text in COMMANDS.items() if "'" in text]
    assert not quoted, f"an apostrophe ends the text that the shell prints: rewrite `does.` of {quoted}"


def test_installation_and_commands_name_the_same_sizes_and_times() -> None:
    loads = dict(re.findall(r"^load\.([\w-]+) +:= (.+)$", MAKEFILE, re.MULTILINE))
    page = ROOT / "docs" / "start" / "installation.md"
    rows = re.findall(r"^\| `make ([\w-]+)` \| (.*) \| (.*) \| (.*) \|$", page.read_text(), re.MULTILINE)
    names = [name for name, *_ in rows]
    assert names == ["train", "test", "docs"], f"{page} must have a row of train, test and docs, got {names}"
    for name, size, disk, time in rows:
        told = f"{size}, {disk} on disk"
        assert loads[name] == told, f"`make {name}` loads {told} in {page}, {loads[name]} in the Makefile"
        assert COMMANDS[name].endswith(f": {time}"), f"{page} says {time} of `make {name}`: {COMMANDS[name]}"


def test_what_a_change_must_pass_ends_by_tests() -> None:
    """So that the closing line of pytest comes last, the words of nox before it."""
    script = (ROOT / ".ci" / "run").read_text()
    (errors,) = re.findall(r'\$nox long >"\$logs/long" 2>"(\S+)"', script)
    assert script.rstrip().endswith(f'cat "{errors}" "$logs/long"\nexit "$code"')


def test_commands_ask_for_markers_that_there_are(pytestconfig: pytest.Config) -> None:
    """Pytest takes any name in `-m`."""
    asked = re.findall(r'-m"?,? (?:\w+|"(.+?)")', MAKEFILE + (ROOT / "noxfile.py").read_text())
    asked = set(re.findall(r"\w+", " ".join(asked))) - {"not", "or", "and"}
    markers = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert asked <= markers, f"no marker {sorted(asked - markers)} in pyproject.toml, for which a command asks"
    missing = sorted({"bench", "long", "slow", "packaging", "releases", "sanitizer"} - asked)
    assert not missing, f"neither Makefile nor noxfile.py asks for the marker {missing}"


#: All there is at the top of the repository; what else lies in a folder is ignored by git.
TOP = (
    *(".ci", ".gitattributes", ".github", ".gitignore", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE"),
    *("Makefile", "README.md", "configs", "docs", "eqlayers", "examples", "kernels", "noxfile.py", "pyproject.toml"),
    "tests",
)


def test_the_top_of_the_repository_is_short() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line and line[0] != "#"]
    names = [path.name for path in ROOT.iterdir() if not any(map(path.match, ignored))]
    surplus = sorted({*names} - {*TOP, ".git"})
    assert not surplus, f"{surplus} at the top of the repository: put files into the folder of their topic"
    missing = sorted({*TOP} - {*names})
    assert not missing, f"no {missing} at the top of the repository: take it out of TOP of this test"


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings there

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
