"""Compiles C source text and loads the shared object: finds the compiler, tests its flags, and uses the cache."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ... import waiting
from ..run.threads import PerProcess
from . import cache as disk

#: Put before a function that Python calls; all others stay inside the shared object.
EXPORT = '__attribute__((visibility("default")))'

_CC = os.fsencode("CC") if os.name == "posix" else "CC"  # as os.environ holds it
NEEDED_FLAGS = ("-O3", "-std=c11", "-fPIC", "-fvisibility=hidden")
# The parts of -ffast-math that help sums of products, without the wrong ones: NaN and inf stay. Neither -ffast-math
# nor -funsafe-math-optimizations may be named: gcc would link code that flushes denormals to zero in the whole process.
# One thing is left to the writer of the source: terms that cancel as written (x + y - x), or that a literal 0.0
# multiplies, may vanish together with a NaN in them. So write neither.
OPTIONAL_FLAGS = (
    "-march=native",
    *(("-mprefer-vector-width=512",) if platform.machine().lower() in ("x86_64", "amd64") else ()),  # of 512-bit CPUs
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-fno-finite-math-only",
    "-ffp-contract=fast",  # -std=c11 turns fused multiply-add off
    # passes of gcc that take four fifths of the time of long formulas, and save one load in fifty of them
    "-fno-gcse",
    "-fno-gcse-after-reload",
)
FORMAT = 1  # raise it when the meaning of a cached file changes
COMPILE_SECONDS = 600.0  # a compiler that takes longer hangs

_TRIAL = f"""{EXPORT} double eqlayers_trial(const double *x, const double *y, int n) {{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}}
"""
_locks: PerProcess[dict[str, threading.Lock]] = PerProcess(dict)
_loaded: dict[str, ctypes.CDLL] = {}  # survives a fork: a child has its parent's libraries
_tried: dict[str, Toolchain | str] = {}  # by the value of CC


class CompilerError(RuntimeError):
    """No shared object could be made or loaded: the compiler is missing, failed, was killed, or wrote nonsense."""


@dataclass(frozen=True)
class Toolchain:
    """A C compiler that works on this machine: command, version text, and the flags it accepts and refuses."""

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    refused: tuple[str, ...] = ()


def why_not() -> str | None:
    """None if C kernels can be compiled and loaded, else the reason and the fix, a phrase after the backend's name."""
    outcome = _toolchain()
    return outcome if isinstance(outcome, str) else None


def toolchain() -> Toolchain:
    """The compiler in use; CompilerError if none works, with the reason of `why_not`."""
    outcome = _toolchain()
    if isinstance(outcome, str):
        raise CompilerError(f"compiling a kernel {outcome}")
    return outcome


def load(source: str, name: str) -> ctypes.CDLL:
    """The shared object compiled from C11: from this process, from the cache on disk, or from the compiler.

    Functions are hidden unless marked with `EXPORT`, and run without Python's lock. ``name`` is a short identifier for
    files and profilers, or ValueError; CompilerError if there is no compiler, it failed, or the result cannot be
    loaded.
    """
    return load_many((source,), name)


def load_many(sources: Sequence[str], name: str) -> ctypes.CDLL:
    """Load translation units, compiled side by side and linked into one shared object; errors as of `load`.

    A function that one unit calls in another is declared ``extern`` there; it needs no `EXPORT`.
    """
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(f"expected an identifier as the name of a kernel, got {name!r}; use letters, digits and _")
    if isinstance(sources, str) or not sources:
        raise ValueError(f"expected a non-empty sequence of C sources, got {sources!r}; pass load_many([source], name)")
    return _load(tuple(sources), name, toolchain())


def built(sources: Sequence[str], name: str, tools: Toolchain) -> bytes:
    """The bytes of the shared object of translation units, from the cache on disk or from the compiler."""
    key = _key(tuple(sources), name, tools)
    payload = disk.payload_of(key)
    if payload is None:
        with waiting.compilation(disk.location):
            payload = _compile(tuple(sources), name, tools)
        with suppress(OSError):
            disk.store(key, payload)
    return payload


def _load(sources: tuple[str, ...], name: str, tools: Toolchain) -> ctypes.CDLL:
    key = _key(sources, name, tools)
    library = _loaded.get(key)
    if library is None:
        with _locks.get().setdefault(key, threading.Lock()):
            library = _loaded.get(key)
            if library is None:
                library = _loaded[key] = _from_cache(key) or _from_compiler(key, sources, name, tools)
    return library


def _key(sources: tuple[str, ...], name: str, tools: Toolchain) -> str:
    """The name of a shared object in the cache: a hash of all that decides its bytes and whether they run here."""
    content = [FORMAT, sources, name, tools.command, tools.version, tools.flags, _machine()]
    return f"{name}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()}"


@cache
def _machine() -> str:
    """Processor and C library as text: they decide what -march=native means and what a shared object links to."""
    facts = [platform.machine(), *platform.libc_ver()]
    prefixes = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU")
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if not line.strip() and len(facts) > 3:
                    break  # the first processor stands for all
                if line.startswith(prefixes):
                    facts.append(line.strip())
    except OSError:
        facts.append(platform.processor())
    return "\n".join(facts)


def _from_cache(key: str) -> ctypes.CDLL | None:
    path = disk.find(key)
    if path is None:
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # another process removed it meanwhile, or a changed system cannot load it: build it anew
        return None


def _from_compiler(key: str, sources: tuple[str, ...], name: str, tools: Toolchain) -> ctypes.CDLL:
    with waiting.compilation(disk.location):
        payload = _compile(sources, name, tools)
    try:
        with disk.loadable(key, payload) as path:
            return ctypes.CDLL(str(path))
    except OSError as error:
        disk.discard(key)
        raise CompilerError(
            f"expected a shared object that can be loaded from {tools.command[0]}, got: {error}; if the folder is on a "
            "disk mounted noexec, or full, set EQLAYERS_CACHE_DIR (or TMPDIR) to another one"
        ) from error


