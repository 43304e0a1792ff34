"""The first page of the help of the training commands: at once, on one screen, with the options of its command."""

import re
import subprocess
import sys

import pytest

from eqlayers.cli.training_help import COMMANDS, GROUPS, asks_for_general_help, general_help, option_lines
from tests.each import each
from tests.train.test_parser import COLUMNS, LINES


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_the_general_help_is_one_page_and_there_at_once(command: str) -> None:
    code = f"import sys; from eqlayers.cli.main import main; main([{command!r}, '--help'])"
    code += "; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) <= LINES
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS
    for words in (f"eqlayers {command} --task potential --help", f"usage: eqlayers {command}", "--name NAME"):
        assert words in done.stdout
    assert ("--resume" in done.stdout) == (command == "fit")
    assert not {name.split(".")[0] for name in done.stderr.split()} & {"torch", "numpy", "lightning"}


@each("command", COMMANDS)
def test_the_help_of_a_command_has_the_options_that_both_tasks_have(command: str) -> None:
    options = general_help(command).split("options of a task")[0]
    groups = [one for one in GROUPS if command in one.commands and set(one.tasks) == {"potential", "property"}]
    wanted = [name for group in groups for name in group.options]
    assert re.findall(r"^  --(\S+)", options, re.MULTILINE) == wanted
    assert asks_for_general_help([command, "-h"])
    assert not asks_for_general_help([command, "my.yaml", "--help"])
    assert not asks_for_general_help([command])


def test_words_that_are_too_long_are_cut_before_the_default() -> None:
    options = {"short": ("N", "few words"), "a" * 60: ("VALUE", "many words " * 20)}
    heading, first, second = option_lines("data", options, {"short": "3", "a" * 60: "true"})
    assert heading == "data:"
    assert first == "  --short N" + " " * 39 + "few words (3)"
    assert second.endswith("... (true)")
    assert option_lines("", {"x": ("", "words")}) == ["  --x" + " " * 29 + "words"]
