"""The lock on the folder of a run: one fit at a time, whatever host it runs on."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..core.errors import ConfigError

#: File in the folder of a run that is being trained, with its process and host.
LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other fits out of a folder, which is made if need be, and removed again if nothing came into it.

    The kernel frees the lock when the process ends, in whatever way, so that a file that is left behind locks nothing.
    It is a lock of ``fcntl.lockf``: NFS hands it to its server, and fits on all hosts see it, unless a host mounts the
    folder with ``nolock`` or ``local_lock``. Where a file system has no locks, a line says so, and the fit goes on.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    file = _taken(folder)
    try:
        yield
    finally:
        with file, suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
            for one in made:
                one.rmdir()  # unless it holds something


def _taken(folder: Path) -> IO[str]:
    """The file of the lock; it is open as long as the lock is held."""
    path = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+")
        except FileNotFoundError:  # another fit, which has just ended, removed the folder
            continue
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                with file:
                    holder = " ".join(file.read(200).split()) or "another process"
                raise ConfigError(
                    f"the folder of a run must have one fit at a time, got {folder}, where {holder} trains. Wait for "
                    "its end, stop it, or give this run another name with --name."
                ) from None
            print(f"run: {folder} cannot be locked ({error.strerror}): keep other fits out of it yourself", flush=True)
        if os.fstat(file.fileno()).st_nlink:  # its owner has not just removed it
            file.truncate()
            print("process", os.getpid(), "on host", platform.node(), file=file, flush=True)
            return file
        file.close()
