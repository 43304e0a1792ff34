"""Writes a potential as a native program, a file that needs neither Python nor torch."""

from __future__ import annotations

import copy
import dataclasses
import os
import platform
import re
import shutil
import struct
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from eqlayers_kernels.c.build import compiler as toolchain

from ..core.backends.registry import as_backend_error
from ..core.checks import check_choice, check_dtype, check_path, check_type
from ..core.errors import BackendError, ConfigError
from ..core.files.read_write import atomic_write, check_output
from .compiler import Compiler
from .program import CProgram, graph_of

if TYPE_CHECKING:
    from ..models import Potential

#: Version of the files, as in eqlayers.h.
VERSION = 3
#: The end of a file before its checksum; see ``eqlayers_footer`` in eqlayers.h.
FOOTER = struct.Struct("<8sIIIIqqqqd120qI")
MAGIC = b"eqlayers"
#: Dtypes of programs.
DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: Target -> flag of the compiler.
TARGETS = {
    "native": "-march=native",
    "avx2": "-march=x86-64-v3",
    "avx512": "-march=x86-64-v4",
    "aarch64": "-march=armv8-a",
}
#: The compiler for aarch64 on other processors.
CROSS = "aarch64-linux-gnu-gcc"
#: Macro of the compiler -> bit of the instructions that a file needs.
INSTRUCTIONS = {"__AVX2__": 1, "__AVX512F__": 2}


class Deployed(NamedTuple):
    """A program that was written.

    Attributes:
        path: The file.
        size: Bytes.
        steps: Number of steps by kind: forms, products of matrices, loops over elements, sorts of edges.
        kernels: Number of kernels.
        seconds: Of tracing and compiling.
        target: The processors that it runs on.
        undivided: Why processes cannot share a structure, and threads do not; empty if they can.
    """

    path: Path
    size: int
    steps: dict[str, int]
    kernels: int
    seconds: float
    target: str
    undivided: str = ""

    def __str__(self) -> str:
        steps = ", ".join(f"{count} {kind}" for kind, count in self.steps.items())
        whole = f"; it needs the whole structure, for {self.undivided}" if self.undivided else ""
        return (
            f"{self.path}: {self.size / 1e6:.1f} MB for {self.target}; steps: {steps}; {self.kernels} kernels; "
            f"{self.seconds:.1f} s{whole}"
        )


def deploy(
    potential: Potential, path: str | os.PathLike[str], dtype: torch.dtype | None = None, target: str = "native"
) -> Deployed:
    """Write the energy of a potential as one native program: a shared library with the weights.

    :class:`eqlayers.native.NativePotential` and :class:`eqlayers.Calculator` read the file, and so does C, by the
    header ``eqlayers/native/eqlayers.h``. A stranger's file runs a stranger's code.

    Args:
        potential: Of the energy; in evaluation mode, whatever its mode is.
        path: File to be written, such as ``water.so``.
        dtype: float32 or float64, of vectors and slopes; None for the potential's.
        target: Processors: 'native' for this one's instructions, 'avx2', 'avx512' or 'aarch64'.

    Raises:
        ConfigError: The network cannot be traced, or has an operator that no program has; with its name. Or it predicts
            no energy.
        BackendError: There is no C compiler, or none for aarch64.

    Example:
        >>> import tempfile
        >>> from eqlayers.models import NequIP, Potential
        >>> potential = Potential(NequIP([1], hidden="4x0e + 4x1o", lmax=1, layers=1), species=[1])
        >>> made = deploy(potential, f"{tempfile.mkdtemp()}/hydrogen.so")
        >>> made.path.name, "form" in made.steps
        ('hydrogen.so', True)
    """
    from ..models import Potential

    began = time.perf_counter()
    check_type("potential", potential, Potential, "a Potential", "Load it with load_potential.")
    file = check_output(check_path("path", path), "path", (".so",), "Name it 'water.so', for one.")
    check_choice("target", target, TARGETS)
    dtype = potential.dtype if dtype is None else check_dtype("dtype", dtype)
    if dtype not in DTYPES.values():
        raise ConfigError(f"dtype must be float32 or float64 for a native program, got {dtype}. Pass one of both.")
    with as_backend_error():
        tools = _tools(target)
        program = program_of(potential, dtype)
        library = toolchain.built(program.units(), "potential", tools)
        needed = _instructions(tools)
    content = _with_constants(library, program, potential, dtype, needed)
    with atomic_write(file) as writer:
        writer.write(content)
    steps = dict(Counter(step.kind for step in program.steps))
    seconds = time.perf_counter() - began
    return Deployed(file, len(content), steps, len(program.kernels), seconds, target, program.stages.undivided)


def _tools(target: str) -> toolchain.Toolchain:
    """The compiler for a target, with its flags."""
    tools = toolchain.toolchain()
    flags = tuple(TARGETS[target] if flag == TARGETS["native"] else flag for flag in tools.flags)
    if target != "aarch64" or platform.machine() == "aarch64":
        return dataclasses.replace(tools, flags=flags)
    command = shutil.which(CROSS)
    if command is None:
        raise BackendError(
            f"target 'aarch64' needs {CROSS}, and there is no such program; install it: "
            "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
        )
    flags = tuple(flag for flag in flags if not flag.startswith("-mprefer-vector-width"))
    return dataclasses.replace(tools, command=(command,), flags=flags)


def program_of(potential: Potential, dtype: torch.dtype) -> CProgram:
    """The program of a copy on the CPU in evaluation mode, in C; errors as of :func:`deploy`."""
    return CProgram(Compiler(graph_of(copy.deepcopy(potential).to(device="cpu", dtype=dtype).eval())))


def _with_constants(library: bytes, program: CProgram, potential: Potential, dtype: torch.dtype, needed: int) -> bytes:
    """The bytes of a file: library, constants, facts and checksum."""
    constants = program.constants_as_bytes.tobytes()
    start = -(-len(library) // 64) * 64
    species = sorted(potential.species)
    facts = (MAGIC, VERSION, dtype.itemsize, needed, len(species), len(library), start, len(constants))
    numbers = species + [0] * (120 - len(species))
    footer = FOOTER.pack(*facts, 0, potential.cutoff, *numbers, 0)
    content = library + bytes(start - len(library)) + constants + footer
    return content + struct.pack("<I", zlib.crc32(content))


def _instructions(tools: toolchain.Toolchain) -> int:
    """The bits of the instructions that the compiler may use."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "empty.c").write_text("")
        shown = toolchain._call((*tools.command, *tools.flags, "-dM", "-E", "empty.c"), folder)
    defined = set(re.findall(r"#define (\w+)", shown))
    return sum(bit for macro, bit in INSTRUCTIONS.items() if macro in defined)
