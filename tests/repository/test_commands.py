"""Commands of a checkout: the Makefile and the noxfile say what they do, and pages say the same."""

import re
from pathlib import Path

import pytest

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
    unasked = sorted({"bench", "long", "slow", "packaging", "releases", "sanitizer"} - asked)
    assert not unasked, f"neither Makefile nor noxfile.py asks for the marker {unasked}"


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
