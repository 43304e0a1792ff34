"""The parser of the training commands: a help that fits a screen or two, and one page for each section of others."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

from jsonargparse import DefaultHelpFormatter
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from ..cli.training_help import GROUPS, option_lines
from .checkpoints import Stopping
from .configuration import FLAGS

#: Options of other packages' classes that the help shows; the others have a page of their own.
MOST_USED = {
    "trainer": (
        *("accelerator", "devices", "precision", "max_epochs", "max_time", "gradient_clip_val", "deterministic"),
        *("log_every_n_steps", "fast_dev_run"),
    ),
    "early_stopping": ("monitor", "patience", "min_delta"),
}
PAGES = {"trainer": Trainer, "early_stopping": Stopping}
#: Words for options that are not on the first page and whose own words are long.
ABOUT = {
    "print_config": "Print the configuration with all options and end.",
    "model.model": "Network with forward(z, pos, edge_index, batch, num_graphs) -> [G] and set_statistics(shifts, "
    "scale, mean_neighbors), by its import path, e.g. eqlayers.models.MoleculeNetwork.",
    "model.model.help": "Show all options of a network, e.g. eqlayers.models.MoleculeNetwork, and exit.",
    "trainer.precision": "32-true, 64-true, 16-mixed, bf16-mixed and others.",
    "trainer.deterministic": "Refuse operations whose sums depend on the order of threads; warn to be warned only.",
    "trainer.log_every_n_steps": "Optimizer steps between two rows of the logs.",
    "trainer.fast_dev_run": "Only this many batches of each part, and no file is written.",
}
ABOUT |= {
    name: words
    for group in GROUPS
    for name, (_, words) in group.options.items()
    if not name.startswith(("data", "model"))
}
METAVARS = {"int": "N", "float": "X", "str": "TEXT"}
FILE_WIDTH = 120  # of output that is not a terminal
#: Said elsewhere, or of no use where checkpoints are always read without running code.
HIDDEN = ("weights_only", "trainer", "model", "data", "ema", "early_stopping")
USAGE = "eqlayers {command} CONFIGURATION [--key value]..."
#: Arguments of a network on the first page: at most so many, without some; and the dots in their keys.
ARGUMENTS, RARE, DEPTH = 7, ("cutoff_p", "mean_neighbors", "knots", "backend"), 3
TASKS_IN_WORDS = {"potential": "potentials: energies, forces and stress", "property": "properties of molecules"}
#: Options that lead to the rest of the help.
MORE = {
    "help-all": ("", "every option, with all that is known of it"),
    "model.model.help": ("CLASS", "options of another network, e.g. eqlayers.models.MACE"),
    "trainer.help": ("", "all options of the trainer; so --early_stopping.help"),
    "print_config": ("", "print the configuration with all options"),
}


class Formatter(DefaultHelpFormatter):
    """Help and default of an option, without its Python type and the names of all classes that would fit."""

    def __init__(self, prog: str, **options: Any) -> None:
        narrow = shutil.get_terminal_size((FILE_WIDTH, 0)).columns
        super().__init__(prog, max_help_position=26, width=narrow - 2, **options)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = re.sub(r":\w+:(?=`)|`", "", " ".join((action.help or "").split()))
        has_default = action.default not in (None, argparse.SUPPRESS) and "%(default)" not in text
        return f"{text} (default: %(default)s)" if has_default else text

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind = re.sub(r"Optional\[(\w+)\]|(\w+) \| None", r"\1\2", self._get_type_str(action) or "")
        return METAVARS.get(kind, "VALUE")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return re.sub(r", --\S+\+ .*", "", super()._format_action_invocation(action))


class Page(argparse.Action):
    """An option that prints a text and ends: ``text`` is called with the parser."""

    def __init__(self, option_strings: list[str], dest: str, text: Callable[[Parser], str], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)
        self.text = text

    def __call__(self, parser: Any, *_: Any) -> None:
        """Print the text and end."""
        print(self.text(parser), end="")
        parser.exit()


def page_of(cls: type, prefix: str, _: Any, **options: Any) -> str:
    """The options of a class as help, each beginning with a prefix."""
    parser = Sections(usage=argparse.SUPPRESS, description="", add_help=False, formatter_class=Formatter)
    parser.add_class_arguments(cls, prefix, fail_untyped=False, **options)
    for action in parser._actions:
        if action.dest == prefix or action.dest.endswith(".help"):
            action.help = argparse.SUPPRESS
    return parser.format_help().lstrip()


class Sections(LightningArgumentParser):
    """Options of classes; a file may stand for a whole section, but never for a single value."""

    def add_class_arguments(self, *args: Any, **options: Any) -> Any:
        """Add class arguments as jsonargparse does, without files for single values: errors would repeat their text."""
        return super().add_class_arguments(*args, **options | {"sub_configs": False})


class Parser(Sections):
    """The parser of one training command, or of all of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"formatter_class": Formatter})
        self.network: type | None = None
        self.command = self.task = ""

    def shorten(self, command: str, task: str, network: type) -> None:
        """Leave the options that are used, name the pages of the others, and show the options of a network."""
        self.network, self.command, self.task = network, command, task
        self.usage = USAGE.format(command=command)
        self.add_argument("--help-all", action=Page, text=Parser.format_all, help="Show every option and exit.")
        for section, cls in PAGES.items():
            about = f"Show all options of `{section}` and exit."
            self.add_argument(f"--{section}.help", action=Page, text=partial(page_of, cls, section), help=about)
        shown = {f"{section}.{name}" for section, names in MOST_USED.items() for name in names}
        for action in self._actions:
            section, _, name = action.dest.partition(".")
            rare = section in MOST_USED and name and action.dest not in shown
            if rare or action.dest in HIDDEN:
                action.help = argparse.SUPPRESS
            else:
                action.help = ABOUT.get(action.dest, action.help)

    def option_keys(self) -> list[str]:
        """The keys of a configuration."""
        return [action.dest for action in self._actions if action.default is not argparse.SUPPRESS]

    def format_all(self) -> str:
        """All options, and the options of the network that configurations use."""
        text: str = super().format_help()
        assert self.network is not None
        return f"{text}\n{page_of(self.network, 'model.model.init_args', self, skip={'cutoff'})}"

    def format_help(self, *args: Any) -> str:
        """The most used options of the task, in groups."""
        if self.network is None:
            return str(super().format_help(*args))
        lines = [f"usage: {self.usage}", f"Options for {TASKS_IN_WORDS[self.task]}; defaults are in brackets.", ""]
        defaults = {action.dest: shown_default(action.default) for action in self._actions}
        for group in (one for one in GROUPS if self.command in one.commands and self.task in one.tasks):
            known = {name: words for name, words in group.options.items() if name in (*defaults, *FLAGS)}
            lines += option_lines(group.heading, known, defaults)
            if group.heading == "data":
                lines += option_lines(f"network, here {self.network.__name__}", *arguments_of(self.network))
        return "\n".join([*lines, *option_lines("more", MORE)]) + "\n"


def shown_default(value: Any) -> str:
    """A default for the first page; nothing where there is none."""
    if value in (None, argparse.SUPPRESS, "") or value is False:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(list(value)) if isinstance(value, (list, tuple)) else "true" if value is True else str(value)


def arguments_of(network: type) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """The first arguments of a network as options, with the first words of its docstring, and their defaults."""
    parser = Sections(usage=argparse.SUPPRESS, description="", add_help=False)
    parser.add_class_arguments(network, "model.model.init_args", fail_untyped=False, skip={"cutoff"})
    options: dict[str, tuple[str, str]] = {}
    defaults: dict[str, str] = {}
    for action in parser._actions:
        name = action.dest.rpartition(".")[2]
        if len(options) < ARGUMENTS and action.dest.count(".") == DEPTH and name not in ("help", *RARE):
            about = re.split(r"[.;,:(]", " ".join((action.help or "").replace("`", "").split()))[0]
            options[action.dest] = ("VALUE", about[:1].lower() + about[1:])
            defaults[action.dest] = shown_default(action.default)
    return options, defaults
