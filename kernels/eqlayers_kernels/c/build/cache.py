"""Compiled kernels on disk: one file each, named by content, private to the user, written in one step.

A file is its payload followed by a trailer with a checksum of name and payload (a shared object may end in bytes that
no header mentions), so that one rename publishes both. Processes need no lock: two that build the same kernel write
equal files, and the last rename wins. What is damaged, foreign or open to others' writing is never returned, only
rebuilt.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

LIMIT_BYTES = 512 * 2**20  # the least recently used kernels go first
STALE_SECONDS = 3600.0  # a temporary file older than this was left by a process that died

_MAGIC = b"eqlayers-kernel1"
_TRAILER = len(_MAGIC) + hashlib.sha256().digest_size
_ENTRY = re.compile(r"\w+-[0-9a-f]{64}\.so", re.ASCII)
_TEMPORARY = ".tmp-"
_log = logging.getLogger(__name__)
_allowance: dict[Path, int] = {}  # bytes that this process may write into a folder before it counts the files again
_warned: set[str] = set()  # folders whose error was reported; a forked child does not repeat it


@dataclass(frozen=True)
class Info:
    """The state of the cache: folder, number of kernels, their size and the limit in bytes, and an error, if any."""

    directory: str
    entries: int
    size: int
    limit: int
    problem: str | None


def directory() -> Path:
    """The folder of compiled kernels; it need not exist. OSError without ``EQLAYERS_CACHE_DIR`` or a home directory."""
    named = os.environ.get("EQLAYERS_CACHE_DIR")
    if named:
        return Path(os.path.abspath(os.path.expanduser(named))) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # its specification says to ignore a relative one
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise OSError("expected a home directory for the cache, found none; set EQLAYERS_CACHE_DIR")
    return Path(base) / "eqlayers" / "kernels"


def _refusal(status: os.stat_result, is_expected: bool, expected: str) -> str | None:
    """Why a file or folder with this ``status`` cannot be trusted, or None.

    ``expected`` is 'a file' or 'a folder', for the message; ``is_expected`` whether it is one.
    """
    if not is_expected:
        return f"expected {expected}, found something else"
    if status.st_uid != os.geteuid():
        return f"expected {expected} of user {os.geteuid()}, it belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"expected {expected} that only its owner can write, its mode is {stat.S_IMODE(status.st_mode):o}"
    return None


def check_parents(path: Path) -> None:
    """PermissionError if any user could replace a folder above a path; only owners replace entries of /tmp."""
    for whole in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        inner, outer = whole, os.path.dirname(whole)
        while inner != outer:
            with suppress(FileNotFoundError):  # a folder that is made later
                mode = os.stat(outer).st_mode
                sticky = mode & stat.S_ISVTX and os.lstat(inner).st_uid in (0, os.geteuid())
                if mode & stat.S_IWOTH and not sticky:
                    raise PermissionError(f"any user can replace {inner}, as the mode of {outer} is {mode & 0o7777:o}")
            inner, outer = outer, os.path.dirname(outer)


def opened(path: Path) -> tuple[BinaryIO, str | None]:
    """Open a file that is no link: the file, and why it cannot be trusted or None."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(descriptor, "rb")  # noqa: SIM115 the caller closes it
    status = os.fstat(file.fileno())
    return file, _refusal(status, stat.S_ISREG(status.st_mode), "a file")


def _check_folder(folder: Path) -> None:
    check_parents(folder)
    status = os.stat(folder)
    refusal = _refusal(status, stat.S_ISDIR(status.st_mode), "a folder")
    if refusal:
        raise PermissionError(f"{refusal} ({folder})")


def _trailer(key: str, payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + b"\0" + payload).digest()


def find(key: str) -> Path | None:
    """The file stored under `key` if it is there, whole, and no other user could have written it; otherwise None."""
    try:
        folder = directory()
        _check_folder(folder)
        path = folder / f"{key}.so"
        file, refusal = opened(path)
        with file:
            content = b"" if refusal else file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.info("no cached kernel %s: %s", key, error)  # `loadable` warns if the folder cannot be used at all
        return None
    if not refusal and content[-_TRAILER:] != _trailer(key, content[:-_TRAILER]):
        refusal = "its content does not match its checksum"
    if refusal:
        _log.warning("the cached kernel %s is built anew: %s", path, refusal)
        return None
    with suppress(OSError):  # a folder that can only be read
        os.utime(path)  # used just now
    return path


