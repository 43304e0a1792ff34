"""Lines of Python of the package: the limits may fall and not rise."""

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
    "the package without the benchmark": (("eqlayers", KERNELS), ("eqlayers/bench",), 53_090),
    "the layers and what they run on": (
        (*(f"eqlayers/{name}" for name in ("core", "irreps", "layers", "sparse", "e3nn_compat")), KERNELS),
        ("eqlayers/core/files",),
        27_227,
    ),
    "the benchmark": (("eqlayers/bench",), (), 7_342),
}


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


def lines_of(folders: tuple[str, ...], without: tuple[str, ...]) -> Counter[str]:
    """Lines of the Python files in folders, by kind."""
    paths = {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    return sum((kinds_of(ROOT / path) for path in paths if not path.startswith(without)), Counter())


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


@pytest.mark.parametrize("folder", ["eqlayers", "kernels", "examples", "tests"])
def test_no_file_is_too_long(folder: str) -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    long = {name: length for name, length in lengths.items() if length > LONGEST}
    assert not long, f"files of more than {LONGEST} lines, {long}: they hold two ideas; divide them"
