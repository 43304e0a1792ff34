"""The commands `eqlayers bench run|report|first-gpu|layers|step|overhead|networks|accelerate`."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..cli.arguments import ArgumentParser
from ..cli.notices import started_bar
from ..core.backends import find
from ..core.errors import ConfigError, EqlayersError
from ..core.files.read_write import check_output
from ..core.memory import keep_memory
from .config import DEVICES
from .first import BUDGET, STAGES, run_first_gpu
from .layers.run import LAYER_PEERS, read_layer_suite
from .networks.accelerate import RUNS, run_accelerate
from .networks.packages import NETWORKS
from .networks.run import NAMES, run_networks
from .overhead import run_overhead
from .products.peers import PEERS
from .products.suite import read_suite
from .report import count_goals, tables, write_report
from .results import Record, Say, Table, load, nothing, save, save_csv
from .run import run_suite
from .step import LoadBatch, run_step

FILE_WIDTH = 180  # columns of output to a file
EPILOG = """\
examples:
  eqlayers bench run smoke                                              (seconds: does everything work?)
  eqlayers bench run cpu --json cpu.json                                (the CPU tables)
  eqlayers bench run cpu --only 'fused/mace-*' --peers e3nn,e3nn-compiled
  eqlayers bench run gpu --only 'target/*' --json gpu.json              (where there is a GPU)
  eqlayers bench first-gpu --out first-gpu                              (the first minutes on a GPU, stage by stage)
  eqlayers bench run path/to/suite.yaml
  eqlayers bench layers --only 'contraction/*'                          (where mace-torch is installed, beside it)
  eqlayers bench networks mace --sizes 64,256                           (where mace-torch is installed)
  eqlayers bench accelerate mace                                        (where mace-torch is installed)
  eqlayers bench report cpu.json --out report                           (tables and plots again)
"""


# -- what commands show -----------------------------------------------------------------------------------------------


def _has_rich() -> bool:
    return find_spec("rich") is not None


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Say]:
    """Context manager: a function ``say(text)`` that shows each step as a progress bar or a line on standard error."""
    if not (_has_rich() and sys.stderr.isatty()):
        yield lambda text: print(f"{title}: {text}", file=sys.stderr, flush=True)
        return
    from rich.progress import MofNCompleteColumn

    bar = started_bar(title, total, MofNCompleteColumn())
    done = itertools.count()
    with bar:
        yield lambda text: bar.update(bar.task_ids[0], completed=next(done), words=text.replace("[", r"\["))


def show(tables: list[Table], last: str) -> None:
    """Print tables and a final sentence, by the package rich or as Markdown."""
    if not _has_rich():
        print("\n".join([*(table.markdown() + "\n" for table in tables), *([last] if last else [])]))
        return
    from rich.console import Console

    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=FILE_WIDTH)
    for table in tables:
        console.print(table.rich())
        console.print()
    if last:
        console.print(last, highlight=False, markup=False)


# -- options ----------------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """Parse a positive integer of an option for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _counts(text: str) -> list[int]:
    return [count(part) for part in _names(text)]


