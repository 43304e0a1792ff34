"""The parser of the training commands, whose help lists the options that most runs need, or every option."""

from __future__ import annotations

import argparse
import re
import shutil
from typing import Any

from jsonargparse import DefaultHelpFormatter
from lightning.pytorch.cli import LightningArgumentParser

from .configuration import SECTIONS, Command

#: Usage and description of each command.
ABOUT = {
    "fit": (
        "eqlayers fit CONFIGURATION|STRUCTURES [--resume] [--verbose] [--key value]...",
        "Train a network, then test the best weights. --resume goes on from the last checkpoint of the run, or begins; "
        "--verbose prints the table of all layers.",
    ),
    "validate": (
        "eqlayers validate CONFIGURATION|STRUCTURES [--key value]...",
        "Compute errors of the best weights of a run on its validation part.",
    ),
    "test": (
        "eqlayers test CONFIGURATION|STRUCTURES [--key value]...",
        "Compute errors of the best weights of a run on its test part: table, metrics.json and pictures.",
    ),
    "predict": (
        "eqlayers predict CONFIGURATION [--key value]...\n       eqlayers predict STRUCTURES -m MODEL -o FILE",
        "Write predictions of the test part, or energies and forces of structures by a potential; `eqlayers predict -m "
        "FILE --help` shows the options of the latter.",
    ),
}
#: Options that the short help of every command lists, and further ones for a fit.
SHOWN = {
    "": ("help", "help-all", "config", "print_config", "seed_everything", "task", "name", "threads", "ckpt_path"),
    "model": ("model", "model.help"),
    "data": (
        *("path", "test_path", "split", "val", "test", "keys", "units", "e0s", "max_edges"),
        *("dataset", "target", "root", "limit_train", "cutoff", "batch_size"),
    ),
    "trainer": ("accelerator", "devices"),
}
SHOWN_FOR_FIT = {
    "": ("test_after_fit", "start_from", "committee", "checkpoint.monitor"),
    "model": (
        *("optimizer", "learning_rate", "warmup_steps", "loss"),
        *("energy_weight", "forces_weight", "stress_weight", "second_stage"),
    ),
    "trainer": ("max_epochs", "max_time", "gradient_clip_val", "check_val_every_n_epoch"),
    "ema": ("decay",),
    "early_stopping": ("patience",),
}
NETWORK = "model.model.init_args"
METAVARS = {"int": "N", "float": "X", "str": "TEXT"}
WIDTH = 100  # of output that is not a terminal


class Formatter(DefaultHelpFormatter):
    """Formatter of options with help and default, without Python types and the names of all classes that would fit."""

    position = 26

    def __init__(self, prog: str, **options: Any) -> None:
        self.columns = shutil.get_terminal_size((WIDTH, 0)).columns
        super().__init__(prog, max_help_position=self.position, width=self.columns)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = re.sub(r":\w+:(?=`)|`", "", " ".join((action.help or "").split())).replace("(default: %(default)s)", "")
        return self.about(text.strip(), action.default)

    def about(self, text: str, default: Any) -> str:
        """The help of an option with its default."""
        return text if default in (None, argparse.SUPPRESS) else f"{text} (default: %(default)s)"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        type_ = re.sub(r"Optional\[(\w+)\]|(\w+) \| None", r"\1\2", self._get_type_str(action) or "")
        return METAVARS.get(type_, "VALUE")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return re.sub(r", --\S+\+ .*", "", super()._format_action_invocation(action))


class ShortFormatter(Formatter):
    """Formatter of one line for each option: the first sentence of its help, cut to the width, and its default."""

    position = 44

    def about(self, text: str, default: Any) -> str:
        """The beginning of the help."""
        sentence = re.split(r"(?<!e\.g)[.;](?: |$)", text)[0]
        shown = "" if default in (None, False, argparse.SUPPRESS) else f" ({default})"
        width = self.columns - self.position - len(shown)
        return (sentence if len(sentence) <= width else f"{sentence[: width - 3]}...") + shown.replace("%", "%%")


class Parser(LightningArgumentParser):
    """The parser of one training command. Files may stand for sections, but never for single values."""

    network: type | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"formatter_class": Formatter})

    def add_class_arguments(self, *args: Any, **options: Any) -> Any:
        """Add arguments as jsonargparse does, without files for single values: errors would repeat their text."""
        return super().add_class_arguments(*args, **options | {"sub_configs": False})

    def prepare_help(self, command: Command, task: str, network: type) -> None:
        """Choose what the help shows: the most used options and the network, or with --help-all every option.

        A command without help needs none of it, and jsonargparse leaves options without help out of configurations.
        """
        self.usage, about = ABOUT[command.name]
        if not {"-h", "--help", "--help-all"} & set(command.words):
            return
        self.add_argument("--help-all", action="help", help="show every option with all that is known of it and exit")
        self.description = f"{about} These are the options of --task {task}; the files of a command give its task."
        self.network = network
        for name, group in (self.groups or {}).items():
            group.title = name
        every = "--help-all" in command.words
        self.formatter_class = Formatter if every else ShortFormatter
        tables = [SHOWN, SHOWN_FOR_FIT] if command.name == "fit" else [SHOWN]
        shown = {f"{section}.{name}".strip(".") for table in tables for section in table for name in table[section]}
        for action in self._actions:
            if action.dest in SECTIONS or not (every or shown & {action.dest, action.option_strings[0][2:]}):
                action.help = argparse.SUPPRESS

    def format_help(self, *args: Any) -> str:
        """The options of the command, and of the network."""
        text = str(super().format_help(*args))
        if self.network is None:
            return text
        parser = Parser(usage=argparse.SUPPRESS, description="", add_help=False)
        parser.formatter_class = self.formatter_class
        parser.add_class_arguments(self.network, NETWORK, fail_untyped=False, skip={"cutoff"})
        for action in parser._actions:
            if action.dest == NETWORK or action.dest.endswith(".help"):
                action.help = argparse.SUPPRESS
        _, _, lines = parser.format_help().lstrip().partition("\n")
        return f"{text}\nnetwork, here {self.network.__name__}:\n{lines}"
