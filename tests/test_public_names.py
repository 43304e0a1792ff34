"""The public names: what `__all__` exports, that it is documented, and that the reference lists it."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import eqlayers

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
# parts whose functions and classes each show their use, in a doctest; dataclasses are made by those that do
WITH_EXAMPLES = ("functional", "info", "models", "nn", "testing")
# the command line is documented as a command; the checks and what is private in torch are for this package
HIDDEN = ("arguments", "checks", "cli", "files", "keywords", "names", "torch_internals", "__main__")
# names of others that belong at the top
FOREIGN = {"Irrep": "e3nn.o3", "Irreps": "e3nn.o3"}
NEEDS = {"data": "lightning", "periodic": "vesin", "simulate": "ase", "train": "lightning"}
PARTS = sorted(part.name for part in pkgutil.iter_modules(eqlayers.__path__) if part.name not in HIDDEN)


@pytest.fixture(params=["", *PARTS], ids=lambda part: part or "eqlayers")
def module(request: pytest.FixtureRequest) -> object:
    name = f"eqlayers.{request.param}".rstrip(".")
    if request.param in NEEDS:
        pytest.importorskip(NEEDS[request.param])  # absent from the environments of other torches
    return importlib.import_module(name)


def exported(module: object) -> dict[str, object]:
    """The functions and classes that `module` exports; `eqlayers.o3` only hands on those of others."""
    if module.__name__ == "eqlayers.o3":
        return {}
    objects = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in objects.items() if inspect.isclass(value) or inspect.isfunction(value)}


def test_all_names_public_things_of_this_package(module: object) -> None:
    assert module.__doc__, f"{module.__name__} needs a docstring"
    names = module.__all__
    assert len(names) == len(set(names)), f"{module.__name__}.__all__ repeats a name"
    assert [name for name in names if name.startswith("_")] == []
    assert [name for name in names if not hasattr(module, name)] == []
    foreign = {name: value.__module__ for name, value in exported(module).items()}
    assert {name for name, home in foreign.items() if not home.startswith(FOREIGN.get(name, module.__name__))} == set()


def test_everything_exported_is_documented(module: object) -> None:
    undocumented = [name for name, value in exported(module).items() if not has_docstring(value)]
    assert undocumented == []
    if module.__name__.rpartition(".")[2] in WITH_EXAMPLES:
        assert [name for name, value in exported(module).items() if not shows_its_use(value)] == []


def has_docstring(value: object) -> bool:
    """True for a docstring of its own: a dataclass or a NamedTuple without one gets its signature instead."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return bool(text) and not text.startswith((f"{value.__name__}(", "Alias for field"))


def shows_its_use(value: object) -> bool:
    """True for an example, or for a word that the example stands in another function of the same family."""
    text = inspect.getdoc(value) or ""
    return is_dataclass(value) or ">>>" in text or "an example: :func:" in text


def documented_modules() -> list[str]:
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    return re.findall(r"^\.\. automodule:: (\S+)$", pages, re.MULTILINE)


def test_every_part_has_its_place_in_the_reference() -> None:
    """The pages take the names from `__all__`; here only the list of modules can go stale."""
    assert sorted(documented_modules()) == [f"eqlayers.{part}" for part in PARTS]


def test_the_reference_lists_the_top_level_names() -> None:
    listed = re.findall(r"^\| `eqlayers\.(\w+)` \|", (REFERENCE / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == dir(eqlayers)
