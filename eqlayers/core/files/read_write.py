"""Files that users name: read whole with errors that repeat nothing of their content, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..checks import check_path
from ..errors import ConfigError

MEBIBYTE = 2**20
JSON_LIMIT = 64 * MEBIBYTE  # bytes that are read; results of a large suite have a few million


def few(names: Sequence[str]) -> str:
    """Eight names at most for a message, and how many more there are.

    Example:
        >>> few([f"{letter}.yaml" for letter in "abcdefghij"])
        'a.yaml, b.yaml, c.yaml, d.yaml, e.yaml, f.yaml, g.yaml, h.yaml and 2 more'
    """
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def flattened(value: Any, prefix: str = "") -> dict[str, Any]:
    """The keys of nested mappings joined by dots.

    Example:
        >>> flattened({"model": {"loss": "l1", "betas": [0.9, 0.999]}, "seed": 1})
        {'model.loss': 'l1', 'model.betas': [0.9, 0.999], 'seed': 1}
    """
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix else {}
    inner = [flattened(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in value.items()]
    return {key: item for part in inner for key, item in part.items()}


def plain_name(name: Any, what: str, fix: str, kind: str = "folder") -> str:
    """Return ``name`` if it is the name of one file or folder, and not a path to one.

    Example:
        >>> plain_name("qm9_mini", "name", "Change --name.")
        'qm9_mini'
        >>> plain_name("../other", "name", "Change --name.")
        Traceback (most recent call last):
        ...
        eqlayers.errors.ConfigError: name must be one plain folder name, got '../other'. Change --name.
    """
    good = isinstance(name, str) and name not in ("", ".", "..") and name.isprintable() and name == name.strip()
    if not good or re.search(r"[/\\]", name) or len(os.fsencode(name)) > 200:
        raise ConfigError(f"{what} must be one plain {kind} name, got {name!r}. {fix}")
    return str(name)


def stays_inside(folder: Path, parent: Path, fix: str) -> None:
    """Raise if a folder is somewhere else than below another one, as a symbolic link makes it."""
    expected = parent.resolve() / os.path.relpath(folder, parent)
    if folder.resolve() != expected:
        raise ConfigError(
            f"{folder} must be a folder inside {parent}, got a symbolic link to {folder.resolve()}. {fix}"
        )


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` for writing; it gets the name `path` only if the block ends without an error.

    A reader sees the old file or the whole new one, also when the writer is killed. A symbolic link is replaced and
    not followed.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_write(folder / "a.txt") as file:
        ...     _ = file.write(b"whole")
        >>> [entry.name for entry in folder.iterdir()], (folder / "a.txt").read_bytes()
        (['a.txt'], b'whole')
    """
    path = Path(check_path("path", path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)  # a temporary file is private; the result is an ordinary one
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def check_output(
    path: str | Path, option: str, endings: Iterable[str] = (), fix: str = "Change it.", new: str | None = None
) -> Path:
    """The path of a file that can be written, asked before the work whose result it shall hold.

    ``fix`` is for another ending; a file that is there is refused with the fix ``new``.
    """
    path, known = Path(path), tuple(endings)
    if known and path.suffix not in known:
        raise ConfigError(f"{option} must end in {', '.join(known)}, got {str(path)!r}. {fix}")
    if new is not None and path.exists():
        raise ConfigError(f"{option} must be a new file, got {path}, which is there. {new}")
    try:
        if path.name in ("", "..") or path.is_dir():
            raise IsADirectoryError("that is a folder")
        if "\0" in str(path):
            raise ValueError("no name has such a character")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{option} must be a file that can be written, got {str(path)!r}: {reason}. Name another."
        ) from error
    return path


# ---- reading ------------------------------------------------------------------------------------------------------


def read_text(path: Path, what: str, fix: str, limit: int) -> str:
    """The text of a file."""
    try:
        kind = "is a folder" if path.is_dir() else None if path.exists() else "does not exist"
        if kind is None and not path.is_file():
            kind = "is a device, a pipe or a socket"
    except (OSError, ValueError) as error:  # a name that no file can have
        kind = f"is no name of a file ({getattr(error, 'strerror', None) or error})"
    if kind is not None:
        raise ConfigError(f"{what} must be a file, got {str(path)!r}, which {kind}. {fix}")
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{what} must be a file that can be read, got {path}: {error.strerror}. {fix}") from error
    if len(data) > limit:
        raise ConfigError(f"{what} must have at most {limit // MEBIBYTE} MiB, got more in {path}. {fix}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{what} must be text in UTF-8, got other bytes in {path}, line {line}. {fix}") from error


def read_json(path: Path, what: str, fix: str, error_type: Callable[[str], Exception] = ConfigError) -> Any:
    """The content of a JSON file, which no error repeats."""
    path = Path(check_path(what, path))
    try:
        return json.loads(read_text(path, what, fix, JSON_LIMIT))
    except ConfigError as error:
        raise error_type(str(error)) from None
    except json.JSONDecodeError as error:
        place = f"in {path}, line {error.lineno}: {error.msg}"
        raise error_type(f"{what} must be JSON, got {place}. {fix}") from None
    except (RecursionError, ValueError) as error:  # too deep, or a number with thousands of digits
        raise error_type(f"{what} must be JSON, got a {type(error).__name__} from {path}. {fix}") from None
