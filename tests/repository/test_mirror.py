"""Tests lie as the sources do: a source file has a test file of its name, or of the name of its folder."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
#: A folder of sources -> the folder of its tests.
MIRRORS = {"eqlayers": TESTS, "kernels/eqlayers_kernels": TESTS / "kernels"}


def defines(source: Path) -> bool:
    """A front, which only exports, has nothing to test."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(source.read_text()).body)


def has_own(source: Path, tests: Path) -> bool:
    """A test file of the source's name in the mirrored folder or below it."""
    return any((tests / source.parent).rglob(f"test_{source.stem}.py"))


def has_shared(source: Path, tests: Path) -> bool:
    """A test file of the name of the source's folder."""
    folder = tests / source.parent
    of_folder = (folder, folder.parent) if source.parent.name else ()
    return any((place / f"test_{folder.name}.py").exists() for place in of_folder)


def test_every_source_has_a_test_file() -> None:
    paths = [
        (top, path)
        for top in MIRRORS
        for path in sorted((ROOT / top).rglob("*.py"))
        if path.name != "__init__.py" and defines(path)
    ]
    sources = [(path.relative_to(ROOT / top), MIRRORS[top]) for top, path in paths]
    others = [source for source in sources if not has_own(*source)]
    print(f"{len(sources) - len(others)} of {len(sources)} sources have a test file of their name")
    left = [str(source) for source, tests in others if not has_shared(source, tests)]
    assert not left, (
        f"every source must have a test file of its name or of its folder's, got none for {left}: write one"
    )
