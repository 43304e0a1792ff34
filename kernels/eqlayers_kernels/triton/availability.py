"""Whether Triton's kernels can run in this process, and if not, why."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

from .print.tuning import PROCESSORS, Processor, processor

#: The oldest release that the kernels are tested with.
OLDEST = (3, 6)


def release() -> tuple[int, ...]:
    """Of the Triton that is there, its first two numbers."""
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2]))


@cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors: ``TRITON_INTERPRET=1`` before triton is imported."""
    if find_spec("triton") is None:
        return False
    # The mode is fixed where a kernel is decorated; the kernel says which, whatever became of the variable since.
    from triton.runtime.interpreter import InterpretedFunction

    from .segment.kernels import segment_kernel

    return isinstance(segment_kernel, InterpretedFunction)


@cache
def why_not() -> str | None:
    """None where kernels can be launched; else the reason, a phrase that follows the backend's name."""
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

    try:
        driver.active.get_current_target()
    except RuntimeError as error:
        return f"needs one active Triton driver, got: {error}"
    return None


@cache
def processor_of(device: torch.device) -> Processor:
    """What kernels may take on a device; on CPUs, where only the interpreter runs, as on an NVIDIA GPU."""
    if device.type == "cpu":
        return PROCESSORS["cuda"]
    from triton.runtime import driver

    with torch.cuda.device(device):
        target = driver.active.get_current_target()
    return processor(target.backend, target.arch, release())
