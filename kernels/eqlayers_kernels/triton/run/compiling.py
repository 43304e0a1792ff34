"""Compiles kernels ahead of their launch, several at a time, and plans again what does not compile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ... import waiting
from ..errors import KernelError
from ..print import tuning
from .passes import without_slow_pass

#: Characters of a compiler's error that ours repeats; its last words say most.
MOST_WORDS = 300


class KernelCall(NamedTuple):
    """One launch, ready to run or to compile."""

    kernel: Any
    grid: tuple[int]
    args: tuple[Any, ...]
    meta: dict[str, Any]


class Planned(Protocol):
    """A request with kernels that can be planned for another processor."""

    on: tuning.Processor
    compiled: set[torch.device]

    def plan_for(self, on: tuning.Processor) -> None:
        """Cut into kernels that take no more than a limit."""


def threads(jobs: int | None = None) -> int:
    """Kernels that may be compiled at a time here: one for AMD, whose compiler Triton calls unsafe in threads."""
    from triton.runtime import driver

    if driver.active.get_current_target().backend == "hip":
        return 1
    return max(1, jobs or os.cpu_count() or 1)


def kept() -> str:
    """The folder in which Triton keeps compiled kernels, in a few words."""
    from triton import knobs

    return f"kept in {knobs.cache.dir}"


def compile_calls(
    calls: Sequence[KernelCall], device: torch.device | None = None, jobs: int | None = None
) -> Iterator[Any]:
    """Compile launches at the same time, which Triton allows; ``device`` is None inside :func:`.aot.target`."""

    def warm(call: KernelCall) -> Any:
        on = torch.cuda.device(device) if device is not None else nullcontext()  # every thread has its own
        with on, without_slow_pass(), waiting.compilation(kept):
            return call.kernel.warmup(*call.args, grid=call.grid, **call.meta)

    at_once = min(threads(jobs), max(1, len(calls)))
    if at_once == 1:
        yield from map(warm, calls)
        return
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(warm, calls)


def launched(runner: Planned, like: Tensor, prepare: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Buffers, after the launches that fill them; ``prepare`` gives both. KernelError if a kernel does not compile."""

    def different() -> list[KernelCall]:
        """One launch of each kernel; it may take several."""
        return list({id(call.kernel): call for call in prepare()[-1]}.values())

    new = like.is_cuda and like.device not in runner.compiled
    if new and compile_or_plan_again(runner, different, like.device):
        runner.compiled.add(like.device)
    *buffers, calls = prepare()
    for call in calls:
        call.kernel[call.grid](*call.args, **call.meta)
    return tuple(buffers)


def compile_or_plan_again(runner: Planned, calls: Callable[[], Sequence[KernelCall]], device: torch.device) -> bool:
    """Compile and load what a runner launches, if need be with fewer registers; or KernelError with the first reason.

    The result says whether there was anything to compile: without rows there is nothing to launch.
    """
    first: Exception | None = None
    for on in tuning.attempts(runner.on):
        if on is not runner.on:
            runner.plan_for(on)
        made = calls()  # operands and results: too little memory for these is another matter
        try:
            for kernel in list(compile_calls(made, device)):
                _ = kernel.run  # loads it
            return bool(made)
        except Exception as error:  # of ptxas, of LLVM, of the driver
            first = first or error
    words = " ".join(str(first).split())
    raise KernelError(f"{type(first).__name__}: {words[-MOST_WORDS:]}") from first
