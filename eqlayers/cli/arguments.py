"""The argparse parser of commands without a configuration, whose errors are ConfigErrors in one line."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any, NoReturn

from ..core.errors import ConfigError
from ..hints.names import nearest

# what argparse says -> what must be, what came and the fix
PATTERNS = (
    (
        r"argument (\S+?): invalid choice: (.*?) \(choose from (.*)\)$",
        lambda m, prog: f"{m[1]} must be one of {m[3].replace(chr(39), '')}, got {m[2]}. {_near(m[2], m[3])}",
    ),
    (
        r"argument (\S+?): expected (?:one|at least one) argument",
        lambda m, prog: f"{m[1]} must have a value after it, got nothing. Type `{m[1].rpartition('/')[2]} VALUE`.",
    ),
    (
        r"argument (\S+?): invalid (.*?) value: (.*)$",
        lambda m, prog: f"{m[1]} must be a {m[2]}, got {m[3]}. Correct it; `{prog} --help` explains it.",
    ),
    (
        r"the following arguments are required: (.*)$",
        lambda m, prog: f"{prog} must have {m[1]} after it, got nothing. `{prog} --help` explains it.",
    ),
    (
        r"unrecognized arguments: (\S+)",
        lambda m, prog: f"{prog} must have options that it knows, got {m[1]!r}. `{prog} --help` lists them.",
    ),
)


def _near(typed: str, known: str) -> str:
    near = nearest(typed.strip("'"), re.findall(r"[\w-]+", known))
    return f"Did you mean {near!r}?" if near else "Pick one of these."


def explain(message: str, prog: str) -> str:
    """Rewrite an error message of argparse as what must be, what was typed, and the fix.

    Args:
        message: What argparse says.
        prog: The command, for the fix.

    Example:
        >>> explain("argument command: invalid choice: 'fitt' (choose from 'fit', 'test')", "eqlayers")
        "command must be one of fit, test, got 'fitt'. Did you mean 'fit'?"
    """
    text = " ".join(message.split())
    for pattern, say in PATTERNS:
        match = re.search(pattern, text)
        if match:
            return say(match, prog)
    return f"the options of {prog} must fit together, got: {text.rstrip('.')}. `{prog} --help` explains them."


def check_threads(name: str, value: Any, at_least: int = 1) -> int:
    """A number of threads that a machine can start; OpenMP ends the process where it cannot."""
    most = max(64, 4 * (os.cpu_count() or 1))
    from ..core.checks import check_integer  # here: it imports torch, which takes longer than a help

    return check_integer(name, value, at_least, most, what="a number of threads", fix="Use the cores of this machine.")


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # here: a help needs no version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser without abbreviated options, whose errors are raised as ConfigErrors."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError with the rewritten message."""
        raise ConfigError(explain(message, self.prog))


def add_classes(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--classes`` for networks of the user's own to a parser."""
    about = "your own network in the file of the model, such as my_network.Network; it is imported. May be repeated"
    parser.add_argument("--classes", action="append", default=[], metavar="CLASS", help=about)
