"""Timing of calls in alternation and by part, peak memory, and facts about machine, versions and commit."""

from __future__ import annotations

import gc
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..cli.arguments import check_threads
from ..core.errors import ConfigError
from ..core.forms.description import describe as describe_form
from ..core.forms.description import split_key
from ..core.machine import cpu_model, source_commit
from ..core.memory import release_memory
from ..core.torch_internals import TorchDispatchMode

Call = Callable[[], Any]
#: Size of a buffer whose write empties a GPU's last-level cache.
FLUSH_BYTES = 2**30
#: Duration of writes relative to the host time of a call, so that launches are issued meanwhile; largest number.
COVER, MOST_WRITES = 1.5, 200
COPY_BYTES = {"cpu": 256 * 2**20, "cuda": 2**30}
#: Resolution of resident memory in bytes; smaller peaks are not compared.
RESOLUTION = 2**20
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PACKAGES = (
    *("eqlayers", "torch", "e3nn", "numpy", "triton", "cuequivariance", "cuequivariance-torch", "openequivariance"),
    *("nequip", "mace-torch", "symmetrix-xl"),
)


# -- time -------------------------------------------------------------------------------------------------------------


def flush_buffer(device: torch.device) -> torch.Tensor:
    """The buffer that :func:`alternate` writes to empty a GPU's cache; empty on a CPU."""
    return torch.empty(FLUSH_BYTES if device.type == "cuda" else 0, dtype=torch.uint8, device=device)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(call: Call, device: torch.device, flush: torch.Tensor | None, host: bool, writes: int = 1) -> float:
    if device.type != "cuda" or host:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        synchronize(device)
        return seconds
    if flush is not None:
        for _ in range(writes):
            flush.zero_()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    call()
    events[1].record()
    synchronize(device)
    return events[0].elapsed_time(events[1]) / 1000


def _writes(call: Call, device: torch.device, flush: torch.Tensor | None) -> int:
    """Number of writes of the buffer that take longer than the host needs to issue a call."""
    if flush is None or device.type != "cuda":
        return 1
    host = max(_seconds(call, device, None, host=True) for _ in range(3))
    write = min(_seconds(flush.zero_, device, None, host=False) for _ in range(3))
    return min(MOST_WRITES, max(1, math.ceil(COVER * host / write)))


def alternate(
    calls: Sequence[Call],
    runs: int,
    device: torch.device | str = "cpu",
    *,
    warmup: int = 2,
    flush: torch.Tensor | None = None,
    host: bool = False,
) -> list[list[float]]:
    """Time several calls in alternation: one run of each in every round, in a fixed order.

    Disturbances by other programs then affect all calls alike.

    Args:
        calls, runs: The calls, and the number of timed runs of each.
        device: On 'cuda', time between events on an idle stream is measured, launches included.
        warmup: Number of untimed runs before.
        flush: On 'cuda', buffer of :func:`flush_buffer` that is written before each run while the host issues the call:
            it empties the cache and hides launches.
        host: Measure only the time until a call returns.

    Returns:
        Seconds, ``[calls][runs]``.

    Example:
        >>> [len(times) for times in alternate([lambda: 1, lambda: 2], 3)]
        [3, 3]
    """
    device = torch.device(device)
    for _ in range(warmup):
        for call in calls:
            call()
    synchronize(device)
    writes = [_writes(call, device, flush) for call in calls]
    rounds = [
        [_seconds(call, device, flush, host, count) for call, count in zip(calls, writes, strict=True)]
        for _ in range(runs)
    ]
    return [[times[n] for times in rounds] for n in range(len(calls))]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and the 20 % and 80 % quantiles.

    Example:
        >>> summary([3.0, 1.0, 2.0])
        {'median': 2.0, 'q20': 1.4, 'q80': 2.6}
    """
    low, middle, high = (round(float(q), 12) for q in np.quantile(np.asarray(values), (0.2, 0.5, 0.8)))
    return {"median": middle, "q20": low, "q80": high}


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """Quantiles of the ratio ``theirs / ours`` of each round.

    Example:
        >>> ratio([4.0, 6.0, 6.0], [2.0, 2.0, 3.0])["median"]
        2.0
    """
    return summary([a / b for a, b in zip(theirs, ours, strict=True)])


def copy_bandwidth(device: torch.device | str = "cpu", runs: int = 15) -> dict[str, float]:
    """Bytes per second of ``torch.Tensor.copy_`` between two large buffers, read and written bytes added up."""
    device = torch.device(device)
    size = COPY_BYTES[device.type]
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    (seconds,) = alternate([lambda: target.copy_(source)], runs, device)
    return summary([2 * size / s for s in seconds])


# -- time by part ------------------------------------------------------------------------------------------------------


#: Purposes of kernels of this package.
KERNELS = ("convolutions", "contraction", "harmonics", "tables", "gates")
PRODUCTS, OTHERS, HOST = "matrix products", "other operators", "host"
PARTS = (*KERNELS, PRODUCTS, OTHERS, HOST)
#: Name of an operand or result of a formula -> its purpose; other formulas are gates.
_PURPOSE_BY_NAME = {"harmonics": "harmonics", "place": "tables", "coefficients": "contraction"}
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot")


def purpose_of_form(key: str) -> str:
    """Purpose of a kernel by its key of :mod:`eqlayers.core.forms.keys`; one of ``KERNELS``."""
    base = describe_form(split_key(key)[0]).form
    if base.family != "formula":
        return "convolutions"  # and products without a graph
    names = {tensor.name for tensor in (*base.operands, *base.results)}
    return next((purpose for name, purpose in _PURPOSE_BY_NAME.items() if name in names), "gates")


class Parts(NamedTuple):
    """Shares of the time of a call, and its number of operators."""

    shares: dict[str, float]  # part of PARTS -> share; the sum is 1
    operators: int  # number of operators called below autograd


class OperatorClock(TorchDispatchMode):
    """Mode that counts and times operators below autograd, and counts kernels of this package."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.operators, self.kernels = dict.fromkeys(PARTS, 0.0), 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func.name().partition("::")
        part = PRODUCTS if name.partition(".")[0] in _PRODUCTS else OTHERS
        if space == "eqlayers":
            part = purpose_of_form(args[5]) if name == "form" else "convolutions"  # tables of a graph
        device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), torch.device("cpu"))
        synchronize(device)
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        synchronize(device)
        self.seconds[part] += time.perf_counter() - start
        self.operators, self.kernels = self.operators + 1, self.kernels + (space == "eqlayers")
        return result


