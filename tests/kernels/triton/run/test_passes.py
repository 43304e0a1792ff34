"""The slow pass of Triton's compiler is left out in one thread, and every other thread keeps it."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from triton._C import libtriton

from eqlayers_kernels.triton.run.passes import without_slow_pass


def test_the_pass_is_left_out_within_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    passes = SimpleNamespace(add_coalesce_async_copy=lambda name, *, stages=0: ran.append(f"{name} {stages}"))
    monkeypatch.setattr(libtriton, "passes", SimpleNamespace(ttgpuir=passes))

    def compile_here(name: str) -> None:
        passes.add_coalesce_async_copy(name, stages=3)  # as Triton looks it up

    def fail_inside() -> None:
        with without_slow_pass():
            compile_here("inside")
            with without_slow_pass():
                compile_here("further inside")
            compile_here("inside again")
            other = threading.Thread(target=compile_here, args=("another thread",))
            other.start()
            other.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    compile_here("outside")
    assert ran == ["another thread 3", "outside 3"]
    installed = passes.add_coalesce_async_copy
    with without_slow_pass():
        assert passes.add_coalesce_async_copy is installed, "each call would wrap it once more"
    monkeypatch.setattr(libtriton, "passes", SimpleNamespace(ttgpuir=SimpleNamespace()))
    with without_slow_pass():
        assert vars(libtriton.passes.ttgpuir) == {}, "a Triton without the pass"
