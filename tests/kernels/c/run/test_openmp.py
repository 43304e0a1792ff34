"""The threads of torch run kernels, unless they are gone or have waited for a processor."""

import ctypes
import threading

import pytest

from eqlayers_kernels.c.run import openmp


@pytest.mark.parametrize(
    ("busy", "lost", "pauses"),
    [(10**6, 2 * 10**6, True), (10**7, 2 * 10**6, False), (10**4, 10**5, False), (0, 0, False)],
)
def test_a_short_wait_beside_the_work_is_none(
    monkeypatch: pytest.MonkeyPatch, busy: int, lost: int, pauses: bool
) -> None:
    """The pool is for calls that a thread without a processor makes longer than its absence would."""
    pause: dict[str, float] = {}
    monkeypatch.setattr(openmp, "_pause", pause)
    openmp.note(busy, lost, 2)
    assert bool(pause) == pauses


def test_the_team_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that was forked has no team: its threads are in the parent alone."""
    now = [100.0]
    monkeypatch.setattr(openmp, "_pause", {})
    monkeypatch.setattr(openmp.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(openmp, "_entry", lambda: print)
    assert openmp.parallel() is print
    openmp.note(busy=0, lost=openmp.PATIENCE + 1, workers=2)
    assert openmp.parallel() is None
    now[0] += 0.9 * openmp.PAUSE
    assert openmp.parallel() is None
    now[0] += 0.1 * openmp.PAUSE
    assert openmp.parallel() is print
    monkeypatch.setattr(openmp, "_imported_in", openmp._imported_in + 1)
    assert openmp.parallel() is None


def test_every_thread_of_the_team_calls_the_function_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_pause", {})
    team = openmp.parallel()
    if team is None:
        pytest.skip("torch is not linked to an OpenMP runtime with GNU's entry point")
    calls: list[tuple[int, int]] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: calls.append((data, threading.get_native_id())))
    team(ctypes.cast(function, ctypes.c_void_p).value, 77, 3, 0)
    assert [data for data, _ in calls] == [77] * 3
    assert len({thread for _, thread in calls}) == 3
    assert 0 < openmp.clock() <= openmp.clock()
