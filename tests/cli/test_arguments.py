"""Commands without a configuration answer wrong words in one line: what must be, what came, and the fix."""

from __future__ import annotations

import os

import pytest

from eqlayers.cli.arguments import ArgumentParser, check_threads, explain
from eqlayers.errors import ConfigError
from tests.each import each


def parser() -> ArgumentParser:
    made = ArgumentParser(prog="eqlayers")
    commands = made.add_subparsers(dest="command", required=True)
    relax = commands.add_parser("relax")
    relax.add_argument("structures", metavar="STRUCTURES")
    relax.add_argument("-m", "--model", metavar="MODEL", required=True)
    relax.add_argument("--fmax", type=float)
    relax.add_argument("--optimizer", choices=["fire", "bfgs"])
    group = relax.add_mutually_exclusive_group()
    group.add_argument("--short", action="store_true")
    group.add_argument("--long", action="store_true")
    return made


@each(
    "words, message",
    [
        ("relaxe", "command must be one of relax, got 'relaxe'. Did you mean 'relax'?"),
        ("xyz", "command must be one of relax, got 'xyz'. Pick one of these."),
        ("", "eqlayers must have command after it, got nothing. `eqlayers --help` explains it."),
        ("relax a.xyz", "eqlayers relax must have -m/--model after it, got nothing. `eqlayers relax"),
        ("relax a.xyz -m", "-m/--model must have a value after it, got nothing. Type `--model VALUE`."),
        ("relax a.xyz -m b --fmax ten", "--fmax must be a float, got 'ten'. Correct it; `eqlayers relax"),
        ("relax a.xyz -m b --optimizer fir", "--optimizer must be one of fire, bfgs, got 'fir'. Did you mean 'fire'?"),
        ("relax a.xyz -m b --fma 3", "eqlayers must have options that it knows, got '--fma'. `eqlayers --help`"),
        (
            "relax a.xyz -m b --short --long",
            "the options of eqlayers relax must fit together, got: argument --long: not allowed with argument",
        ),
    ],
)
def test_what_argparse_dislikes_is_an_error_with_a_fix(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parser().parse_args(words.split())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_complaints_of_every_python_are_known() -> None:
    """Newer releases put no quotes around choices."""
    for choices in ("'fit', 'test'", "fit, test"):
        said = explain(f"argument command: invalid choice: 'fitt' (choose from {choices})", "eqlayers")
        assert said == "command must be one of fit, test, got 'fitt'. Did you mean 'fit'?"


def test_threads_are_no_more_than_a_machine_can_start() -> None:
    most = max(64, 4 * (os.cpu_count() or 1))
    assert check_threads("threads", most) == most
    assert check_threads("threads", 0, at_least=0) == 0
    for wrong in (0, most + 1, 1.5, True):
        with pytest.raises(ConfigError, match=r"threads must be a number of threads, .*got .*\. Use the cores"):
            check_threads("threads", wrong)
