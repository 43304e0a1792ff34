"""Watchers of a block see every call of a form, the innermost last, and none sees a call behind the block."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.core.backends.recording import WATCHERS, instead, watched
from eqlayers.core.forms.request import Request, Runner, Sizes
from tests.watching import watching

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
