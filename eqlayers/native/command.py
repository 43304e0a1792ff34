"""The command `eqlayers deploy`: write a potential as a native program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cli.arguments import ArgumentParser, add_classes
from ..models import load_potential
from .files import DTYPES, TARGETS, deploy


def run(args: Sequence[str]) -> int:
    """Run the command.

    Returns:
        Exit status 0.
    """
    parser = ArgumentParser(
        prog="eqlayers deploy",
        description="Write a potential as a native program: one file that C reads without Python and torch.",
        epilog="The header for C is eqlayers/native/eqlayers.h. A file is code: open files of people that you trust.",
    )
    parser.add_argument("model", metavar="MODEL", help="the file of a potential")
    parser.add_argument("-o", "--output", required=True, metavar="OUTPUT", help="the program, such as water.so")
    parser.add_argument("--dtype", choices=DTYPES, help="of vectors and slopes; the potential's if left out")
    parser.add_argument("--target", choices=TARGETS, default="native", help="processors that the program runs on")
    add_classes(parser)
    options: Any = parser.parse_args(list(args))
    potential = load_potential(options.model, classes=options.classes)
    print(f"wrote {deploy(potential, options.output, DTYPES.get(options.dtype), options.target)}")
    return 0
