"""What a result was measured on: machine, versions, commit and date."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

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
)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _commit() -> str | None:
    """The commit of the source tree, with '-dirty' if it was changed; None for an installed package."""
    if _git("ls-files", "--error-unmatch", __file__) is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def describe(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Machine, versions, commit and date, for the head of a result.

    Example:
        >>> sorted(describe())
        ['commit', 'date', 'machine', 'versions']
    """
    device = torch.device(device)
    machine: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return {
        "machine": machine,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": _commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run with that many threads of torch; None leaves their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
