"""The site: charts and output of stored figures, the reference, links to headings, tutorials that can be read.

`make docs` runs the tutorials, and an error in one of them is an error there. So no tutorial is run here.
"""

import ast
import importlib
import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.by_path import loaded
from tests.each import each

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def chart() -> ModuleType:
    return loaded("docs/benchmarks/chart.py")


@pytest.fixture(scope="module")
def parts() -> ModuleType:
    return loaded("docs/extensions/written_parts.py")


def test_the_page_shows_the_stored_numbers(chart: ModuleType) -> None:
    """`python docs/benchmarks/chart.py` wrote them."""
    text = (DOCS / chart.PAGE).read_text()
    shown = text.partition(chart.BEGIN)[2].partition(chart.END)[0].strip()
    assert shown == chart.numbers(chart.measured()), (
        f"docs/{chart.PAGE} is stale: run `python docs/benchmarks/chart.py`"
    )


def test_the_fastest_other_package_is_shown(chart: ModuleType, tmp_path: Path) -> None:
    """A row of a third package appears in chart and numbers as soon as it is stored."""
    networks = tmp_path / "benchmarks" / "networks"
    shutil.copytree(DOCS / "benchmarks" / "networks", networks)
    stored = networks / "mace" / "mace.json"
    result: dict[str, Any] = json.loads(stored.read_text())
    row = next(row for row in result["rows"] if (row["atoms"], row["threads"]) == (chart.ATOMS, chart.THREADS))
    other = row | {"implementation": "other, prepared", "seconds": {"median": 0.256, "q20": 0.25, "q80": 0.26}}
    result["rows"].append(other | {"memory_bytes": 3 * 2**20})
    result["rows"].append(other | {"implementation": "other, whole call", "seconds": {"median": 0.5}})
    stored.write_text(json.dumps(result))
    bars = chart.measured(tmp_path)
    assert [bar.name for bar in chart.shown(bars, "MACE") if bar.kind == "peer"] == [
        "mace-torch, eager",
        "symmetrix-xl, by ASE",
        "other, prepared",
    ]
    assert re.search(r"\| other, prepared \| 1,000 \| [\d,]+ \| \*\*0\.\d+\*\* \| 3 \|", chart.numbers(bars, tmp_path))
    pytest.importorskip("matplotlib")  # absent from the environments of other torches
    chart.draw(bars, tmp_path / "chart.svg", "time", "time")
    assert (tmp_path / "chart.svg").stat().st_size > 5000


def test_the_page_of_optimizers_shows_the_stored_errors() -> None:
    """`python docs/benchmarks/optimizers.py report` wrote them."""
    pytest.importorskip("lightning")  # absent from the environments of other torches
    study = loaded("docs/benchmarks/optimizers.py")
    shown = study.PAGE.read_text().partition(study.BEGIN)[2].partition(study.END)[0].strip()
    assert shown == study.table(), "the page is stale: run `python docs/benchmarks/optimizers.py report`"
    adamw, soap = {100: study.Point(1, 4.0, 0.0)}, {25: study.Point(1, 8.0, 0.0), 100: study.Point(1, 2.0, 0.0)}
    assert study.needed(adamw, soap) == "0.5"  # half the way, as lengths and errors are compared by their logarithms


def test_the_reference_has_every_public_name(parts: ModuleType) -> None:
    """A class has a page, which a table links; what has no page is in a table and stands below it."""
    for needed in ("lightning", "vesin", "ase", "rich", "matplotlib"):
        pytest.importorskip(needed)  # absent from the environments of other torches
    for name in parts.modules(DOCS / "reference"):
        module, text = importlib.import_module(name), parts.names(name)
        pages = parts.classes(module)
        missing = [each for each in pages if f"]({parts.FOLDER}/{name}.{each}.md)" not in text]
        if name != "eqlayers.o3":
            missing += [each for each in module.__all__ if each not in pages and f"`{each}`" not in text]
        assert not missing, f"the reference of {name} lacks {missing}"


def test_top_level_classes_lead_to_their_pages(parts: ModuleType) -> None:
    pytest.importorskip("lightning")  # absent from the environments of other torches
    text = parts.filled((DOCS / "reference" / "index.md").read_text())
    assert "| [`eqlayers.Linear`](names/eqlayers.nn.Linear.md) |" in text
    assert "| [`eqlayers.Potential`](names/eqlayers.models.Potential.md) |" in text
    assert "| `eqlayers.accelerate` |" in text, "a function has no page of its own"


def test_layers_are_grouped_as_the_catalogue_is(parts: ModuleType) -> None:
    text = parts.names("eqlayers.nn")
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(headings) == {*parts.families().values(), "Other classes", "Functions"}
    norms = text.partition("### Norms\n")[2].partition("###")[0]
    assert "[`LayerNorm`](names/eqlayers.nn.LayerNorm.md)" in norms


