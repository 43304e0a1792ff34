"""Warnings of a command as lines for its user: `warning: ...`, each once, without a file and a line of source."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OWN = ("eqlayers", "eqlayers_kernels")


def package_of(filename: str) -> str:
    """The package that a file of Python belongs to, '' for this one.

    Example:
        >>> package_of("/usr/lib/python3/site-packages/torch/nn/modules/module.py")
        'torch'
        >>> package_of("checkout/eqlayers/data/cache.py")
        ''
    """
    parts = Path(filename).parts
    if "site-packages" in parts[:-1]:
        name = parts[len(parts) - parts[::-1].index("site-packages")].removesuffix(".py")
        return "" if name in OWN else name
    return ""


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Within the block, warnings that are not filtered out are lines on standard error."""
    said: set[str] = set()

    def show(
        message: Warning | str, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        text = " ".join(str(message).split())
        package = package_of(filename)
        if text not in said:
            said.add(text)
            print(f"warning: {f'{package}: ' if package else ''}{text}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
