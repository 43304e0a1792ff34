"""Whether Triton's kernels can run in this process, and if not, why."""

from __future__ import annotations

import subprocess
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from .print.tuning import PROCESSORS, Processor, processor

#: The oldest release that the kernels are tested with.
OLDEST = (3, 6)
#: Characters of an error that a reason repeats.
MOST_WORDS = 300


def release() -> tuple[int, ...]:
    """The first two numbers of the installed Triton's version."""
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2]))


@cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors: ``TRITON_INTERPRET=1`` before triton is imported."""
    if find_spec("triton") is None:
        return False
    # The mode is fixed when a kernel is decorated; the environment variable may have changed since.
    try:
        from triton.runtime.interpreter import InterpretedFunction

        from .kernels import segment_kernel
    except Exception:  # a Triton that cannot be imported; `why_not` reports the error
        return False
    return isinstance(segment_kernel, InterpretedFunction)


@cache
def why_not() -> str | None:
    """None if kernels can be launched, else the reason, a phrase that follows the backend's name.

    A machine fails in many ways: no compiler, no Python.h, no libcuda in the loader's list, half an installation.
    Triton raises whatever the failing part did, so every exception is a reason.
    """
    try:
        return _why_not()
    except Exception as error:
        return f"needs a Triton that compiles and loads kernels on this machine, got {_message(error)}"


def _why_not() -> str | None:
    if find_spec("triton") is None:
        return "needs the package triton, which is not installed; install eqlayers[triton]"
    if not interpreted() and not torch.cuda.is_available():
        return "needs a CUDA or HIP device that torch can use, or TRITON_INTERPRET=1 from the start; found none"
    import triton

    if release() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"needs Triton {oldest} or newer, got {triton.__version__}; newer builds of torch bring it"
    if interpreted():
        return None
    from triton.runtime import driver

    driver.active.get_current_target()
    _ = _smallest().run  # compiles its launcher and loads it; launches nothing
    return None


def _smallest() -> Any:
    """The smallest kernel, compiled: if it fails, every kernel would."""
    from .kernels import smallest_kernel

    return smallest_kernel.warmup(torch.float32, grid=(1,), enable_fp_fusion=True)


def _message(error: Exception) -> str:
    """The text of an exception in one line, with the fix if Python's headers are missing."""
    words = " ".join(str(error).split())
    words = f"{type(error).__name__}: {words[:MOST_WORDS]}" if words else type(error).__name__
    folder = sysconfig.get_paths()["include"]
    if isinstance(error, subprocess.SubprocessError) and not Path(folder, "Python.h").is_file():
        return f"{words}; {folder}/Python.h is not there; install Python's headers (python3-dev)"
    return words


@cache
def processor_of(device: torch.device) -> Processor:
    """The resources that kernels are planned for on a device; for CPUs (Triton's interpreter) as on an NVIDIA GPU."""
    if device.type == "cpu":
        return PROCESSORS["cuda"]
    from triton.runtime import driver

    with torch.cuda.device(device):
        target = driver.active.get_current_target()
    return processor(target.backend, target.arch, release())