def time_by_part(call: Call) -> Parts:
    """Shares of the time of a call by part, and its number of operators; all calls must do the same.

    Operators are timed one by one below autograd; the rest is the host's: Python, autograd and the dispatcher. Kernels
    compiled by torch.compile are counted as host.

    Example:
        >>> x = torch.ones(300, 300)
        >>> shares, operators = time_by_part(lambda: x @ x)
        >>> 0 < shares["matrix products"] <= 1 and abs(sum(shares.values()) - 1) < 1e-9, operators
        (True, 1)
    """
    call()
    clock = OperatorClock()
    with clock:
        call()
    start = time.perf_counter()
    call()
    clock.seconds[HOST] = max(0.0, time.perf_counter() - start - sum(clock.seconds.values()))
    total = sum(clock.seconds.values())
    return Parts({part: seconds / total for part, seconds in clock.seconds.items()}, clock.operators)


# -- memory -----------------------------------------------------------------------------------------------------------


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def refusal(device: torch.device) -> str | None:
    """Reason why peak memory cannot be measured on a device, or None."""
    if device.type == "cuda":
        return None
    try:
        _RESET.write_text("5")
    except OSError as error:
        return f"the peak of resident memory cannot be reset here ({error}); Linux with /proc/self/clear_refs can"
    return None


def peak_extra(call: Call, device: torch.device | str = "cpu", repeats: int = 3) -> int:
    """Peak memory of a call in bytes, beyond the memory in use before: the median of several calls.

    On a CPU it is the growth of resident memory, to about a megabyte, after free memory of the allocator was released;
    memory kept from earlier calls does not count. On a GPU it is the peak of torch's allocator.

    Example:
        >>> extra = peak_extra(lambda: torch.ones(4_000_000))
        >>> refusal(torch.device("cpu")) is not None or 15e6 < extra < 20e6
        True
    """
    device = torch.device(device)
    call()  # warm-up
    peaks = []
    for _ in range(repeats):
        gc.collect()
        if device.type == "cuda":
            synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            results = call()
            synchronize(device)
            peaks.append(torch.cuda.max_memory_allocated(device) - before)
        else:
            release_memory()
            _RESET.write_text("5")
            before = _resident("VmRSS")
            results = call()
            peaks.append(_resident("VmHWM") - before)
        del results
    return max(0, sorted(peaks)[len(peaks) // 2])


def free_memory(device: torch.device | str = "cpu") -> int | None:
    """Available memory in bytes; None if the system does not report it."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def release(device: torch.device) -> None:
    """Release unused memory of a GPU's caching allocator."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


# -- the machine ------------------------------------------------------------------------------------------------------


def installed(package: str) -> str | None:
    """Version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_device(name: str, what: str) -> torch.device:
    """The device of a configuration; raises without a GPU for 'cuda'."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"a CUDA or HIP device was expected for {what!r}, torch finds none. "
            f"Run it on a machine with a GPU, or take a configuration for the CPU such as 'cpu'."
        )
    return torch.device(name)


def keep_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Context manager that restores the random states of CPU and device."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.type == "cuda" else [])


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Context manager: a number of threads of torch, or None to keep it."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else check_threads("threads", count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Machine, versions, commit and date, for the head of a result.

    Example:
        >>> sorted(describe())
        ['commit', 'date', 'machine', 'versions']
    """
    device = torch.device(device)
    machine: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        machine |= {
            "gpu": facts.name,
            "gpu_memory": facts.total_memory,
            "multiprocessors": facts.multi_processor_count,
            "runtime": f"CUDA {torch.version.cuda}" if torch.version.hip is None else f"HIP {torch.version.hip}",
        }
    versions = {"python": platform.python_version(), **{name: installed(name) for name in PACKAGES}}
    return {
        "machine": machine,
        "versions": versions | {"torch": str(torch.__version__)},  # with its build
        "commit": source_commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