def payload_of(key: str) -> bytes | None:
    """The payload that was stored under `key`, or None."""
    path = find(key)
    return None if path is None else path.read_bytes()[:-_TRAILER]


def store(key: str, payload: bytes) -> Path:
    """Writes `payload` under `key` in one step, and removes the least recently used kernels beyond the limit."""
    folder = directory()
    for outer in reversed(folder.parents):
        outer.mkdir(mode=0o755, exist_ok=True)  # whatever the mask of the process
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_folder(folder)
    path = folder / f"{key}.so"
    _write(path, payload + _trailer(key, payload))
    _allowance[folder] = _allowance.get(folder, 0) - len(payload)
    if _allowance[folder] <= 0:
        _allowance[folder] = _evict(folder, newest=path)
    return path


def _write(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)  # mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def loadable(key: str, payload: bytes) -> Iterator[Path]:
    """A block in which `payload` is a file: in the cache, else in a temporary folder; OSError if both fail."""
    try:
        path = store(key, payload)
    except OSError as error:
        _warn(error)
    else:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="eqlayers-") as folder:  # mode 0700
        path = Path(folder) / f"{key}.so"
        _write(path, payload)
        yield path


def _warn(error: OSError) -> None:
    """Warn, once per folder, that compiled kernels are not stored."""
    where = os.environ.get("EQLAYERS_CACHE_DIR", "")
    with suppress(OSError):
        where = str(directory())
    if where not in _warned:
        _warned.add(where)
        warnings.warn(
            f"expected to keep compiled kernels in {where or 'a cache folder'}, got: {error}. Kernels are compiled "
            "into a private temporary folder, in each process anew; free the space, give yourself (alone) write "
            "permission, or set EQLAYERS_CACHE_DIR to another folder",
            RuntimeWarning,
            stacklevel=2,
        )


def discard(key: str) -> None:
    """Remove the file stored under `key`, if there is one."""
    with suppress(OSError):
        (directory() / f"{key}.so").unlink()


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Time of last use, size and path of every kernel and temporary file in a folder, least recently used first."""
    listed = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # another process may have removed it
                if entry.is_file(follow_symlinks=False) and (
                    _ENTRY.fullmatch(entry.name) or entry.name.startswith(_TEMPORARY)
                ):
                    status = entry.stat(follow_symlinks=False)
                    listed.append((status.st_mtime, status.st_size, Path(entry.path)))
    return sorted(listed)


def _evict(folder: Path, newest: Path) -> int:
    """Remove the least recently used kernels beyond the limit; returns the bytes to write until the next count.

    Counting thousands of files takes as long as a compilation. A process therefore counts again when it may have
    reached the limit, or has written a sixteenth of it, because other processes write too.
    """
    files = _files(folder)
    size = sum(length for _, length, _ in files)
    stale = time.time() - STALE_SECONDS
    for used, length, path in files:
        temporary = path.name.startswith(_TEMPORARY)
        # a fresh temporary file is being written by another process
        if path != newest and (used < stale if temporary else size > LIMIT_BYTES):
            with suppress(OSError):
                path.unlink()
            size -= length
    return min(LIMIT_BYTES - size, LIMIT_BYTES // 16)


def info() -> Info:
    """The state of the cache; changes nothing."""
    where, problem = "", None
    try:
        folder = directory()
        where = str(folder)
        with suppress(FileNotFoundError):  # nothing was compiled yet
            _check_folder(folder)
    except OSError as error:
        problem = str(error)
    kernels = [length for _, length, path in _files(Path(where)) if _ENTRY.fullmatch(path.name)] if where else []
    return Info(where, len(kernels), sum(kernels), LIMIT_BYTES, problem)


def location() -> str:
    """A phrase for messages: where compiled kernels are stored, or why they are not."""
    state = info()
    return f"kept in {state.directory}" if not state.problem else f"not kept, as the folder says: {state.problem}"


def clear() -> int:
    """Removes every compiled kernel and returns their number; processes that have loaded one keep it."""
    folder, removed = directory(), 0
    try:
        _check_folder(folder)
    except FileNotFoundError:  # nothing was compiled yet
        return 0
    for _, _, path in _files(folder):
        with suppress(FileNotFoundError):
            path.unlink()
            removed += not path.name.startswith(_TEMPORARY)
    return removed
