"""Imports go one way, and importing the package does nothing."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.each import each

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "eqlayers_kernels"

# what each part may import directly; everything below those is allowed as well
BELOW = {
    "errors": (),
    "names": ("errors",),  # hints for names that there are not
    "keywords": ("checks",),  # the right names of arguments
    "checks": ("errors",),
    "files": ("checks",),
    "units": ("checks",),
    "training_help": (),  # pages of help that need no import
    "elements": ("checks",),  # symbols, atomic numbers and radii
    "database": ("files", "units"),  # labels in databases of ASE
    "arguments": ("checks",),
    "torch_internals": (),
    "memory": (),
    "algebra": ("checks",),
    KERNELS: (),
    "compiling": (KERNELS,),  # what commands show meanwhile
    "notices": (),  # warnings of commands
    "dtypes": ("checks", "torch_internals"),  # of operands and of sums
    "sparse": ("dtypes", KERNELS),  # sparse products and their infos, complete
    "ops": ("sparse",),  # a public front
    "info": ("sparse",),  # a public front
    "forms": ("checks", KERNELS),  # programs and formulas with their keys
    "graph": ("checks", "torch_internals"),
    "lowering": ("algebra", "dtypes", "forms"),
    "backends": ("lowering", "graph", "sparse"),
    "autograd": ("backends", "sparse"),
    "functional": ("autograd", "sparse", "names"),
    "nn": ("functional", "keywords", "elements"),
    "o3": ("nn",),
    "models": ("nn", "periodic", "files", "__version__"),  # files of potentials name the version that wrote them
    "testing": ("models",),
    "periodic": ("checks",),  # neighbour lists by vesin
    "data": ("database", "elements", "periodic", "names", "keywords", KERNELS),  # one cache folder
    "__version__": (),  # the version, which reports name
    "pages": ("files",),  # HTML files about results
    "train": ("testing", "data", "pages", "__version__", "arguments", "training_help"),
    "integrations": ("models", "testing", "memory", "arguments"),
    "simulate": ("integrations", "database", "pages", "arguments"),
    "bench": ("models", "testing", "integrations", "simulate", "files", "arguments"),
    "cli": ("train", "bench", "simulate", "memory", "compiling", "notices"),
    "__main__": ("cli",),
    "": (
        "sparse",
        "info",
        "ops",
        "train",
        "simulate",
        "testing",
        "integrations",
        "o3",
        "memory",
        "names",
    ),  # eqlayers/__init__.py itself
}
# one line each, with its reason
EXCEPTIONS: set[tuple[str, str]] = set()


def allowed(part: str) -> set[str]:
    """`part` and everything that lies below it."""
    return {part}.union(*(allowed(below) for below in BELOW[part]))


def sources() -> list[Path]:
    return sorted([*ROOT.glob("eqlayers/**/*.py"), *ROOT.glob(f"kernels/{KERNELS}/**/*.py")])


def module_name(path: Path) -> str:
    relative = path.relative_to(ROOT / "kernels" if KERNELS in path.parts else ROOT).with_suffix("")
    return ".".join(part for part in relative.parts if part != "__init__")


def part_of(module: str) -> str:
    """The row of the table: `eqlayers.nn.linear` is in `nn`, `eqlayers` itself in ``."""
    top, *rest = module.split(".")
    return KERNELS if top == KERNELS else (rest[0] if rest else "")


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of each of this project's modules that `tree` imports, inside functions too."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{base}.{alias.name}" if base == "eqlayers" else base for alias in node.names]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in ("eqlayers", KERNELS))


def upward(source: str, module: str, is_package: bool) -> list[str]:
    """One sentence for every import of `source` that does not point down."""
    part, package = part_of(module), module if is_package else module.rpartition(".")[0]
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(ast.parse(source), package)
        if part_of(name) not in allowed(part) and (part, part_of(name)) not in EXCEPTIONS
    ]


@each("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    module = module_name(path)
    assert part_of(module) in BELOW, f"{module} has no row in the table of layers: add one, in its place"
    assert upward(path.read_text(), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from ..nn import Linear", "eqlayers.sparse.function"),
        ("from .. import models", "eqlayers.nn.linear"),
        ("import eqlayers.functional", "eqlayers.backends.whole"),
        ("import eqlayers", "eqlayers.nn.linear"),
        ("def f():\n    from eqlayers.train import cli", "eqlayers.models.molecule"),
        ("from eqlayers.errors import ShapeError", "eqlayers_kernels.triton.segments"),
        ("import eqlayers.kinds", "eqlayers.nn.linear"),
    ],
)
def test_an_import_upwards_is_found(source: str, module: str) -> None:
    """Guards the test above against passing because it sees no imports."""
    assert len(upward(source, module, is_package=False)) == 1


OPTIONAL = ("jsonargparse", "lightning", "matplotlib", "pandas", "rich", "torch_geometric", "torchmetrics", "triton")

PROBE = f"""
import json, os, sys, threading, warnings

for name in {OPTIONAL}:
    sys.modules[name] = None  # absent: importing it raises ModuleNotFoundError
import torch, e3nn.o3

def state():
    return {{
        "default dtype": str(torch.get_default_dtype()), "threads of torch": torch.get_num_threads(),
        "environment": dict(os.environ), "working directory": os.getcwd(), "gradient mode": torch.is_grad_enabled(),
        "random numbers": torch.get_rng_state().tolist(), "warning filters": len(warnings.filters),
        "default device": str(torch.get_default_device()), "threads": threading.active_count(),
    }}

before = state()
import eqlayers
after = state()
print(json.dumps({{
    "changed": [name for name in before if before[name] != after[name]],
    "kernels": "kernels" in sys.modules,
}}))
"""


def test_importing_eqlayers_does_nothing_and_needs_no_extra() -> None:
    """Neither `kernels` (another package's name) nor an optional package is imported, and no global setting changes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"changed": [], "kernels": False}