count.__name__ = "positive integer"  # used in messages of argparse
_counts.__name__ = "list of positive integers, with commas"
KNOWN: dict[str, dict[str, Any]] = {
    "--peers": {"help": "names with commas instead of the configuration's; '' for none", "type": _names},
    "--threads": {"help": "threads of torch instead of the configuration's, or of 1 for accelerate", "type": count},
    "--runs": {"help": f"timed runs instead of the configuration's, or of {RUNS} for accelerate", "type": count},
    "--backend": {"help": "backend of this package's layers; the first that supports the layer by default"},
    "--sizes": {"help": "numbers of atoms with commas instead of the configuration's", "type": _counts},
    "--device": {"help": "device instead of the configuration's", "choices": DEVICES},
    "--only": {"help": "pattern of names, such as 'fused/mace-*'"},
    "--json": {"help": "write the result to this file", "metavar": "FILE"},
    "--csv": {"help": "write one row for each measurement to this file", "metavar": "FILE"},
}


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add common options by name."""
    for name in names:
        parser.add_argument(f"--{name}", **KNOWN[f"--{name}"])


#: Command -> function that measures, with options as keyword arguments.
MEASURE: dict[str, Callable[..., Record]] = {
    "run": run_suite,
    "layers": run_suite,
    "step": run_step,
    "overhead": run_overhead,
    "networks": run_networks,
    "accelerate": run_accelerate,
}


def _listed(title: str, about: dict[str, str]) -> str:
    return f"\n{title}:\n" + "".join(f"  {name:16} {text}\n" for name, text in about.items())


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    top = ArgumentParser(
        prog="eqlayers bench",
        description="Measure this package's layers beside their peers. Every result is checked before it is timed.",
        epilog=EPILOG
        + _listed("peers", {name: peer.about for name, peer in PEERS.items()})
        + _listed("peers of layers", LAYER_PEERS)
        + _listed("stages of first-gpu", {name: stage.about for name, stage in STAGES.items()}),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", metavar="command", required=True)

    def add(name: str, about: str, options: str, config: str | None = None) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        if config is not None:
            text = f"name of a file of configs/bench, or a path; {config} by default"
            command.add_argument("--config", default=config, help=text)
        add_options(command, *options.split(), "json", "csv")
        return command

    run = add("run", "check and time the cases of a suite", "peers threads runs backend only")
    run.add_argument("suite", help="name of a file of configs/bench, or a path")
    report = commands.add_parser("report", help="tables and plots of a result")
    report.add_argument("file", help="a JSON file that another command wrote")
    report.add_argument("--out", help="folder for a Markdown file and PNG pictures", metavar="FOLDER")
    about = "the first minutes on a GPU: stages in processes of their own, one JSON written after each"
    first = commands.add_parser("first-gpu", help=about, description=about)
    about = "folder; stages that are done there are kept"
    first.add_argument("--out", help=about, metavar="FOLDER", default="first-gpu")
    about = f"seconds of all stages together; {BUDGET} by default"
    first.add_argument("--budget", help=about, metavar="SECONDS", type=count, default=BUDGET)
    first.add_argument("--stages", help="names with commas; all by default", type=_names)
    first.add_argument("--dry", help="launch nothing: compile, collect, and run small on the CPU", action="store_true")
    first.add_argument("--again", help="run the stages that are done as well", action="store_true")
    add("step", "time a whole training step of the network of molecules", "threads runs backend", "step")
    about = "harmonics, edges, contractions and layers of the catalogue, beside e3nn's, MACE's or plain torch"
    add("layers", about, "peers threads runs backend only", "layers")
    add("overhead", "time single calls on one molecule and on one edge", "threads runs", "overhead")
    about = "whole networks, as their packages run them and as this one does: time, memory and parts, by atoms"
    whole = add("networks", about, "peers sizes threads runs device", "networks")
    whole.add_argument("network", choices=NAMES, help="its package must be installed; ours needs none")
    about = "energies and forces alone, without training steps"
    whole.add_argument("--inference", help=about, action="store_true")
    about = f"networks of other packages before and after accelerate; 1 thread and {RUNS} runs by default"
    accelerate = add("accelerate", about, "threads runs backend")
    accelerate.add_argument("network", choices=list(NETWORKS), help="its package must be installed")
    return top


# -- commands ---------------------------------------------------------------------------------------------------------


def arguments_of(args: argparse.Namespace, *without: str) -> dict[str, Any]:
    """Options of a command as keyword arguments of its function."""
    return {{"threads": "num_threads"}.get(key, key): v for key, v in vars(args).items() if key not in without}


def _measured(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    """Run a command that measures; partial results are saved to the file of ``--json`` meanwhile."""
    name = args.command
    options = arguments_of(args, "command", "json", "csv")
    first = [options.pop(key) for key in ("suite", "network", "config") if key in options]
    if name in ("step", "networks"):
        options["load_batch"] = load_batch
    if name in ("run", "layers", "networks"):
        options["keep"] = nothing if args.json is None else partial(save, path=args.json)
    title, total = name, 3 if name == "step" else None
    if name == "networks":
        title, options["memory_kept"] = f"{name} {args.network}", keep_memory().kept
    if name in ("run", "layers"):
        read, only = {"run": read_suite, "layers": read_layer_suite}[name], options.pop("only")
        suite = read(*first).only(only)
        first, title, total = [suite], suite.name, suite.steps
    with progress(f"bench {title}", total) as say:
        return MEASURE[name](*first, **options, say=say)


def _report(file: str, out: str | None) -> None:
    """Print a stored result, and write a report to the folder ``out`` if given."""
    result = load(file)
    try:
        show(tables(result), count_goals(result))
        written = [] if out is None else write_report(result, out)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        if isinstance(error, EqlayersError):
            raise
        raise ConfigError(
            f"a result must have all that `eqlayers bench` writes, got one in {file!r} that cannot be shown "
            f"({type(error).__name__}). Give a file that was not edited, or measure again."
        ) from error
    for path in written:
        print(f"wrote {path}")


def check_outputs(*paths: str | None) -> None:
    """Raise before measurements if the files of --json or --csv cannot be written."""
    outputs = [check_output(p, name) for p, name in zip(paths, ("--json", "--csv"), strict=True) if p is not None]
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise ConfigError(f"--json and --csv must be two files, got {str(outputs[0])!r} for both. Name another.")


def write_outputs(result: Record, json: str | None, csv: str | None) -> None:
    """Write a result to the files of --json and --csv."""
    for path, write in ((json, save), (csv, save_csv)):
        if path is not None:
            write(result, path)


def run(args: Sequence[str], load_batch: LoadBatch) -> None:
    """Run one command.

    Args:
        args: Subcommand and options.
        load_batch: Function that loads molecules for `step`; see :mod:`eqlayers.bench.step`.

    Raises:
        EqlayersError: An option or configuration is invalid.
    """
    parsed = parser().parse_args(args)
    if parsed.command == "report":
        _report(parsed.file, parsed.out)
        return
    if parsed.command == "first-gpu":
        stages = {name: getattr(parsed, name) for name in ("stages", "budget", "dry", "again")}
        with progress("bench first-gpu") as say:
            result = run_first_gpu(Path(parsed.out), **stages, say=say)
    else:
        check_outputs(parsed.json, parsed.csv)
        if getattr(parsed, "backend", None) is not None:
            find(parsed.backend)
        result = _measured(parsed, load_batch)
        write_outputs(result, parsed.json, parsed.csv)
    show(tables(result), count_goals(result))
