"""Examples of the documentation run: code blocks, doctests, links, configurations; and no source file is too long."""

import doctest
import importlib
import linecache
import re
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from eqlayers.bench import report
from eqlayers.bench.results import load
from tests.each import each

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "CONTRIBUTING.md", ".github/SECURITY.md")
WRITTEN = ("_build", "names")  # folders that a build of the site makes
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not set(page.parts) & set(WRITTEN)]
PAGES = [*(ROOT / name for name in TOP), *DOCS]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")
PACKAGES = {ROOT / "eqlayers": ROOT, ROOT / "kernels" / "eqlayers_kernels": ROOT / "kernels"}
MODULES = sorted(
    ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    for package, folder in PACKAGES.items()
    for path in package.rglob("*.py")
    if path.name != "__main__.py"
)
MAX_LINES = 500
COLUMNS = 88  # of a line of code on the site
README_LINES = 100


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str) -> list[str]:
    """The Python blocks of a page, each moved to its line so that a traceback names the right one."""
    return ["\n" * (text.count("\n", 0, block.start()) + 1) + block[1] for block in BLOCK.finditer(text)]


#: Pages and parts that show kernels; the others run on backend 'torch', which compiles nothing.
WITH_KERNELS = {
    *("docs/howto/own_product.md", "docs/howto/warmup.md"),
    *("eqlayers.core", "eqlayers.layers.contraction", "eqlayers.tools"),
}
#: Pages whose code is compiled for many seconds.
LONG = {"docs/guide/compile.md", "docs/howto/benchmark.md", "docs/howto/own_network.md"}


def marked(value: Path | str) -> Any:
    """A page or a part of the package with its marks."""
    name = value if isinstance(value, str) else relative(value)
    marks = [pytest.mark.kernels] * (name in WITH_KERNELS) + [pytest.mark.long] * (name in LONG)
    return pytest.param(value, id=name, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if "```python" in page.read_text()])
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one page share their names, as a reader expects who types them in order."""
    monkeypatch.chdir(tmp_path)
    code = blocks(page.read_text())
    fences = page.read_text().count("```python")
    assert len(code) == fences, f"{relative(page)}: a block is indented or not closed, so it would not run"
    module = ModuleType("__docs__")
    monkeypatch.setitem(sys.modules, "__docs__", module)  # where torch-geometric looks up what a class is made of
    for block in code:
        exec(compile(block, str(page), "exec"), vars(module))


CODE = re.compile(
    r"^(`{3,})(?:\{code-cell\}[^\n]*|(?:\{code-block\} )?(?:python|py|bash|yaml|toml))\n(.*?)^\1$",
    re.MULTILINE | re.DOTALL,
)


@each("page", PAGES, ids=relative)
def test_lines_of_code_fit_the_page(page: Path) -> None:
    """Longer ones are cut off at the right edge of the site."""
    wide = [line for block in CODE.finditer(page.read_text()) for line in block[2].splitlines() if len(line) > COLUMNS]
    assert not wide, f"lines of code must have at most {COLUMNS} columns, got in {relative(page)}: {wide}; break them"


def test_the_readme_is_short() -> None:
    lines = len((ROOT / "README.md").read_text().splitlines())
    assert lines <= README_LINES, f"README.md has {lines} lines, more than {README_LINES}: move a part to a page"


def test_the_changelog_says_a_thing_once() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    unreleased = lines[lines.index("## [Unreleased]") :]
    twice = [line for line, count in Counter(unreleased).items() if count > 1 and line.startswith(("- ", "### "))]
    assert not twice, f"an entry or a heading must stand once below Unreleased, got twice: {twice}"


def test_readme_and_the_guide_have_code() -> None:
    """Guards the test above against finding nothing to run."""
    for page in ("README.md", "docs/guide/sparse_products.md"):
        assert blocks((ROOT / page).read_text()), f"no block of Python in {page}: show what runs"


@each("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    dead = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not dead, f"{relative(page)} links to {dead}, which are not there: give the path from the page's folder"


@each("page", [page for page in PAGES if page.is_relative_to(ROOT / "docs")], ids=relative)
def test_pages_of_the_documentation_have_one_title_and_no_gap_in_their_headings(page: Path) -> None:
    """Sphinx takes other pages with a warning, which is an error in `make docs`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    titles = levels.count(1)
    assert levels, f"no title in {relative(page)}: begin it with `# Title`"
    assert levels[0] == titles == 1, f"{relative(page)} has {titles} titles, `# ...`: begin the page with one"
    gaps = [f"{'#' * a} to {'#' * b}" for a, b in pairwise(levels) if b > a + 1]
    assert not gaps, f"{relative(page)} leaves out levels of headings: {gaps}"


