"""Kernels that a step needs are compiled before it; the step itself is not changed by that."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.core.backends import BACKENDS, forms
from eqlayers.core.backends.ahead import WATCHERS, compile_ahead, instead, watched
from eqlayers.core.forms.request import Request, Runner, Sizes
from eqlayers.models import NequIP, Potential, Structures
from tests.watching import watching


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[object]]:
    """A state as in a new process; gives the kernels asked for since."""
    monkeypatch.setattr(forms, "RUNNERS", {})
    return lambda: {one for one in forms.RUNNERS if isinstance(one, Request)}


def potential() -> tuple[Potential, Structures]:
    network = NequIP([1, 8], hidden="4x0e + 4x1o", lmax=1, layers=2, cutoff=4.0, num_basis=4, radial_hidden=(8,))
    edges = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    return Potential(network, species=[1, 8]), Structures(torch.tensor([8, 1, 1]), torch.randn(3, 3), edges)


def gradients(of: Potential, given: Structures) -> tuple[Tensor, ...]:
    """Gradients of a loss of forces: second derivatives of the layers."""
    found = of(given)
    total = found["energy"].double().square().sum() + found["forces"].double().square().sum()
    return torch.autograd.grad(total, [*of.parameters()], allow_unused=True)


def test_the_step_asks_for_nothing_more(nothing_loaded: Callable[[], set[object]]) -> None:
    trained, given = potential()
    twin = copy.deepcopy(trained)
    assert compile_ahead(lambda: gradients(twin, given)) > 5
    before = nothing_loaded()
    assert before
    first = gradients(trained, given)
    assert nothing_loaded() == before, "kernels that were not compiled ahead"
    assert any(one is not None and bool(one.abs().max() > 0) for one in first)
    torch.testing.assert_close(first, gradients(trained, given))


def test_nothing_watches_afterwards_and_errors_stay_inside() -> None:
    def fails() -> None:
        assert len(WATCHERS) == 1
        raise ValueError("of a check of numbers")

    assert compile_ahead(fails) == 0
    assert not WATCHERS


def test_what_the_compiler_says_is_said_by_the_first_call(
    nothing_loaded: Callable[[], set[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqlayers.errors import BackendError

    def broken(*args: object) -> None:
        raise BackendError("the compiler failed")

    monkeypatch.setitem(BACKENDS, "cpu", replace(BACKENDS["cpu"], kernels=broken))
    trained, given = potential()
    assert compile_ahead(lambda: copy.deepcopy(trained)(given)) > 0
    with pytest.raises(BackendError, match="the compiler failed"):
        trained(given)


REQUEST = Request(None, "a form", torch.float32, torch.device("cpu"))
SIZES = Sizes(2)


@pytest.fixture
def kernels() -> Callable[[], Runner]:
    """Finds kernels that double their operands, and notes that it was asked."""

    def find() -> Runner:
        find.asked += 1  # type: ignore[attr-defined]
        return lambda operands, graph, sizes: [2 * t for t in operands]

    find.asked = 0  # type: ignore[attr-defined]
    return find


def run(find: Any) -> Sequence[Tensor]:
    return watched(REQUEST, find)([torch.ones(2)], None, SIZES)


def test_watchers_hand_on_to_one_another_and_may_change_results(kernels: Any) -> None:
    seen: list[str] = []

    def watcher(name: str) -> Any:
        def watch(request: Request, call: Any) -> list[Tensor]:
            seen.append(f"{name} of {request.key}")
            results = [t + 1 for t in call()]
            seen.append(f"{name} is done")
            return results

        return watching(watch)

    with watcher("outer"), watcher("inner"):
        assert [t.tolist() for t in run(kernels)] == [[4.0, 4.0]]
    assert seen == ["inner of a form", "outer of a form", "outer is done", "inner is done"]
    assert [t.tolist() for t in run(kernels)] == [[2.0, 2.0]]
    assert (len(seen), kernels.asked, WATCHERS) == (4, 2, [])


def test_kernels_are_found_when_a_watcher_asks_for_them(kernels: Any) -> None:
    """Some find no kernel at all: what stands in its place has the arguments of the call."""
    calls: list[Any] = []
    with instead(lambda request, find, *call: calls.append((request, *call)) or []):
        assert run(kernels) == []
    assert kernels.asked == 0
    ((request, operands, graph, sizes),) = calls
    assert (request, graph, sizes) == (REQUEST, None, SIZES)
    assert operands[0].tolist() == [1.0, 1.0]


def test_an_error_ends_the_watching(kernels: Any) -> None:
    with pytest.raises(ZeroDivisionError), watching(lambda request, call: 1 // 0):
        run(kernels)
    assert WATCHERS == []
    assert [t.tolist() for t in run(kernels)] == [[2.0, 2.0]]
