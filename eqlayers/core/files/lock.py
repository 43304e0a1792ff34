"""The lock on a folder of a run or on a trajectory: one process at a time, whatever host it runs on."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..errors import ConfigError

#: File in the folder of a run that is being trained, with its process and host.
LOCK = ".lock"


@contextmanager
def locked(place: Path, trajectory: bool = False) -> Iterator[None]:
    """Keep others out of a folder, or off a trajectory; folders are made, and removed again if nothing came into them.

    The kernel frees the lock when the process ends, in whatever way, so that a file that is left behind locks nothing.
    It is a lock of ``fcntl.lockf``: NFS hands it to its server, and processes on all hosts see it, unless a host mounts
    the folder with ``nolock`` or ``local_lock``. Where a file system has no locks, a line says so, and the run goes on.
    """
    path = place.with_name(f".{place.name}{LOCK}") if trajectory else place / LOCK
    one, fix = ("a trajectory", "run another --output") if trajectory else ("the folder of a run", "run another --name")
    made = [folder for folder in path.parents if not folder.exists()]
    file = _taken(path, f"{one} must have one run at a time, got {place}", fix)
    try:
        yield
    finally:
        with file, suppress(OSError):
            path.unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()  # unless it holds something


def _taken(path: Path, problem: str, fix: str) -> IO[str]:
    """The file of the lock; it is open as long as the lock is held."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+")
        except FileNotFoundError:  # another fit, which has just ended, removed the folder
            continue
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                with file:
                    holder = " ".join(file.read(200).split()) or "another process"
                raise ConfigError(f"{problem}, where {holder} writes. Wait for its end, or give this {fix}.") from None
            print(f"run: {path} cannot be locked ({error.strerror}): keep other runs off yourself", flush=True)
        if os.fstat(file.fileno()).st_nlink:  # its owner has not just removed it
            file.truncate()
            print("process", os.getpid(), "on host", platform.node(), file=file, flush=True)
            return file
        file.close()
