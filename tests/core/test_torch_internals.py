"""Private parts of torch: named in one module alone, and a torch without them is an error that says which."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.fresh import fresh

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "eqlayers" / "core" / "torch_internals.py"
SOURCES = sorted([*ROOT.glob("eqlayers/**/*.py"), *ROOT.glob("kernels/**/*.py")])


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def private(tree: ast.AST) -> Iterator[str]:
    """Names of torch with a part that begins with an underscore, imported or looked up."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        for name in names:
            top, *rest = name.split(".")
            if top == "torch" and any(part.startswith("_") and not part.endswith("__") for part in rest):
                yield name


def test_nothing_else_names_a_private_part() -> None:
    assert {path.name: list(private(ast.parse(path.read_text()))) for path in SOURCES if path != HOME} == {
        path.name: [] for path in SOURCES if path != HOME
    }
    assert len(set(private(ast.parse(HOME.read_text())))) > 10, "the search finds those that are there"


@pytest.mark.parametrize("text", ["import torch._dynamo", "from torch._guards import X", "y = torch._C._x(1)"])
def test_the_search_finds(text: str) -> None:
    assert list(private(ast.parse(text)))


def test_everything_here_is_used() -> None:
    everything = "\n".join(path.read_text() for path in SOURCES if path != HOME)
    defined = [
        node.name for node in ast.parse(HOME.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    ]
    used = [name for name in defined if name.startswith("_") or re.search(rf"\b{name}\b", everything)]
    assert used == defined


def test_a_torch_without_them_is_named() -> None:
    code = "import torch._guards; del torch._guards.TracingContext; import eqlayers.nn"
    last = fresh(code).stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: torch must be a release that this eqlayers was tested with, 2.6 to 2.15, got "
                           f"{torch.__version__}, in which something it needs is gone")  # fmt: skip
    assert "TracingContext" in last
    assert last.endswith("Install one of these, or a newer eqlayers.")
