"""Compiles kernels for GPUs that the machine does not have, and reads registers and spills of the result.

The kernels go through Triton's own just-in-time path (argument binding, specialisation, cache key), with a driver that
has a target and no device, so the result is the binary of a launch on such a GPU. Not available in a process that runs
Triton's interpreter.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from .. import availability

#: name -> (backend, architecture, lanes of a warp), as Triton's GPUTarget takes them.
TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
_DEVICES = count(1)  # Triton caches kernels per device number; each activation of a target is a new device


@dataclass(frozen=True)
class Resources:
    """The registers, spills and shared memory of one compiled kernel."""

    registers: int  # vector registers per thread
    spill_bytes: int  # bytes per thread that were moved to memory for want of registers
    shared_bytes: int  # shared memory per block


@contextmanager
def target(name: str) -> Iterator[None]:
    """A block in which Triton compiles for a row of `TARGETS`, and launches nothing."""
    if name not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {name!r}. Add a row to TARGETS.")
    if availability.interpreted():
        raise RuntimeError(
            "compiling needs a process without Triton's interpreter, got TRITON_INTERPRET=1. "
            "Compile in a subprocess whose environment has TRITON_INTERPRET=0."
        )
    from triton.runtime import driver

    before = driver._active
    driver.set_active(_driver(name))
    try:
        yield
    finally:
        driver._active = before


def _driver(name: str) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    number = next(_DEVICES)

    class TargetOnly(DriverBase):
        """A driver of Triton with a target and no device."""

        def __init__(self) -> None:
            self.target = GPUTarget(*TARGETS[name])

        @staticmethod
        def is_active() -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_current_target(self) -> Any:
            return self.target

        def get_current_device(self) -> int:
            return number

        def get_current_stream(self, device: int | None = None) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_benchmarker(self) -> Callable[..., Any]:
            raise NotImplementedError("nothing can be launched here")

    return TargetOnly()


def resources(compiled: Any) -> Resources:
    """Registers, spills and shared memory of a compiled kernel, from Triton's assembler."""
    if "ptx" in compiled.asm:
        registers, spills = _ptxas(compiled.asm["ptx"], compiled.metadata.target.arch)
    else:
        registers, spills = _amdgcn(compiled.asm["amdgcn"])
    return Resources(registers, spills, compiled.metadata.shared)


def _ptxas(ptx: str, arch: int) -> tuple[int, int]:
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"\.target (sm_\w+)", ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [
            get_ptxas(arch).path,
            "-v",
            f"--gpu-name={target[1]}",
            str(source),
            "-o",
            str(source.with_suffix(".o")),
        ]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", printed)
    used = re.search(r"Used (\d+) registers", printed)
    if used is None or not spills:
        raise RuntimeError(f"ptxas -v must report registers and spills, got: {printed!r}. Look for a changed format.")
    return int(used[1]), sum(map(int, spills))


def _amdgcn(assembly: str) -> tuple[int, int]:
    def field(name: str) -> int:
        match = re.search(rf"\.{name}:\s*(\d+)", assembly)
        if match is None:
            raise RuntimeError(f"the assembly must have a field .{name}, got none. Look for a changed format.")
        return int(match[1])

    # a vector register that is spilled takes 4 bytes; scalar registers spill into vector registers
    return field("vgpr_count"), 4 * field("vgpr_spill_count") + field("private_segment_fixed_size")
