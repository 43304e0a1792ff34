"""Examples of the documentation run: blocks of code on pages, and doctests."""

import doctest
import importlib
import linecache
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "CONTRIBUTING.md", ".github/SECURITY.md")
WRITTEN = ("_build", "names")  # folders that a build of the site makes
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not set(page.parts) & set(WRITTEN)]
PAGES = [*(ROOT / name for name in TOP), *DOCS]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGES = {ROOT / "eqlayers": ROOT, ROOT / "kernels" / "eqlayers_kernels": ROOT / "kernels"}
MODULES = sorted(
    ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    for package, folder in PACKAGES.items()
    for path in package.rglob("*.py")
    if path.name != "__main__.py"
)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str) -> list[str]:
    """The Python blocks of a page, each moved to its line so that a traceback names the right one."""
    return ["\n" * (text.count("\n", 0, block.start()) + 1) + block[1] for block in BLOCK.finditer(text)]


#: Pages and parts that show kernels; the others run on backend 'torch', which compiles nothing.
WITH_KERNELS = {
    "docs/howto/own_product.md",
    *("eqlayers.core", "eqlayers.layers.contraction", "eqlayers.layers.explain"),
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


def test_readme_and_the_guide_have_code() -> None:
    """Guards the test above against finding nothing to run."""
    for page in ("README.md", "docs/guide/sparse_products.md"):
        assert blocks((ROOT / page).read_text()), f"no block of Python in {page}: show what runs"


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
