"""The public names: what `__all__` exports, that it is documented, and that the reference lists it."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import eqlayers

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
# parts whose functions and classes each show their use, in a doctest; dataclasses are made by those that do
WITH_EXAMPLES = ("functional", "models", "nn", "testing")
# the command line is documented as a command; checks, pages and what is private in torch are for this package
HIDDEN = (
    "atoms", "cli", "core", "e3nn_compat", "hints", "irreps", "layers", "pages", "__main__",
)  # fmt: skip
# names of others that belong at the top
FOREIGN = {"Irrep": "e3nn.o3", "Irreps": "e3nn.o3"}
ROOMS = tuple(f"eqlayers.{room}" for room in ("core", "irreps", "layers", "sparse"))  # exported by public fronts
NEEDS = {"data": "lightning", "train": "lightning", "atoms.periodic": "vesin"}
NEEDS |= dict.fromkeys(("atoms.database", "atoms.units", "simulate"), "ase")
PARTS = sorted(part.name for part in pkgutil.iter_modules(eqlayers.__path__) if part.name not in HIDDEN)
PARTS += ["atoms.database", "atoms.periodic", "atoms.units"]  # public files of a folder whose others are not


@pytest.fixture(params=["", *PARTS], ids=lambda part: part or "eqlayers")
def module(request: pytest.FixtureRequest) -> object:
    name = f"eqlayers.{request.param}".rstrip(".")
    if request.param in NEEDS:
        pytest.importorskip(NEEDS[request.param])  # absent from the environments of other torches
    return importlib.import_module(name)


def exported(module: object) -> dict[str, object]:
    """The functions and classes that `module` exports; `eqlayers.o3` only exports objects of others."""
    if module.__name__ == "eqlayers.o3":
        return {}
    objects = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in objects.items() if inspect.isclass(value) or inspect.isfunction(value)}


def test_all_names_public_things_of_this_package(module: object) -> None:
    name, names = module.__name__, module.__all__
    assert module.__doc__, f"no docstring at the top of {name}: write what the module holds, in one line"
    repeated = sorted({each for each in names if names.count(each) > 1})
    assert not repeated, f"{name}.__all__ repeats {repeated}: leave one of each"
    private = [each for each in names if each.startswith("_")]
    assert not private, f"{name}.__all__ has the private names {private}: take them out, or rename them"
    absent = [each for each in names if not hasattr(module, each)]
    assert not absent, f"{name}.__all__ has {absent}, which {name} lacks: import or define them there"
    homes = {each: value.__module__ for each, value in exported(module).items()}
    foreign = {each: home for each, home in homes.items() if not home.startswith((FOREIGN.get(each, name), *ROOMS))}
    assert not foreign, f"{name}.__all__ has names of other modules, {foreign}: export them there only"


def test_everything_exported_is_documented(module: object) -> None:
    faults = [
        fault
        for name, value in exported(module).items()
        if value.__module__.startswith("eqlayers")  # the docstrings of others are not ours to change
        for fault in faults_of(f"{module.__name__}.{name}", value, module.__name__.rpartition(".")[2] in WITH_EXAMPLES)
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def faults_of(name: str, value: object, with_example: bool) -> list[str]:
    """Parts that the docstring of a public name lacks, and their fixes; a docstring that is missing lacks one thing."""
    if not has_docstring(value):
        return [f"no docstring of {name}: write one line that says what it does"]
    text, faults = inspect.getdoc(value) or "", []
    head, *rest = text.split("\n")
    if not head.rstrip().endswith((".", ":")) or (rest and rest[0].strip()):
        faults.append(
            f"no summary in the docstring of {name}: its first line must be one sentence, with an empty line below"
        )
    if not with_example or is_dataclass(value) or "an example: :func:" in text:  # of another function of the family
        return faults
    if not re.search(r"^Examples?:$", text, re.MULTILINE):
        faults.append(
            f"no `Example:` in the docstring of {name}: add this heading, and below it lines with >>> that run"
        )
    elif ">>> " not in text:
        faults.append(f"no line with >>> below `Example:` in the docstring of {name}: add a call and what it gives")
    return faults


def has_docstring(value: object) -> bool:
    """True for a docstring of its own: a dataclass or a NamedTuple without one gets its signature instead."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return bool(text) and not text.startswith((f"{value.__name__}(", "Alias for field"))


def documented(text: str | None) -> Callable[[], None]:
    def function() -> None: ...

    function.__doc__ = text
    return function


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "no docstring of eqlayers.nn.New: write one line"),
        ("", "no docstring of eqlayers.nn.New: write one line"),
        ("Does\nmuch.\n\nExample:\n    >>> 1\n    1", "no summary in the docstring of eqlayers.nn.New"),
        ("Does much\n\nExample:\n    >>> 1\n    1", "no summary in the docstring of eqlayers.nn.New"),
        ("Does much.", "no `Example:` in the docstring of eqlayers.nn.New"),
        ("Does much.\n\n>>> 1\n1", "no `Example:` in the docstring of eqlayers.nn.New"),
        (
            "Does much.\n\nExample:\n    1 is 1.",
            "no line with >>> below `Example:` in the docstring of eqlayers.nn.New",
        ),
        ("Does much.\n\nExample:\n    >>> 1\n    1", None),
        ("Does much; an example: :func:`old`.", None),
    ],
)
def test_a_message_names_what_a_docstring_lacks(text: str | None, fault: str | None) -> None:
    faults = faults_of("eqlayers.nn.New", documented(text), with_example=True)
    assert [each[: len(fault or "")] for each in faults] == ([] if fault is None else [fault])


def documented_modules() -> list[str]:
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    return re.findall(r"^```\{names\} (\S+)$", pages, re.MULTILINE)


def test_every_part_has_its_place_in_the_reference() -> None:
    """The pages take the names from `__all__`; here only the list of modules can go stale."""
    listed, parts = documented_modules(), [f"eqlayers.{part}" for part in PARTS]
    missing = [part for part in parts if part not in listed]
    assert not missing, f"no block `{{names}} MODULE` of {missing} in docs/reference: add it to the page of its topic"
    surplus = sorted({part for part in listed if part not in parts or listed.count(part) > 1})
    assert not surplus, f"docs/reference lists {surplus}, which are not there or are listed twice: leave each part once"


def test_the_reference_lists_the_top_level_names() -> None:
    listed = re.findall(r"^\| `eqlayers\.(\w+)` \|", (REFERENCE / "index.md").read_text(), re.MULTILINE)
    missing = [name for name in dir(eqlayers) if name not in listed]
    assert not missing, f"no row of {missing} in the table of docs/reference/index.md: add `| `eqlayers.NAME` | ... |`"
    surplus = sorted({name for name in listed if name not in dir(eqlayers) or listed.count(name) > 1})
    assert not surplus, f"docs/reference/index.md lists {surplus}, which `import eqlayers` does not give once"
