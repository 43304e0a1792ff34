"""Compiles kernels before their launch, several at a time; if one fails, plans again for fewer registers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ... import waiting
from ..print import tuning

#: Characters of a compiler's error that our error repeats, from its end.
MOST_WORDS = 300
_NAME = "add_coalesce_async_copy"
_here = threading.local()
_lock = threading.Lock()


class KernelError(RuntimeError):
    """A kernel does not compile or cannot be loaded, also when planned for fewer registers."""


class KernelCall(NamedTuple):
    """One launch of a Triton kernel: grid, arguments and options."""

    kernel: Any
    grid: tuple[int]
    args: tuple[Any, ...]
    meta: dict[str, Any]


class Planned(Protocol):
    """A runner whose kernels can be planned again for fewer registers."""

    on: tuning.Processor
    compiled: set[torch.device]

    def plan_for(self, on: tuning.Processor) -> None:
        """Divide the computation into kernels that fit the resources ``on``."""


def threads(jobs: int | None = None) -> int:
    """Number of kernels to compile at a time: one for AMD, whose compiler is not thread-safe."""
    from triton.runtime import driver

    if driver.active.get_current_target().backend == "hip":
        return 1
    return max(1, jobs or os.cpu_count() or 1)


def location() -> str:
    """A phrase for messages: where Triton stores compiled kernels."""
    from triton import knobs

    return f"kept in {knobs.cache.dir}"


def compile_calls(
    calls: Sequence[KernelCall], device: torch.device | None = None, jobs: int | None = None
) -> Iterator[Any]:
    """Compile several launches in threads; ``device`` is None inside :func:`.aot.target`."""

    def warm(call: KernelCall) -> Any:
        on = torch.cuda.device(device) if device is not None else nullcontext()  # every thread has its own
        with on, without_slow_pass(), waiting.compilation(location):
            return call.kernel.warmup(*call.args, grid=call.grid, **call.meta)

    at_once = min(threads(jobs), max(1, len(calls)))
    if at_once == 1:
        yield from map(warm, calls)
        return
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(warm, calls)


def launched(runner: Planned, like: Tensor, prepare: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Run the launches of ``prepare()``, and return its buffers; KernelError if a kernel does not compile."""

    def different() -> list[KernelCall]:
        """One launch of each kernel, of which there may be several."""
        return list({id(call.kernel): call for call in prepare()[-1]}.values())

    new = like.is_cuda and like.device not in runner.compiled
    if new and compile_or_plan_again(runner, different, like.device):
        runner.compiled.add(like.device)
    *buffers, calls = prepare()
    for call in calls:
        call.kernel[call.grid](*call.args, **call.meta)
    return tuple(buffers)


def compile_or_plan_again(runner: Planned, calls: Callable[[], Sequence[KernelCall]], device: torch.device) -> bool:
    """Compile and load the kernels of a runner, False if there are none; KernelError if fewer registers fail too."""
    first: Exception | None = None
    for on in tuning.attempts(runner.on):
        if on is not runner.on:
            runner.plan_for(on)
        kernel_calls = calls()  # allocates results: an out-of-memory error here is not one of the compiler
        try:
            for kernel in list(compile_calls(kernel_calls, device)):
                _ = kernel.run  # loads it
            return bool(kernel_calls)
        except Exception as error:  # of ptxas, of LLVM, of the driver
            first = first or error
    words = " ".join(str(first).split())
    raise KernelError(f"{type(first).__name__}: {words[-MOST_WORDS:]}") from first


@contextmanager
def without_slow_pass() -> Iterator[None]:
    """A block in which this thread compiles without one slow pass, which does not change printed kernels.

    ``TritonGPUCoalesceAsyncCopy`` looks at every copy into shared memory; its time grows faster than their number (97 %
    of mace-first's gradients). Every copy of a printed kernel is of consecutive elements of one row already, and the
    PTX is the same without it (tests/kernels/test_ptx.py). Triton has no option for it, and its hook for stages is
    global.
    """
    _install()
    before = getattr(_here, "out", False)
    _here.out = True
    try:
        yield
    finally:
        _here.out = before


def _install() -> None:
    """Replace the slow pass of Triton's compiler, once in a process, by a function that runs it outside the block.

    Threads inside `without_slow_pass` skip it. Nothing happens in a Triton without the pass.
    """
    from triton._C import libtriton

    ttgpuir = getattr(getattr(libtriton, "passes", None), "ttgpuir", None)
    with _lock:
        original = getattr(ttgpuir, _NAME, None)
        if original is None or getattr(original, "checks_threads", False):
            return

        def add(*args: Any, **options: Any) -> None:
            if not getattr(_here, "out", False):
                original(*args, **options)

        add.checks_threads = True  # type: ignore[attr-defined]
        setattr(ttgpuir, _NAME, add)
