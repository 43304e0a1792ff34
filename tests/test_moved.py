"""Former names of modules lead to the present ones, so that pickles of earlier versions load."""

from __future__ import annotations

import pickle
import sys
from importlib import import_module

import pytest

import eqlayers
from eqlayers import moved
from eqlayers.integrations import kinds
from tests.each import each


def test_pickles_of_replacements_name_former_modules() -> None:
    """A model that was saved with its replacements loads, whatever file of the package has their classes."""
    rows = {"modules": "AcceleratedLinear", "nonlinear": "AcceleratedGate", "contracter": "AcceleratedContracter"}
    for former, name in rows.items():
        assert getattr(import_module(f"eqlayers.integrations.{former}"), name) is getattr(kinds, name)


@each("former", moved.MOVED)
def test_a_former_module_stands_for_a_module_that_there_is(former: str) -> None:
    import_module(f"eqlayers.{former.partition('.')[0]}")  # it answers for its former modules
    module, present = sys.modules[f"eqlayers.{former}"], import_module(f"eqlayers.{moved.MOVED[former]}")
    public = next(name for name in vars(present) if not name.startswith("_") and name != "annotations")
    assert getattr(module, public) is getattr(present, public)
    assert import_module(f"eqlayers.{former}") is module


def test_a_pickle_of_a_former_module_gives_the_class_of_today() -> None:
    text = pickle.dumps(eqlayers.Linear, protocol=0)
    former = text.replace(eqlayers.Linear.__module__.encode(), b"eqlayers.nn.linear")
    assert former != text
    assert pickle.loads(former) is eqlayers.Linear


def test_tools_that_look_at_all_modules_import_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved, "import_module", lambda name: pytest.fail(f"{name} is imported"))
    former = moved.Moved("eqlayers.nn.linear")
    assert not hasattr(former, "__file__")
    assert not hasattr(former, "__wrapped__")


def test_a_name_that_the_present_module_has_not_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'eqlayers\.layers\.linear\.module' has no attribute 'Lienar'"):
        moved.Moved("eqlayers.nn.linear").Lienar  # noqa: B018
