"""Tests lie as the sources do: a source file has a test file of its name, or of the name of its folder."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
#: A folder of sources -> the folder of its tests.
MIRRORS = {"eqlayers": TESTS, "kernels/eqlayers_kernels": TESTS / "kernels"}


def defines(source: Path) -> bool:
    """A front, which only exports, has nothing to test."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(source.read_text()).body)


def has_tests(source: Path, tests: Path) -> bool:
    """A test file of the source's name in the mirrored folder or below it, or one of the folder's name."""
    folder = tests / source.parent
    of_folder = (folder, folder.parent) if source.parent.name else ()
    named = any(folder.rglob(f"test_{source.stem}.py"))
    return named or any((place / f"test_{folder.name}.py").exists() for place in of_folder)


def without_tests() -> list[str]:
    sources = [(top, path) for top in MIRRORS for path in sorted((ROOT / top).rglob("*.py")) if defines(path)]
    return [
        str(path.relative_to(ROOT))
        for top, path in sources
        if not has_tests(path.relative_to(ROOT / top), MIRRORS[top]) and path.name != "__init__.py"
    ]


def test_every_source_has_a_test_file() -> None:
    left = without_tests()
    assert not left, (
        f"every source must have a test file of its name or of its folder's, got none for {left}: write one"
    )
