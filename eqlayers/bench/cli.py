"""`eqlayers bench run|report|first-gpu|layers|step|tables|cold|overhead|networks|accelerate|kernels`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments import ArgumentParser
from ..backends import find
from ..errors import ConfigError, EqlayersError
from ..files import check_output
from ..memory import keep_memory
from .accelerate import RUNS, run_accelerate
from .cold import run_cold
from .console import progress, show
from .first_gpu import BUDGET, STAGES, run_first_gpu
from .goals import Record
from .kernels import run_kernels
from .layer_cases import LAYER_PEERS, read_layer_suite
from .layers import run_layers
from .network_subjects import NETWORKS
from .networks import NAMES, run_networks
from .overhead import run_overhead
from .peers import PEERS
from .radial_tables import run_tables
from .report import count_goals, tables, write_report
from .results import load, save, save_csv
from .run import nothing, run_suite
from .step import LoadBatch, run_step
from .suite import DEVICES, read_suite

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


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_count.__name__ = "positive integer"  # argparse puts it into its message


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _counts(text: str) -> list[int]:
    return [_count(part) for part in _names(text)]


_counts.__name__ = "list of positive integers, with commas"


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

    def add(name: str, about: str, *options: str, config: str | None = None) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        if config is not None:
            text = f"name of a file of configs/bench, or a path; {config} by default"
            command.add_argument("--config", default=config, help=text)
        known: dict[str, dict[str, Any]] = {
            "--peers": {"help": "names with commas instead of the configuration's; '' for none", "type": _names},
            "--threads": {
                "help": "threads of torch instead of the configuration's, or of 1 for accelerate",
                "type": _count,
            },
            "--runs": {
                "help": f"timed runs instead of the configuration's, or of {RUNS} for accelerate",
                "type": _count,
            },
            "--backend": {"help": "backend of this package's layers; the first that supports the layer by default"},
            "--sizes": {"help": "numbers of atoms with commas instead of the configuration's", "type": _counts},
            "--device": {"help": "device instead of the configuration's", "choices": DEVICES},
            "--only": {"help": "pattern of names, such as 'fused/mace-*'"},
            "--json": {"help": "write the result to this file", "metavar": "FILE"},
            "--csv": {"help": "write one row for each measurement to this file", "metavar": "FILE"},
        }
        for option in (*options, "--json", "--csv"):
            command.add_argument(option, **known[option])
        return command

    timed = ("--peers", "--threads", "--runs", "--backend", "--only")
    run = add("run", "check and time the cases of a suite", *timed)
    run.add_argument("suite", help="name of a file of configs/bench, or a path")
    report = commands.add_parser("report", help="tables and plots of a result")
    report.add_argument("file", help="a JSON file that another command wrote")
    report.add_argument("--out", help="folder for a Markdown file and PNG pictures", metavar="FOLDER")
    about = "the first minutes on a GPU: stages in processes of their own, one JSON written after each"
    first = commands.add_parser("first-gpu", help=about, description=about)
    first.add_argument(
        "--out", help="folder; stages that are done there are kept", metavar="FOLDER", default="first-gpu"
    )
    about = f"seconds of all stages together; {BUDGET} by default"
    first.add_argument("--budget", help=about, metavar="SECONDS", type=_count, default=BUDGET)
    first.add_argument("--stages", help="names with commas; all by default", type=_names)
    first.add_argument("--dry", help="launch nothing: compile, collect, and run small on the CPU", action="store_true")
    first.add_argument("--again", help="run the stages that are done as well", action="store_true")
    add(
        "step",
        "time a whole training step of the network of molecules",
        "--threads",
        "--runs",
        "--backend",
        config="step",
    )
    about = "radial networks by tables: errors against knots, time and memory with and without"
    tabled = add("tables", about, "--threads", "--runs", config="tables")
    tabled.add_argument("--potential", help="file of a trained potential in place of the networks", metavar="FILE")
    about = "harmonics, edges, contractions and layers of the catalogue, beside e3nn's, MACE's or plain torch"
    add("layers", about, "--peers", "--threads", "--runs", "--backend", "--only", config="layers")
    options = ("--peers", "--threads", "--runs", "--only")
    add("cold", "time first calls in fresh processes, with empty and filled caches", *options, config="cold")
    add("overhead", "time single calls on one molecule and on one edge", "--threads", "--runs", config="overhead")
    about = "compile the GPU kernels without a GPU: registers, spills, shared memory"
    kernels = add("kernels", about, "--only", config="kernels")
    kernels.add_argument(
        "--triton",
        help="folders of other releases (pip install --no-deps --target FOLDER triton==...); the installed one if none",
        metavar="FOLDER",
        nargs="+",
        default=(),
    )
    kernels.add_argument("--jobs", help="processes at a time; as many as cores by default", type=_count)
    about = "whole networks, as their packages run them and as this one does: time, memory and parts, by atoms"
    choices = ("--peers", "--sizes", "--threads", "--runs", "--device")
    whole = add("networks", about, *choices, config="networks")
    whole.add_argument("network", choices=NAMES, help="its package must be installed; ours needs none")
    about = "steps at constant energy of the smallest size, exact and with tables; 10000 are usual, none by default"
    whole.add_argument("--dynamics", help=about, metavar="STEPS", type=_count, default=0)
    about = "energies and forces alone, without training steps"
    whole.add_argument("--inference", help=about, action="store_true")
    about = f"networks of other packages before and after accelerate; 1 thread and {RUNS} runs by default"
    accelerate = add("accelerate", about, "--threads", "--runs", "--backend")
    accelerate.add_argument("network", choices=list(NETWORKS), help="its package must be installed")
    return top


def _run(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    suite = read_suite(args.suite).only(args.only)
    steps = 1 + sum(2 + len(case.directions) for case in suite.cases)
    kind = {"peers": args.peers, "num_threads": args.threads, "runs": args.runs, "backend": args.backend}
    keep = nothing if args.json is None else partial(save, path=args.json)  # a run that is cut off leaves its cases
    with progress(f"bench {suite.name}", steps) as say:
        return run_suite(suite, **kind, say=say, keep=keep)


def _layers(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    suite = read_layer_suite(args.config, args.only)
    steps = 1 + sum(1 + 2 * len(case.directions) for case in suite.cases)
    kind = {"peers": args.peers, "num_threads": args.threads, "runs": args.runs, "backend": args.backend}
    keep = nothing if args.json is None else partial(save, path=args.json)  # as above
    with progress("bench layers", steps) as say:
        return run_layers(suite, **kind, say=say, keep=keep)


def _step(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    kind = {"num_threads": args.threads, "backend": args.backend, "runs": args.runs}
    with progress("bench step", 3) as say:
        return run_step(args.config, load_batch=load_batch, **kind, say=say)


def _tables(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    kind = {"potential": args.potential, "num_threads": args.threads, "runs": args.runs}
    with progress("bench tables") as say:
        return run_tables(args.config, load_batch=load_batch, **kind, say=say)


def _cold(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    kind = {"peers": args.peers, "num_threads": args.threads, "runs": args.runs, "only": args.only}
    with progress("bench cold") as say:
        return run_cold(args.config, **kind, say=say)


def _overhead(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    with progress("bench overhead") as say:
        return run_overhead(args.config, num_threads=args.threads, runs=args.runs, say=say)


def _accelerate(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    kind = {"num_threads": args.threads or 1, "runs": args.runs, "backend": args.backend}
    with progress("bench accelerate") as say:
        return run_accelerate(args.network, **kind, say=say)


def _networks(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    kind = {"peers": args.peers, "sizes": args.sizes, "device": args.device, "runs": args.runs}
    store = nothing if args.json is None else partial(save, path=args.json)  # as above
    with progress(f"bench networks {args.network}") as say:
        kind |= {"num_threads": args.threads, "keep": keep_memory().kept, "dynamics": args.dynamics}
        kind["inference"] = args.inference
        return run_networks(args.network, args.config, load_batch=load_batch, **kind, say=say, store=store)


def _kernels(args: argparse.Namespace, load_batch: LoadBatch) -> Record:
    with progress("bench kernels") as say:
        return run_kernels(args.config, only=args.only, releases=args.triton, jobs=args.jobs, say=say)


COMMANDS: dict[str, Callable[[argparse.Namespace, LoadBatch], Record]] = {
    "run": _run,
    "layers": _layers,
    "step": _step,
    "tables": _tables,
    "cold": _cold,
    "overhead": _overhead,
    "networks": _networks,
    "accelerate": _accelerate,
    "kernels": _kernels,
}


def _report(file: str, out: str | None) -> None:
    """Show a stored result, and write its report."""
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


def _check_outputs(*paths: str | None) -> None:
    """Refuse files that cannot be written, before minutes of measurements that they should hold."""
    named = zip(paths, ("--json", "--csv"), strict=True)
    given = [check_output(path, option) for path, option in named if path is not None]
    if len({path.resolve() for path in given}) < len(given):
        raise ConfigError(f"--json and --csv must be two files, got {str(given[0])!r} for both. Name another.")


def run(args: Sequence[str], load_batch: LoadBatch) -> None:
    """Run one command.

    Args:
        args: Subcommand and options.
        load_batch: Gives molecules for `step`; see :mod:`eqlayers.bench.step`.

    Raises:
        EqlayersError: The input cannot be used; the message says what to change.
    """
    parsed = parser().parse_args(args)
    if parsed.command == "report":
        _report(parsed.file, parsed.out)
        return
    if parsed.command == "first-gpu":
        kind = {"stages": parsed.stages, "budget": parsed.budget, "dry": parsed.dry, "again": parsed.again}
        with progress("bench first-gpu") as say:
            result = run_first_gpu(Path(parsed.out), **kind, say=say)
        show(tables(result), count_goals(result))
        return
    _check_outputs(parsed.json, parsed.csv)
    if getattr(parsed, "backend", None) is not None:
        find(parsed.backend)
    result = COMMANDS[parsed.command](parsed, load_batch)
    for path, write in ((parsed.json, save), (parsed.csv, save_csv)):
        if path is not None:
            write(result, path)
    show(tables(result), count_goals(result))
