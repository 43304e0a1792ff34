"""Every public layer has a row in the list, or a reason why not."""

import importlib
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

import eqlayers.nn as nn

from .test_layers import CASES, LISTS

ROOT = Path(__file__).resolve().parents[2]
TABLES = "tests/layers/radial/test_radial_table.py"
#: Public layers without a row: the reason, and the file that tests them instead.
WITHOUT_ROW = {
    "RadialBasis": ("a base class, and each basis that derives from it has a row", "tests/bad_calls/radial.py"),
    "RadialTable": ("an interpolation of another network, to a tolerance", TABLES),
    "TabledBasis": ("an interpolation of another basis, which networks take", TABLES),
}


def public_layers() -> dict[str, type[torch.nn.Module]]:
    """The classes of layers that `eqlayers.nn` exports."""
    layers = {name: getattr(nn, name) for name in nn.__all__}
    return {n: value for n, value in layers.items() if isinstance(value, type) and issubclass(value, torch.nn.Module)}


def class_of(row: str) -> str:
    """The name of a row up to its comma."""
    return row.partition(",")[0]


def files_of(home: str) -> list[str]:
    """The files with rows of layers of the same module, which are the place of one more; all files if there is none."""
    beside = {name for name, value in public_layers().items() if value.__module__ == home}
    lists = {stem: importlib.import_module(f"{__package__}.{stem}").CASES for stem in LISTS}
    stems = [stem for stem, cases in lists.items() if beside & {class_of(case.name) for case in cases}]
    return [f"tests/catalogue/{stem}.py" for stem in stems or LISTS]


def without_row(rows: Collection[str], reasons: Collection[str] = tuple(WITHOUT_ROW)) -> list[str]:
    """A fix for every public layer that the rows do not name."""
    named = {class_of(row) for row in rows}
    return [
        f"eqlayers.nn.{name} has no row in the list of layers. Add `row(partial(nn.{name}, ...), ...)` to CASES in "
        f"{' or '.join(files_of(layer.__module__))}, then run "
        f"`python -m tests.catalogue.page docs/reference/catalogue.md`. docs/development/add_a_layer.md shows a row."
        for name, layer in public_layers().items()
        if name not in named and name not in reasons
    ]


def not_exported(rows: Collection[str], names: Collection[str]) -> list[str]:
    """Advice for every row of a layer that `eqlayers.nn` does not export."""
    return [
        f"{name} has a row in the list of layers, and no place in __all__ of eqlayers.nn. Add it to `__all__` in "
        f"eqlayers/nn.py. docs/development/add_a_layer.md shows both lines."
        for name in dict.fromkeys(map(class_of, rows))
        if name not in names
    ]


def test_every_row_is_of_a_public_layer() -> None:
    if missing := not_exported([case.name for case in CASES], nn.__all__):
        pytest.fail("\n".join(missing), pytrace=False)
    (message,) = not_exported(["Norm, of lengths", "Unknown"], nn.__all__)
    assert message.startswith("Unknown has a row")


def test_every_public_layer_has_a_row() -> None:
    if missing := without_row([case.name for case in CASES]):
        pytest.fail("\n".join(missing), pytrace=False)


def test_a_row_that_is_gone_is_missed() -> None:
    """Guards the test above: the message names the layer, and a file that exists."""
    for name in {class_of(case.name) for case in CASES} & public_layers().keys():
        rows = [case.name for case in CASES if class_of(case.name) != name]
        (message,) = (text for text in without_row(rows) if text.startswith(f"eqlayers.nn.{name} has no row"))
        places = message.partition("to CASES in ")[2].partition(", then")[0].split(" or ")
        assert [place for place in places if not (ROOT / place).is_file()] == [], message


def test_the_file_of_the_relatives_is_named() -> None:
    rows = [case.name for case in CASES if class_of(case.name) != "RMSNorm"]
    (message,) = without_row(rows)
    assert "tests/catalogue/norms.py" in message
    assert "tests/catalogue/radial.py" not in message


@pytest.mark.parametrize("name", WITHOUT_ROW)
def test_exceptions_are_needed_and_tested_elsewhere(name: str) -> None:
    reason, tests = WITHOUT_ROW[name]
    assert reason
    assert name in public_layers(), f"eqlayers.nn has no layer {name}: take it out of WITHOUT_ROW"
    assert name not in {class_of(case.name) for case in CASES}, f"{name} has a row: take it out of WITHOUT_ROW"
    assert name in (ROOT / tests).read_text(), f"{tests} does not test {name}: name the file that does in WITHOUT_ROW"
