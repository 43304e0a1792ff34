"""Pages and configurations: lines fit the site, links lead somewhere, headings have no gaps, values have comments."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from eqlayers.bench import report
from eqlayers.bench.results import KINDS, load
from tests.by_path import loaded
from tests.each import each

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/SECURITY.md")
WRITTEN = ("_build", "names")  # folders that a build of the site makes
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not set(page.parts) & set(WRITTEN)]
PAGES = [*(ROOT / name for name in TOP), *DOCS]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")
COLUMNS = 88  # of a line of code on the site


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


CODE = re.compile(
    r"^(`{3,})(?:\{code-cell\}[^\n]*|(?:\{code-block\} )?(?:python|py|bash|yaml|toml))\n(.*?)^\1$",
    re.MULTILINE | re.DOTALL,
)


@each("page", PAGES, ids=relative)
def test_lines_of_code_fit_the_page(page: Path) -> None:
    """Longer ones are cut off at the right edge of the site."""
    wide = [line for block in CODE.finditer(page.read_text()) for line in block[2].splitlines() if len(line) > COLUMNS]
    assert not wide, f"lines of code must have at most {COLUMNS} columns, got in {relative(page)}: {wide}; break them"


@pytest.mark.parametrize(("page", "most"), [("README.md", 100), ("CONTRIBUTING.md", 150), ("CHANGELOG.md", 60)])
def test_pages_of_the_top_are_short(page: str, most: int) -> None:
    lines = len((ROOT / page).read_text().splitlines())
    assert lines <= most, f"{page} has {lines} lines, more than {most}: move a part to a page of docs/"


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


#: Kind of a result, or a field of it -> the program of a study that writes it.
STUDIES = {"cold": "cold", "tables": "radial_tables", "kernels": "printed_kernels", "dynamics": "dynamics"}


@each("stored", sorted((ROOT / "docs" / "benchmarks").rglob("*.json")), ids=relative)
def test_pages_of_results_show_the_stored_results(stored: Path) -> None:
    """`eqlayers bench report` wrote them, or the program of a study did, and no figure was changed since."""
    result = load(stored, (*KINDS, *STUDIES))
    study = STUDIES.get("dynamics" if "dynamics" in result else result["kind"])
    script = f"docs/benchmarks/studies/{study}.py"
    layout = None if study is None else loaded(script).LAYOUT
    command = "eqlayers bench report" if study is None else f"python {script} --stored"
    assert report.page(result, layout) in [path.read_text() for path in stored.parent.glob("*.md")], (
        f"no page beside {relative(stored)} shows its results: "
        f"write it by `{command} {relative(stored)} --out {relative(stored.parent)}`"
    )


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
