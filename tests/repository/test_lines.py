"""Lines and files of Python of the package, lines of its tests: the limits may fall and not rise."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

#: Lines of a file.
LONGEST = 500
ROOT = Path(__file__).resolve().parents[2]
KERNELS = "kernels/eqlayers_kernels"
#: What is counted -> its folders, folders in these that are left out, and the most lines.
LIMITS = {
    "the package without the benchmark": (("eqlayers", KERNELS), ("eqlayers/bench",), 57_237),
    "the layers and what they run on": (
        (*(f"eqlayers/{name}" for name in ("core", "irreps", "layers", "sparse", "e3nn_compat")), KERNELS),
        ("eqlayers/core/files",),
        28_000,
    ),
    "the benchmark": (("eqlayers/bench",), (), 7_390),
    "the tests": (("tests",), (), 67_400),
}
#: The most Python files of the package without the benchmark.
FILES = 327


@cache
def kinds_of(path: Path) -> Counter[str]:
    """Lines of a file by kind."""
    text = path.read_text()
    kinds = ["code" if line.split("#")[0].strip() else "comments and empty lines" for line in text.splitlines()]
    for node in ast.walk(ast.parse(text)):
        kind, part = "imports", node
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            kind, part = "docstrings", node.body[0]
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        assert isinstance(part, ast.stmt)
        last = part.end_lineno or part.lineno
        kinds[part.lineno - 1 : last] = [kind] * (last - part.lineno + 1)
    return Counter(kinds)


def files(
    folders: tuple[str, ...] = ("eqlayers", KERNELS), without: tuple[str, ...] = ("eqlayers/bench",)
) -> list[Path]:
    """The Python files in folders: of the package without the benchmark, where no folders are given."""
    paths = sorted({path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py")})
    return [ROOT / path for path in paths if not path.as_posix().startswith(without)]


def lines_of(folders: tuple[str, ...], without: tuple[str, ...]) -> Counter[str]:
    """Lines of the Python files in folders, by kind."""
    return sum(map(kinds_of, files(folders, without)), Counter())


@pytest.mark.parametrize("part", LIMITS)
def test_lines_may_not_rise(part: str) -> None:
    folders, without, most = LIMITS[part]
    kinds = lines_of(folders, without)
    lines = kinds.total()
    shares = ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common())
    print(f"{part}: {lines:,} lines, at most {most:,}: {shares}")
    assert lines <= most, (
        f"{part} must have at most {most:,} lines, got {lines:,}: delete what new lines make superfluous"
    )


def test_files_may_not_become_more() -> None:
    count = len(files())
    assert count <= FILES, f"the package must have at most {FILES} files, got {count}: merge small ones of one idea"


@pytest.mark.parametrize("folder", ["eqlayers", "kernels", "examples", "tests"])
def test_no_file_is_too_long(folder: str) -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    long = {name: length for name, length in lengths.items() if length > LONGEST}
    assert not long, f"files of more than {LONGEST} lines, {long}: they hold two ideas; divide them"
