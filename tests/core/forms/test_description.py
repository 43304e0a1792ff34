"""Descriptions know their derivatives under keys, and forms the rows that layers call them with."""

import copy
import pickle

import pytest
import torch

import eqlayers as eq
from eqlayers.core.backends.operands import shape_of
from eqlayers.core.forms.description import KNOWN, ROW_MAPS, Description, Form, describe, text_of
from eqlayers.core.forms.request import Sizes
from eqlayers.errors import ConfigError


@pytest.fixture
def form() -> Form:
    found: Form = eq.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)]).plan.form
    return found


def test_a_description_is_made_once_under_its_key(form: Form) -> None:
    steps: dict[str, Description] = {
        "/mseod": form.with_rows("src", "each", "one", "dst"),
        "/t4:1": form.tabled(4, 1),
        "/g1:110": form.vjp((True,), (True, True, False)),
        "/a101": form.jvp((True, False, True)),
    }
    for step, one in steps.items():
        assert one.key == form.key + step
        assert describe(one.key) is one is KNOWN[one.key]
    assert form.tabled(4, 1) is steps["/t4:1"]
    assert steps["/g1:110"].vjp((True, True), (True,) * 4).key.endswith("/g1:110/g11:1111")


def test_the_key_and_the_text_name_one_form(form: Form) -> None:
    text = text_of(f"{form.key}/mseod")
    assert describe(text).form == describe(f"{form.key}/mseod").form
    assert describe(form.text).key == form.text != form.key


@pytest.mark.parametrize("step", ["/g1:11", "/a1", "/mseo", "/t4:0", "/t1:4", "/t17:1", "/q", "/g2:110"])
def test_a_step_that_the_form_has_not(form: Form, step: str) -> None:
    with pytest.raises(ConfigError, match=r"must have the derivative that its key names, got '" + step[1:]):
        describe(form.key + step)


def test_an_unknown_key() -> None:
    with pytest.raises(ConfigError, match="must be built before it is run, got the key 'ffffffffffffffff'"):
        describe("ffffffffffffffff/g1:1")


def test_calls_of_layers_are_those_of_equal_programs(form: Form) -> None:
    other = Form(form.program)
    assert other.calls == form.calls
    assert {how: call.form.rows for how, call in form.calls.items()} == ROW_MAPS  # type: ignore[union-attr]
    assert form.calls[True, False].key == f"{form.key}/mseed"


def test_copies_and_pickles_of_a_form(form: Form) -> None:
    assert copy.deepcopy(form) is form
    again = pickle.loads(pickle.dumps(form))
    assert (again.key, again.program) == (form.key, form.program)


def test_the_shape_of_an_operand_follows_from_sizes(form: Form) -> None:
    sizes = Sizes(6, 3, 4, 9)
    shapes = [shape_of(one, sizes) for one in form.tabled(4, 1).form.operands]
    assert shapes == [(3, 2), (6, 3), (9, 2), (6, 4)]
    assert shape_of(form.calls[True, True].form.operands[2], sizes) == (2,)


def test_a_request_names_the_form(form: Form) -> None:
    request = form.request(torch.float64, torch.device("cpu"))
    assert (request.key, request.form, request.backend) == (form.key, form.form, "")
    assert request == Form(form.program).request(torch.float64, torch.device("cpu"))
