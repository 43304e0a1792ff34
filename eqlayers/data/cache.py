"""Files that can be made again: written atomically, checked when read, rebuilt with a warning if not to be trusted."""

from __future__ import annotations

import hashlib
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqlayers.core.files.archives import open_arrays
from eqlayers.core.files.read_write import atomic_write
from eqlayers_kernels.c.build.cache import check_parents, directory, opened

from ..core.errors import EqlayersWarning

Arrays = dict[str, NDArray[Any]]
# Errors of NumPy and zipfile for a file that is truncated, overwritten, or of another kind.
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
_KEY = "cache_key"


def user_cache_dir() -> Path:
    """Folder for caches of data without a folder of its own, beside the folder of compiled kernels.

    `$EQLAYERS_CACHE_DIR`, else `$XDG_CACHE_HOME/eqlayers`, else `~/.cache/eqlayers`.
    """
    return directory().parent


def content_key(*parts: object) -> str:
    """SHA-256 of arrays (dtype, shape and content) and of the text of anything else."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def cached_arrays(path: Path, key: str, build: Callable[[], Arrays], problem: Callable[[Arrays], str | None]) -> Arrays:
    """Read arrays from a cache, or build them and write the cache.

    A cache with another key, one that is damaged, one that another user could have written, and one that `problem`
    objects to are rebuilt, each with a warning that says so. If the folder cannot be written, the arrays are used
    without a cache, with a warning.
    """
    if path.exists():
        try:
            check_parents(path)
            handle, reason = opened(path)
            with handle:
                if reason is None:
                    with open_arrays(handle) as file:
                        arrays = {name: file[name] for name in file.files}
                    stored_key = str(arrays.pop(_KEY))
                    reason = "it was made from other data or settings" if stored_key != key else problem(arrays)
        except UNREADABLE as error:
            reason = f"it cannot be read ({type(error).__name__}: {error})"
        if reason is None:
            return arrays
        warnings.warn(f"the cache {path} is not used and made again: {reason}", EqlayersWarning, stacklevel=2)
    arrays = build()
    try:
        check_parents(path)
        with atomic_write(path) as file:
            np.savez(file, **{_KEY: np.array(key)}, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(
            f"the cache {path} cannot be written ({error}): its content is made again at every start; "
            "set cache_dir to a folder that you alone can write",
            EqlayersWarning,
            stacklevel=2,
        )
    return arrays
