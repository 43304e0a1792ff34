"""The conditions of a measurement: machine, versions, commit and date."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..arguments import check_threads
from ..errors import ConfigError
from ..files import cpu_model, source_commit

PACKAGES = (
    "eqlayers",
    "torch",
    "e3nn",
    "numpy",
    "triton",
    "cuequivariance",
    "cuequivariance-torch",
    "openequivariance",
    "nequip",
    "mace-torch",
    "symmetrix-xl",
)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed(package: str) -> str | None:
    """The version of a package; None if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_device(name: str, what: str) -> torch.device:
    """The device that a configuration names.

    Raises:
        ConfigError: It is a GPU, and torch finds none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"a CUDA or HIP device was expected for {what!r}, torch finds none. "
            f"Run it on a machine with a GPU, or take a configuration for the CPU such as 'cpu'."
        )
    return torch.device(name)


def release(device: torch.device) -> None:
    """Give back a GPU's memory that nothing uses, so that what is measured next finds it."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def keep_random_state(device: torch.device) -> AbstractContextManager[None]:
    """A block that leaves the random numbers of the CPU and of the device as they were."""
    return torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.type == "cuda" else [])


def describe(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Machine, versions, commit and date, for the head of a result.

    Example:
        >>> sorted(describe())
        ['commit', 'date', 'machine', 'versions']
    """
    device = torch.device(device)
    machine: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": _cores(),
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
    return {
        "machine": machine,
        # torch says which build it is, its package does not
        "versions": {
            "python": platform.python_version(),
            **{name: installed(name) for name in PACKAGES},
            "torch": str(torch.__version__),
        },
        "commit": source_commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run with that many threads of torch; None leaves their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else check_threads("threads", count))
    try:
        yield
    finally:
        torch.set_num_threads(before)
