"""Tutorials and the gallery: what `make docs` runs is readable, and stored output is of the examples of today.

`make docs` runs the tutorials, and an error in one of them is an error there. So nothing is run here.
"""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.each import each

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.md") if path.name != "index.md")
CELL = re.compile(r"^```\{code-cell\}\n((?::[^\n]*\n)*)\n?(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = 88  # columns that a page shows beside its table of contents
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
GALLERY = DOCS / "gallery"
SPEC = importlib.util.spec_from_file_location("gallery_run", GALLERY / "run.py")
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))


def name(path: Path) -> str:
    return path.stem


def test_there_are_tutorials_and_the_index_lists_them() -> None:
    index = (DOCS / "tutorials" / "index.md").read_text()
    listed = re.findall(r"^(\w+)$", index.partition("```{toctree}")[2], re.MULTILINE)
    assert sorted(listed) == [path.stem for path in TUTORIALS]
    assert len(TUTORIALS) >= 5


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_is_a_notebook_of_short_cells_with_words_between_them(page: Path) -> None:
    text = page.read_text()
    assert text.startswith("---\nfile_format: mystnb\n"), f"{page.name} is no notebook: begin it as the others"
    cells = CELL.findall(text)
    assert len(cells) == text.count("```{code-cell}"), f"a cell of {page.name} is not closed"
    for tags, source in cells:
        if source.startswith("%%"):
            assert source.startswith(("%%bash\n", "%%writefile ")), f"{page.name}: no magic but bash and writefile"
        else:
            ast.parse(source)
        wide = [line for line in source.splitlines() if len(line) > WIDTH]
        assert not wide, f"lines of more than {WIDTH} columns in {page.name}: {wide}"
        shown = "hide-input" not in tags
        assert not shown or source.count("\n") <= 40, f"a cell of {page.name} is too long to read: divide it"
    bare = re.findall(r"^```\n\n```\{code-cell\}\n(?!:)(.*)$", text, re.MULTILINE)
    assert not bare, f"no words before the cells of {page.name} that begin with {bare}: say what they do"


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_has_a_plot_and_says_how_to_download_it(page: Path) -> None:
    text = page.read_text()
    assert "plt.subplots(" in text
    assert f"{{nb-download}}`{page.stem}.ipynb`" in text


def test_the_gallery_has_every_example_with_its_source() -> None:
    page = (GALLERY / "index.md").read_text()
    missing = [path.name for path in EXAMPLES if f"{{literalinclude}} ../../examples/{path.name}\n" not in page]
    assert not missing, f"the gallery lacks {missing}: add a section to docs/gallery/index.md"


@each("path", [path for path in EXAMPLES if path.stem not in RUN.ELSEWHERE], ids=name)
def test_output_in_the_gallery_is_of_the_example_of_today(path: Path) -> None:
    """But for `07_dynamics`, whose input takes minutes: the page shows only its picture."""
    again = f"run `python docs/gallery/run.py {path.stem}`"
    facts = json.loads((GALLERY / "runs.json").read_text()).get(path.stem)
    assert facts is not None, f"no output of {path.name} is kept: {again}"
    assert facts["sha256"] == RUN.digest(path.stem), f"{path.name} changed since its output was kept: {again}"
    lines = (GALLERY / f"{path.stem}.txt").read_text().splitlines()
    assert lines, f"the output of {path.name} is empty: {again}"
    if '"check passed' in path.read_text():
        assert lines[-1].startswith("check passed"), f"the output of {path.name} ends without its check: {again}"
    assert f"{{literalinclude}} {path.stem}.txt\n" in (GALLERY / "index.md").read_text()


@pytest.mark.parametrize("picture", PICTURES, ids=name)
def test_pictures_of_concepts_are_drawn_by_the_script_and_shown(picture: Path) -> None:
    """Each has colours for light and dark pages, and a page that says in words what it shows."""
    assert f"def {picture.stem}() -> None:" in (DOCS / "pictures" / "draw.py").read_text()
    drawn = picture.read_text()
    assert "prefers-color-scheme: dark" in drawn
    assert not re.findall(r"(?<!-)(?:fill|stroke): #", drawn), "colours must be variables, see docs/pictures/style.py"
    shown = re.compile(rf"!\[[^\]]{{20,}}\]\((?:\.\./)*pictures/{picture.name}\)")
    assert any(shown.search(page.read_text()) for page in DOCS.rglob("*.md")), f"no page shows {picture.name}"
