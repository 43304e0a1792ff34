"""Imports go one way, and importing the package does nothing."""

import ast
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.each import each
from tests.fresh import fresh

ROOT = Path(__file__).resolve().parents[2]
KERNELS = "eqlayers_kernels"

# what each part may import directly; everything below those is allowed as well
BELOW = {
    KERNELS: (),
    "cli.notices": (KERNELS,),  # what commands show: warnings, and kernels that are compiled
    "core": (KERNELS,),  # descriptions, the operator, backends, graphs, checks and errors
    "hints": ("core",),  # answers to names and arguments that there are not
    "atoms": ("core",),  # elements, units, constraints, labels and files of structures, neighbours by vesin
    "cli.arguments": ("hints",),
    "irreps": ("hints",),
    "sparse": ("core",),  # sparse products and their infos, complete
    "e3nn_compat": ("irreps",),  # state dicts and TorchScript
    "layers.base": ("e3nn_compat", "atoms", "sparse"),
    "layers.pointwise": ("layers.base",),
    "layers.reshape": ("layers.base",),
    "layers.dropout": ("layers.base",),
    "layers.harmonics": ("layers.base",),
    "layers.contraction": ("layers.base",),
    "layers.tensor_product": ("layers.reshape",),
    "layers.basis": ("layers.tensor_product",),
    "layers.rotation": ("layers.harmonics", "layers.tensor_product"),
    "layers.linear": ("layers.tensor_product",),
    "layers.gate": ("layers.pointwise", "layers.rotation", "layers.tensor_product"),
    "layers.norm": ("layers.gate", "layers.linear"),
    "layers.radial": ("layers.gate", "layers.harmonics"),
    "layers.convolution": ("layers.linear", "layers.radial"),
    "layers.attention": ("layers.convolution",),
    "layers.so2": ("layers.linear", "layers.rotation"),
    "layers": (),
    "layers.definitions": ("sparse",),
    "layers.explain": ("layers.tensor_product",),
    # public fronts, which only export
    "errors": ("core",),
    "functional": (
        "layers.attention", "layers.so2", "layers.norm", "layers.contraction", "layers.basis",
        "layers.reshape", "layers.dropout",
    ),
    "nn": ("functional", "layers.explain"),
    "o3": ("nn",),
    "models": ("nn", "atoms", "__version__"),  # files of potentials name their version
    "native": ("models", "cli.arguments"),
    "lammps": ("native", "cli.arguments"),
    "testing": ("models",),
    "optim": ("layers.base",),  # layers tell their matrices
    "data": ("atoms", "hints", KERNELS),  # one cache folder
    "__version__": (),  # the version, which reports name
    "pages": ("core",),  # HTML files about results
    "train": ("testing", "data", "optim", "pages", "__version__", "cli.arguments"),
    "integrations": ("native", "testing", "cli.arguments"),
    "simulate": ("integrations", "pages", "cli.arguments", "cli.notices"),
    "bench": ("layers.definitions", "models", "testing", "integrations", "cli.arguments", "cli.notices"),
    "cli.main": ("train", "bench", "simulate", "lammps", "cli.notices"),
    "cli": (),
    "__main__": ("cli.main",),
    "": (
        "sparse", "train", "simulate", "testing", "integrations", "o3", "hints", "errors", "functional", "models",
        "native", "nn", "optim",
    ),  # eqlayers/__init__.py itself
}  # fmt: skip
# one line each, with its reason
EXCEPTIONS = {
    ("eqlayers.core.backends.whole", "sparse")  # the backends `sparse` and `reference` run a layer by its infos
}


@cache
def allowed(part: str) -> set[str]:
    """`part` and everything that lies below it."""
    return {part}.union(*(allowed(below) for below in BELOW[part]))


def sources() -> list[Path]:
    return sorted([*ROOT.glob("eqlayers/**/*.py"), *ROOT.glob(f"kernels/{KERNELS}/**/*.py")])


def module_name(path: Path) -> str:
    relative = path.relative_to(ROOT / "kernels" if KERNELS in path.parts else ROOT).with_suffix("")
    return ".".join(part for part in relative.parts if part != "__init__")


def package_of(path: Path) -> str:
    module = module_name(path)
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def part_of(module: str) -> str:
    """The row of the table: `eqlayers.core.graph` is in `core`, families of layers have their own, `eqlayers` is ``."""
    top, *rest = module.split(".")
    if top == KERNELS or not rest:
        return KERNELS if top == KERNELS else ""
    return ".".join(rest[:2]) if rest[0] in ("layers", "cli") else rest[0]


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
        if part_of(name) not in allowed(part) and (module, part_of(name)) not in EXCEPTIONS
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
        ("from .. import models", "eqlayers.layers.linear.module"),
        ("import eqlayers.functional", "eqlayers.core.backends.whole"),
        ("import eqlayers", "eqlayers.layers.linear.module"),
        ("def f():\n    from eqlayers.train import cli", "eqlayers.models.molecule"),
        ("from eqlayers.errors import ShapeError", "eqlayers_kernels.triton.segments"),
        ("import eqlayers.kinds", "eqlayers.layers.linear.module"),
    ],
)
def test_an_import_upwards_is_found(source: str, module: str) -> None:
    """Guards the test above against passing because it sees no imports."""
    assert len(upward(source, module, is_package=False)) == 1


def test_modules_of_the_benchmark_import_each_other_one_way() -> None:
    graph = {
        module_name(path): {name for _, name in imports(ast.parse(path.read_text()), package_of(path))}
        for path in sources()
        if "bench" in path.parts
    }
    assert len(tuple(TopologicalSorter(graph).static_order())) > len(graph), "or a CycleError names them"


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
    done = fresh(PROBE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"changed": [], "kernels": False}


def test_no_three_siblings_share_a_prefix() -> None:
    """Three files of one prefix are a folder."""
    for top in ("eqlayers", "kernels"):
        for folder in [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())]:
            names = [path.stem for path in folder.glob("*.py") if not path.name.startswith("_")]
            prefixes = Counter(name.partition("_")[0] for name in names if "_" in name)
            shared = [prefix for prefix, count in prefixes.items() if count >= 3]
            assert not shared, f"files of {folder.relative_to(ROOT)} share {shared}: make a folder of each"


def test_descriptions_are_not_told_apart_by_their_class() -> None:
    """Products, sums of products and formulas have one protocol; kernels alone know which is which."""
    classes = {"ProductForm", "SumForm", "Formula", "Program"}
    for path in (ROOT / "eqlayers").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                parts = list(ast.walk(node.args[1]))
                asked = {part.id for part in parts if isinstance(part, ast.Name)}
                asked |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
                assert not asked & classes, f"{path.relative_to(ROOT)}:{node.lineno} asks for {asked & classes}"