def _compile(sources: tuple[str, ...], name: str, tools: Toolchain) -> bytes:
    """The bytes of the shared object. File names inside are relative, so that equal sources give equal bytes."""
    link = (*tools.command, *tools.flags, "-shared", "-o", f"{name}.so")
    units = [name] if len(sources) == 1 else [f"{name}_{i}" for i in range(len(sources))]
    try:
        with tempfile.TemporaryDirectory(prefix="eqlayers-") as folder:
            for unit, source in zip(units, sources, strict=True):
                Path(folder, f"{unit}.c").write_text(source)
            if len(units) == 1:
                _call((*link, f"{name}.c", "-lm"), folder)
            else:
                steps = [(*tools.command, *tools.flags, "-c", "-o", f"{unit}.o", f"{unit}.c") for unit in units]
                with ThreadPoolExecutor(min(len(steps), waiting.cores())) as side_by_side:
                    list(side_by_side.map(lambda step: _call(step, folder), steps))
                _call((*link, *(f"{unit}.o" for unit in units), "-lm"), folder)
            payload = Path(folder, f"{name}.so").read_bytes()
    except OSError as error:
        raise CompilerError(f"expected {tools.command[0]} to write {name}.so, got: {error}; check TMPDIR") from error
    if not payload.startswith(b"\x7fELF"):
        raise CompilerError(
            f"expected a shared object from {tools.command[0]}, got {len(payload)} bytes of something else; set CC"
        )
    return payload


def _call(command: Sequence[str], folder: str | None = None, seconds: float = COMPILE_SECONDS) -> str:
    """Runs `command` and returns what it printed; raises CompilerError unless it succeeds."""
    shown = shlex.join(command)
    environment = {**os.environ, "LC_ALL": "C"}
    with tempfile.TemporaryFile() as log:  # not a pipe: a grandchild that outlives its parent would keep it open
        try:
            with waiting.slot():
                status = subprocess.run(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=seconds,
                ).returncode
        except subprocess.TimeoutExpired as error:
            raise CompilerError(
                f"expected `{shown}` to end within {seconds:.0f} s, it did not; set CC to another compiler"
            ) from error
        log.seek(0)
        printed = log.read().decode(errors="replace").strip()
    if status < 0:
        raise CompilerError(
            f"expected `{shown}` to succeed, it was killed by signal {-status} "
            f"({signal.strsignal(-status)}); is there enough memory? {printed}".strip()
        )
    if status:
        raise CompilerError(
            f"expected `{shown}` to succeed, it failed with status {status}; set CC to a working gcc or clang. "
            f"It printed: {printed[-4000:] or 'nothing'}"
        )
    return printed


def requested() -> str:
    """The command in the environment variable ``CC``, or ''; a toolchain is cached for each value of it."""
    environment = getattr(os.environ, "_data", None)  # read in every call of a layer: `get` raises and catches
    return "" if environment is not None and _CC not in environment else os.environ.get("CC", "").strip()


def _toolchain() -> Toolchain | str:
    named = requested()
    if named in _tried:
        return _tried[named]
    with _locks.get().setdefault("toolchain", threading.Lock()):
        if named not in _tried:
            _tried[named] = _try_compiler(named)
        return _tried[named]


def _try_compiler(named: str) -> Toolchain | str:
    """The tested compiler for ``named``, the value of CC (may be empty); or why there is none."""
    try:
        words = shlex.split(named)
    except ValueError as error:
        return f"needs a C compiler: expected a command in CC, got {named!r} ({error}); correct CC, or unset it"
    for program in words[:1] or ("cc", "gcc", "clang"):
        path = shutil.which(program)
        if path is not None:
            break
    else:
        if named:
            return f"needs a C compiler: CC is {named!r}, and there is no such program; correct CC, or unset it"
        return "needs a C compiler: found none of cc, gcc, clang; install gcc (or clang), or set CC"
    command = (os.path.abspath(path), *words[1:])  # compilers run in another folder
    settled = {word.partition("=")[0] for word in words[1:]}  # what CC says of itself: the last flag would win
    optional = (flag for flag in OPTIONAL_FLAGS if flag.partition("=")[0] not in settled)
    try:
        version = _call((*command, "--version"), seconds=60.0)
        return _try_flags(Toolchain(command, version, (*NEEDED_FLAGS, *optional)))
    except (CompilerError, OSError) as error:
        return f"needs a working C compiler: {error}"


def _try_flags(tools: Toolchain) -> Toolchain:
    """`tools` with the flags that it accepts, found by compiling a trial; cached trials start no compiler."""

    def takes(flags: tuple[str, ...]) -> Toolchain:
        candidate = Toolchain(tools.command, tools.version, flags)
        _load((_TRIAL,), "eqlayers_trial", candidate)
        return candidate

    try:
        return takes(tools.flags)
    except CompilerError:
        takes(NEEDED_FLAGS)  # if this fails too, it is not the flags
    accepted, refused = list(NEEDED_FLAGS), []
    for flag in tools.flags[len(NEEDED_FLAGS) :]:
        try:
            takes((*accepted, flag))
            accepted.append(flag)
        except CompilerError:
            refused.append(flag)
    warnings.warn(
        f"expected {tools.command[0]} to accept {' '.join(refused)}, it does not; kernels are compiled without, and "
        "may be slower. Set CC to a recent gcc or clang",
        RuntimeWarning,
        stacklevel=2,
    )
    return Toolchain(tools.command, tools.version, tuple(accepted), tuple(refused))
