"""Every layer of the list has every property, or its row says why not."""

import importlib
from pathlib import Path

import pytest
import torch

import eqlayers.nn as nn

from .cases import Case
from .page import page
from .properties import PROPERTIES

#: Modules of this folder that list layers.
LISTS = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if "\nCASES = [" in p.read_text())
CASES: list[Case] = [case for name in LISTS for case in importlib.import_module(f"{__package__}.{name}").CASES]


def has(case: Case, name: str) -> bool:
    """Whether the property is one that the layer could have."""
    return not (name == "e3nn" and case.e3nn is None) and not (name == "layouts" and len(case.layouts) == 1)


#: What further rows of a class have in the slow tests only.
COMPILERS = ("torch.compile", "torch.export", "torch.func")
FIRST = {case.name.partition(",")[0]: case.name for case in reversed(CASES)}
#: What takes seconds for each, and what further classes of a family have in the slow tests only.
LONGEST, FIRST_OF_FAMILY = ("torch.compile", "torch.export"), {case.family: case.name for case in reversed(CASES)}


def is_slow(case: Case, name: str) -> bool:
    """Whether `make test` leaves it out."""
    further = FIRST[case.name.partition(",")[0]] != case.name
    in_family = FIRST_OF_FAMILY[case.family] != case.name
    return name in case.slow or (further and name in (*COMPILERS, "derivatives")) or (in_family and name in LONGEST)


def check(case: Case, name: str) -> None:
    """One property of one layer."""
    if name not in case.lacks:
        PROPERTIES[name](case)
        return
    with pytest.raises(Exception):  # noqa: B017, PT011 -- a row that says it lacks what it has is wrong, too
        PROPERTIES[name](case)


def check_all(case: Case, slow: bool, subtests: pytest.Subtests) -> None:
    """Every property that the layer could have; the report names each that fails."""
    for name in PROPERTIES:
        if has(case, name) and is_slow(case, name) == slow:
            with subtests.test(name):
                torch.manual_seed(0)
                check(case, name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_properties(case: Case, subtests: pytest.Subtests) -> None:
    check_all(case, False, subtests)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_slow_properties(case: Case, subtests: pytest.Subtests) -> None:
    check_all(case, True, subtests)


def test_rows_are_of_layers_that_there_are() -> None:
    names = [case.name for case in CASES]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"rows with the names {twice} are there twice: say after a comma what is special of one"
    for case in CASES:
        name, unknown = case.name.partition(",")[0], sorted({*case.lacks, *case.slow} - set(PROPERTIES))
        assert hasattr(nn, name), f"eqlayers.nn has no {name}, which a row names: export it, or take out the row"
        assert not unknown, f"the row `{case.name}` names the properties {unknown}; there are {list(PROPERTIES)}"
        assert case.family, f"no `family=` in the row `{case.name}`: name the heading of its table in the catalogue"


def test_the_page_of_the_list_is_that_of_the_list() -> None:
    stored = Path(__file__).parents[2] / "docs" / "reference" / "catalogue.md"
    if stored.read_text() != page(CASES):
        pytest.fail("run `python -m tests.catalogue.page docs/reference/catalogue.md`", pytrace=False)


def test_every_property_says_what_is_tested() -> None:
    """The page shows it."""
    silent = [name for name, check in PROPERTIES.items() if not (check.__doc__ or "").strip()]
    assert not silent, f"no docstring of the checks of {silent} in tests/catalogue/properties.py: write one line"
