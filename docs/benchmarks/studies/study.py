"""The command line of the studies beside this file: a result as JSON and CSV, its tables, and a page with pictures.

Each study is a program, `python docs/benchmarks/studies/NAME.py`, on the checks, clocks and tables of `eqlayers.bench`.
With `--stored FILE` nothing is measured: the tables of a result are shown again, and with `--out` its page is written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eqlayers.bench.cli import add_options, arguments_of, check_outputs, progress, show, write_outputs
from eqlayers.bench.report import Layout, count_goals, tables, write_report
from eqlayers.bench.results import Record, load
from eqlayers.cli.arguments import ArgumentParser
from eqlayers.errors import BackendError, EqlayersError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = "--task"  # the first argument of a process that computes a part of a study


class Study(NamedTuple):
    """A program: what it measures and how its results are shown."""

    script: str
    about: str
    kind: str  # of its results
    layout: Layout
    measure: Callable[..., Record]  # options are its keywords
    options: Callable[[argparse.ArgumentParser], None]
    child: Callable[[dict[str, Any]], Any] | None = None  # computes a task in a process of its own, see `run_fresh`
    figures: Callable[[Record], dict[str, Figure]] | None = None  # None: those of its kind


def beside(script: str) -> str:
    """The configuration of a script: its file with another ending."""
    return str(Path(script).with_suffix(".yaml"))


def add_config(parser: argparse.ArgumentParser, script: str) -> None:
    """Add the option for another configuration."""
    parser.add_argument("--config", default=beside(script), help="a file; the one beside the script by default")


def run_fresh(script: str, task: dict[str, Any], environment: Mapping[str, str], must: str, fix: str) -> Any:
    """The result of a study's `child` in a new process with further variables.

    An error begins with what the process must do, and ends with the fix.
    """
    command = [sys.executable, script, TASK, json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BackendError(f"{must}, got {last!r}. {fix}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def parser_of(study: Study) -> argparse.ArgumentParser:
    """Options of the study, and the files for its results."""
    parser = ArgumentParser(prog=Path(study.script).name, description=study.about)
    study.options(parser)
    add_options(parser, "json", "csv")
    parser.add_argument("--out", help="folder for a Markdown file and PNG pictures", metavar="FOLDER")
    parser.add_argument("--stored", help="a JSON file of an earlier run: show it, and measure nothing", metavar="FILE")
    return parser


def run_study(study: Study, words: Sequence[str] | None = None) -> None:
    """Measure and keep a result, or read a stored one; show it, and write its page."""
    args = parser_of(study).parse_args(words)
    if args.stored is not None:
        result = load(args.stored, (study.kind,))
    else:
        check_outputs(args.json, args.csv)
        with progress(Path(study.script).stem) as say:
            result = study.measure(**arguments_of(args, "json", "csv", "out", "stored"), say=say)
        write_outputs(result, args.json, args.csv)
    show(tables(result, study.layout), count_goals(result))
    if args.out is not None:
        figures = None if study.figures is None else study.figures(result)
        for path in write_report(result, args.out, study.layout, figures):
            print(f"wrote {path}")


def main(study: Study) -> None:
    """Run the program."""
    if study.child is not None and sys.argv[1:2] == [TASK]:
        print(json.dumps(study.child(json.loads(sys.argv[2]))))
        return
    try:
        run_study(study)
    except EqlayersError as error:
        sys.exit(f"{Path(study.script).name}: error: {error}")