def test_pages_of_classes_follow_the_code(parts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sparse.md").write_text("# Page\n\n```{names} eqlayers.sparse\n```\n")
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "eqlayers.sparse.Gone.md").write_text("of a class that is gone")
    parts.write_classes(tmp_path)
    pages = sorted(page.name for page in (tmp_path / "names").iterdir())
    assert {f"eqlayers.sparse.{name}.md" for name in ("Channels", "SparseProductInfo", "SparseScaleInfo")} <= {*pages}
    assert "eqlayers.sparse.Gone.md" not in pages
    page = tmp_path / "names" / "eqlayers.sparse.SparseProductInfo.md"
    before = page.stat().st_mtime_ns
    parts.write_classes(tmp_path)
    assert page.stat().st_mtime_ns == before, "an unchanged page was written again, so that Sphinx reads it again"
    assert ".. autoclass:: eqlayers.sparse.SparseProductInfo" in page.read_text()


def test_keys_have_their_path_value_and_comment(parts: ModuleType) -> None:
    rows = parts.keys("configs/ethanol.yaml").splitlines()
    assert "| `data.cutoff` | `4.0` | Angstrom; the model takes it from here |" in rows
    assert any(row.startswith("| `model.model.init_args.lmax` | `3` | largest degree") for row in rows)
    assert any(row.startswith("| `ema.decay` | `0.99` |") for row in rows), "a section after a nested one"


def test_a_help_is_printed_for_each_command(parts: ModuleType) -> None:
    from eqlayers.cli import main as cli

    asked = parts.subcommands(cli.parser())
    assert {"fit", "md", "bench", "cache"} <= set(asked)
    assert parts.command_help("cache").startswith("```text\nusage: eqlayers cache")
    with pytest.raises(ValueError, match="must begin with its usage"):
        parts.command_help("no-such-command")


def test_formulas_need_no_network() -> None:
    path = re.search(r"^mathjax_path = (.+)$", (DOCS / "conf.py").read_text(), re.MULTILINE)[1]
    assert "//" not in path, f"MathJax must be a file of the site, got {path}"


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")


def test_links_lead_to_headings() -> None:
    """Sphinx warns of none: links to files beside `docs/` would be warnings as well."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    dead = []
    for page in pages:
        for path, anchor in re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", page.read_text()):
            target = page.parent / path if path else page
            text = re.sub(r"^```.*?^```$", "", target.read_text(), flags=re.MULTILINE | re.DOTALL)
            if anchor not in [slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]:
                dead.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert not dead, f"no heading for {dead}: give the heading in lower case, with - for spaces"


BROWSER = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
if BROWSER is not None:  # as tests beside other packages, this one is there where its program is

    @pytest.mark.slow
    def test_wide_pages_are_measured(tmp_path: Path) -> None:
        """`python docs/extensions/phone_width.py docs/_build/html` does it with the whole site."""
        width = loaded(DOCS / "extensions" / "phone_width.py")
        wide, box = "<body style='margin:0'><div style='width:900px'>x</div>", "<div style='overflow:auto'>"
        (tmp_path / "wide.html").write_text(wide)
        (tmp_path / "narrow.html").write_text(box + wide)
        assert width.widths(tmp_path, BROWSER, ["narrow.html", "wide.html"]) == {"narrow.html": 390, "wide.html": 900}
        assert width.pages_of(tmp_path) == ["narrow.html", "wide.html"]


def test_dead_links_are_found(tmp_path: Path) -> None:
    links = loaded(DOCS / "extensions" / "check_links.py")
    (tmp_path / "a").mkdir()
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><a href="https://example.org/none">out</a><a href="#there">')
    lines = ['href="../b.html"', 'href="../b.html#there"', 'href="../none.html"', 'href="../b.html#gone"', 'href="#no"']
    (tmp_path / "a" / "a.html").write_text("".join(f"<a {line}>x</a>" for line in lines) + '<img src="none.png">')
    dead = ["../none.html", "../b.html#gone", "#no", "none.png"]
    assert links.dead_links(tmp_path) == [f"a/a.html: {link}" for link in dead]


def test_the_chart_of_the_gpu_is_of_stored_figures(chart: ModuleType, tmp_path: Path) -> None:
    """Without the rows of a package there is no chart."""
    gpu = tmp_path / "benchmarks" / "gpu"
    shutil.copytree(DOCS / "benchmarks" / "gpu", gpu)
    chart.draw_gpu(tmp_path, tmp_path / "gpu.svg")
    assert (tmp_path / "gpu.svg").read_text().startswith("<?xml")
    text = (gpu / "target" / "gpu-target.json").read_text()
    (gpu / "target" / "gpu-target.json").write_text(text.replace('"cuequivariance"', '"other"'))
    with pytest.raises(KeyError, match="cuequivariance"):
        chart.draw_gpu(tmp_path, tmp_path / "gpu.svg")


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
