"""Notices that kernels are compiled, and the number of compilers that run at a time."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from eqlayers_kernels import waiting
from eqlayers_kernels.c.build import cache as disk
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.run.threads import PerProcess


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)


class Told:
    """A listener that remembers, and can be waited for."""

    def __init__(self):
        self.calls, self.event = [], threading.Event()

    def __call__(self, done, started, location):
        self.calls.append((done, started))
        self.event.set()


def test_a_listener_is_told_while_the_compiler_runs(at_once):
    reported = Told()
    with waiting.listening(reported), waiting.compilation(str):
        assert reported.event.wait(60)
        with waiting.compilation(str):
            pass
    assert reported.calls == [(0, 1), (0, 2), (1, 2), (2, 2)]


def test_short_compilations_are_not_told(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE", 3600.0)
    reported = Told()
    with waiting.listening(reported), waiting.compilation(str):
        pass
    assert reported.calls == []


def test_seconds_add_up(monkeypatch):
    """Many short compilations are a long wait; a listener counts from its own beginning."""
    count = waiting._Count(lambda done, started, location: None)
    monkeypatch.setattr(waiting.time, "monotonic", iter([10.0, 11.5, 20.0, 21.0]).__next__)
    for _ in range(2):
        count.begin(str)
        count.end()
    assert count.seconds == 2.5


def test_a_library_call_logs_one_line(at_once, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_logged", PerProcess(list))
    monkeypatch.setattr(waiting, "_counts", PerProcess(lambda: [waiting._Count(waiting._log_once)]))
    said = threading.Event()
    monkeypatch.setattr(waiting._log, "warning", lambda text: (logging.getLogger().warning(text), said.set()))
    for _ in range(2):
        with waiting.compilation(str):
            assert said.wait(60)
            with waiting.compilation(str):
                pass
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["compiling kernels, once"]


def test_the_sentence_names_number_and_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path))
    assert waiting.sentence(disk.location, 34) == f"compiling 34 kernels, once; kept in {tmp_path / 'kernels'}"
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    assert "not kept, as the folder says: expected a folder that only its owner can write" in waiting.sentence(
        disk.location
    )


def test_a_kernel_is_a_compilation(tmp_path, monkeypatch):
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_loaded", {})
    compiler.toolchain()
    source = compiler.EXPORT + " int answer_of_waiting(void) { return 42; }"
    for found in (1, 0):  # from the compiler, then from the folder
        compiler._loaded.clear()
        with waiting.listening(Told()):
            assert compiler.load(source, "answer").answer_of_waiting() == 42
            assert waiting._counts.get()[-1].started == waiting._counts.get()[-1].done == found


def test_no_more_compilers_than_processors(monkeypatch):
    monkeypatch.setattr(waiting, "_slots", PerProcess(lambda: threading.Semaphore(2)))
    running, most, lock, both = [0], [0], threading.Lock(), threading.Barrier(2)

    def compile_one(number):
        with waiting.slot():
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            both.wait(60)
            with lock:
                running[0] -= 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(compile_one, range(6)))
    assert most == [2]