@each("stored", sorted((ROOT / "docs" / "benchmarks").rglob("*.json")), ids=relative)
def test_pages_of_results_show_the_stored_results(stored: Path) -> None:
    """`eqlayers bench report` wrote them, and no figure was changed since."""
    assert report.page(load(stored)) in [path.read_text() for path in stored.parent.glob("*.md")], (
        f"no page beside {relative(stored)} shows its results: "
        f"write it by `eqlayers bench report {relative(stored)} --out {relative(stored.parent)}`"
    )


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


def test_installation_and_commands_name_the_same_sizes_and_times() -> None:
    loads = dict(re.findall(r"^load\.([\w-]+) +:= (.+)$", MAKEFILE, re.MULTILINE))
    table = ROOT / "docs" / "start" / "installation.md"
    rows = re.findall(r"^\| `make ([\w-]+)` \| (.*) \| (.*) \| (.*) \|$", table.read_text(), re.MULTILINE)
    wanted = ["train", "test", "docs"]
    named = [name for name, *_ in rows]
    assert named == wanted, f"the table of {relative(table)} must have a row of each of {wanted}, got {named}"
    for name, size, disk, time in rows:
        said = f"{size}, {disk} on disk"
        assert loads[name] == said, f"`make {name}` loads {said} in {relative(table)}, {loads[name]} in the Makefile"
        assert COMMANDS[name].endswith(f": {time}"), f"{relative(table)} says {time} of `make {name}`: {COMMANDS[name]}"


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


def part_of(name: str) -> str:
    """`eqlayers.train` of its modules, and a family of layers of its own."""
    return ".".join(name.split(".")[: 3 if name.startswith("eqlayers.layers.") else 2])


PARTS = sorted({part_of(name) for name in MODULES})


@pytest.mark.parametrize("part", [marked(part) for part in PARTS])
def test_doctests(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    """Examples of every module, in a folder of its own."""
    # the debugger that doctest makes for each docstring asks for the state of every file that was ever read
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: None)
    for name in MODULES:
        if part_of(name) != part:
            continue
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))  # what examples leave goes with the test
        with subtests.test(name):
            torch.manual_seed(0)
            module = importlib.import_module(name)
            result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            assert result.failed == 0, (
                f"{result.failed} of {result.attempted} examples of {name} failed: see the output"
            )


@pytest.mark.parametrize("folder", ["eqlayers", "kernels", "examples", "tests"])
def test_no_file_is_too_long(folder: str) -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    long = {name: length for name, length in lengths.items() if length > MAX_LINES}
    assert not long, f"files of more than {MAX_LINES} lines, {long}: they hold two ideas; divide them"


CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


def test_there_are_configurations() -> None:
    missing = {"qm9.yaml", "qm9_mini.yaml", "qm9_mini_dipole.yaml"} - {path.name for path in CONFIGS}
    assert not missing, f"no {sorted(missing)} in configs/"


@each("path", CONFIGS, ids=relative)
def test_configurations_load_and_comment_every_value(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict), f"{relative(path)} must hold names and values"
    values = [line for line in path.read_text().splitlines() if re.match(r"\s*(- )?(?!class_path)\w+: +[^#\s]", line)]
    bare = [line.strip() for line in values if "#" not in line]
    assert not bare, f"no comment on {bare} in {relative(path)}: say what the value is, and its unit"
