"""The checks of arguments: what they take, in which type they return it, and how they name what they refuse."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eqlayers.core import checks
from eqlayers.errors import ConfigError, ShapeError
from tests.each import each

NAN = float("nan")


class WithoutRepr:
    def __repr__(self) -> str:
        raise ValueError("half built")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("5", "'5'"),
        (np.float64(5.0), "np.float64(5.0)"),
        (torch.zeros(2, 3), "a tensor [2, 3] of torch.float32"),
        (torch.zeros(1, requires_grad=True), "a tensor [1] of torch.float32 that requires a gradient"),
        (np.zeros((2, 3), int), "an array [2, 3] of int64"),
        (torch.nn.Linear(1, 1), "a module of type Linear"),
        (WithoutRepr(), "a value of type WithoutRepr"),
        (list(range(1000)), f"{str(list(range(1000)))[:100]}... of type list"),
        ("two\n  lines", r"'two\n lines'"),
    ],
)
def test_what_came_is_named_shortly(value: Any, text: str) -> None:
    assert checks.got(value) == text


@pytest.mark.parametrize("value", [True, 1, np.bool_(True)])
def test_flags(value: Any) -> None:
    assert checks.check_flag("x", value) is True
    with pytest.raises(ShapeError, match=r"^x must be True or False, got 'no'\. Pass one of the two\.$"):
        checks.check_flag("x", "no", ShapeError)


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3), np.uint8(3)])
def test_integers(value: Any) -> None:
    found = checks.check_integer("x", value, 3)
    assert (found, type(found)) == (3, int)
    with pytest.raises(ConfigError, match=r"^x must be a width, at least 4, got .*3.*\. Use 4 or more\.$"):
        checks.check_integer("x", value, 4, what="a width")


@pytest.mark.parametrize(
    "value", [3.0, "3", True, np.bool_(True), torch.tensor(3.0), torch.tensor(True), [3], None, 3j]
)
def test_what_is_no_integer(value: Any) -> None:
    assert not checks.is_integer(value)
    with pytest.raises(ConfigError, match="x must be an integer, at least 0, got"):
        checks.check_integer("x", value, 0)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2), Fraction(2), torch.tensor(2.0), np.array(2)])
def test_numbers(value: Any) -> None:
    found = checks.check_number("x", value, above=1)
    assert (found, type(found)) == (2.0, float)
    assert checks.check_number("x", value, at_least=2) == 2.0
    with pytest.raises(ConfigError, match=r"^x must be a finite number above 2, got .*\. Use"):
        checks.check_number("x", value, above=2)
    with pytest.raises(ConfigError, match=r"^x must be a finite number of at least 3 eV, got .*\. Look\.$"):
        checks.check_number("x", value, at_least=3, unit=" eV", fix="Look.")


@each(
    "value",
    [NAN, np.inf, -np.inf, "2", True, None, [2.0], 2j, torch.ones(1), torch.tensor(True), 10**400, np.bool_(True)],
)
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="x must be a finite number, got"):
        checks.check_number("x", value)


def test_a_number_with_a_gradient_is_refused_not_cut_off() -> None:
    with pytest.raises(ConfigError, match=r"a positive number, got tensor\(2\., requires_grad=True\)\. Use"):
        checks.check_number("x", torch.tensor(2.0, requires_grad=True), above=0)


@pytest.mark.parametrize("value", [(1, 2), [1, 2], range(1, 3), np.array([1, 2]), {1, 2}, iter([1, 2])])
def test_items(value: Any) -> None:
    assert list(checks.check_items("x", value, "a list", "Pass one.")) == [1, 2]


@pytest.mark.parametrize("value", ["ab", b"ab", {"a": 1}, 1, None, torch.tensor(1), np.array(1)])
def test_what_has_no_items(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^x must be a list, got .*\. Pass one\.$"):
        checks.check_items("x", value, "a list", "Pass one.")


def test_paths() -> None:
    assert checks.check_path("x", Path("a")) == checks.check_path("x", "a") == "a"
    for value in ("", None, 1, ["a"]):
        with pytest.raises(ConfigError, match="x must be a path, got"):
            checks.check_path("x", value)
