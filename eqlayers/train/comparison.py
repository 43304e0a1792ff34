"""`eqlayers report`: runs beside each other, sorted by their errors, and what differs between their configurations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..arguments import ArgumentParser
from ..core.errors import ConfigError
from ..files import atomic_write, check_output, few
from ..pages import Block, Picture, Section, Text, number, write_page
from ..pages import Table as PageTable
from .history import write_json
from .page import duration
from .plots import comparison_curves
from .runs import Kind, Run, is_run, read_run, what_is

#: Keys that always differ, or say nothing about the result.
IGNORED = ("name", "runs", "ckpt_path")
NETWORK = "model.model.init_args."
#: Axes of the learning curves -> key of the history, and label.
AXES = {"epochs": ("epoch", "epoch"), "steps": ("step", "optimizer step"), "time": ("time_s", "time of training (s)")}
FILES = ("report.html", "report.csv", "report.json")


def run(args: Sequence[str]) -> None:
    """Run `eqlayers report`."""
    about = "Compare runs: their errors, sorted, what differs between their configurations, and their learning curves."
    parser = ArgumentParser(prog="eqlayers report", description=about)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a folder of runs")
    parser.add_argument("-o", "--output", metavar="FOLDER", help=f"write {', '.join(FILES)} to it")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier report there")
    parser.add_argument(
        "--against", choices=AXES, default="epochs", help="axis of the learning curves; epochs by default"
    )
    options = parser.parse_args(list(args))
    if options.output is not None:
        _check_folder(Path(options.output), options.overwrite)
    runs, notes = find_runs(options.runs)
    notes += [f"{run.label}: {note}" for run in runs for note in run.notes] + _incomparable(runs)
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=200)  # files are not narrow
    groups = sorted_runs(runs)
    several = (table for kind, group in groups.items() for table in _tables(kind, group))
    for table in [_single(runs[0])] if len(runs) == 1 else several:
        console.print(table)
    differing = differences(runs)
    if differing:
        print("what differs between the configurations:")
        for key, values in differing.items():
            print(f"  {key}: {'; '.join(f'{value} ({few(names)})' for value, names in values.items())}")
    for note in notes:
        print(f"note: {note}")
    if options.output is not None:
        _write(Path(options.output), groups, differing, notes, options.against)


def find_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """The runs among some folders, each once, and a line on everything else."""
    run_folders: dict[Path, Path] = {}
    other: list[str] = []
    for folder in map(Path, folders):
        try:
            inner = sorted(path for path in folder.iterdir() if is_run(path)) if folder.is_dir() else []
            is_one = is_run(folder)
            kind = what_is(folder)
        except OSError as error:  # of another user
            inner, is_one, kind = [], False, error.strerror or type(error).__name__
        if is_one:
            run_folders.setdefault(folder.resolve(), folder)
        elif inner:
            run_folders |= {path.resolve(): path for path in inner if path.resolve() not in run_folders}
        else:
            other.append(f"{folder}, {kind}")
    if not run_folders:
        what = few(other) if other else "none"
        raise ConfigError(f"at least one folder must be a run, got {what}. Pass folders such as runs/*.")
    names = [path.name for path in run_folders]
    labels = [path.name if names.count(path.name) == 1 else str(typed) for path, typed in run_folders.items()]
    runs = [read_run(folder, label) for folder, label in zip(run_folders.values(), labels, strict=True)]
    return runs, [f"left out, as it is no run: {name}" for name in other]


def sorted_runs(runs: Iterable[Run]) -> dict[Kind, list[Run]]:
    """Runs by what they learn, the largest kind first, and in each by their error."""
    kinds: dict[Kind, list[Run]] = {}
    for one in sorted(runs, key=lambda run: run.order):
        kinds.setdefault(one.kind, []).append(one)
    return dict(sorted(kinds.items(), key=lambda item: -len(item[1])))


def differences(runs: Sequence[Run]) -> dict[str, dict[str, list[str]]]:
    """Keys of the configurations that differ: runs by value; '-' where a configuration has no such key."""
    known = [run for run in runs if run.config]
    differing: dict[str, dict[str, list[str]]] = {}
    for key in dict.fromkeys(key for run in known for key in run.config):
        values: dict[str, list[str]] = {}
        for run in known:
            if key in run.config or not key.startswith(NETWORK):  # another network has other options
                values.setdefault(_text(run.config[key]) if key in run.config else "-", []).append(run.label)
        if len(values) > 1 and key not in IGNORED:
            differing[key] = values
    return differing


def _text(value: Any) -> str:
    """A value of a configuration, equal for equal numbers: 10 and 10.0."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    whole = isinstance(value, float) and value.is_integer()
    return value if isinstance(value, str) else json.dumps(int(value) if whole else value, default=str)


def _incomparable(runs: Sequence[Run]) -> list[str]:
    """A line for each kind whose errors were not measured on the same structures."""
    said = []
    for kind, group in sorted_runs(runs).items():
        tests = {(run.data, run.num_test): run.label for run in group if run.errors}
        if len(tests) > 1:
            parts = [f"{num} of {data} ({label})" for (data, num), label in tests.items()]
            said.append(f"errors of {kind.quantity} were measured on different test parts: {few(parts)}")
    if len({run.kind for run in runs}) > 1:
        said.append("errors of different quantities are not compared: each has a table of its own")
    return said


# ---- tables ---------------------------------------------------------------------------------------------------------


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


#: Heading -> the text of a run.
COLUMNS: dict[str, Callable[[Run], str]] = {
    "run": lambda run: run.label,
    "task": lambda run: run.kind.task,
    "network": lambda run: run.network or "-",
    "parameters": lambda run: _count(run.num_parameters),
    "data": lambda run: (run.data or "-").rpartition("/")[2],
    "structures": lambda run: _count(run.num_train),
    "epochs": lambda run: _count(run.epochs),
    "steps": lambda run: _count(run.steps),
    "time": lambda run: duration(run.time_s),
}


#: Columns that say what was trained.
DESCRIPTION = ("task", "network", "parameters", "data", "structures")


def _columns(kind: Kind, group: Sequence[Run]) -> dict[str, Callable[[Run], str]]:
    """The columns of all, lowest validation error, and an error of the test for each quantity of the group."""
    units = {name: error.unit for run in group for name, error in run.errors.items()}
    units = {name: unit for name, unit in units.items() if name == kind.quantity} | units

    def of(name: str) -> Callable[[Run], str]:
        return lambda run: number(run.errors[name].mae if name in run.errors else None)

    best = {f"best validation, {kind.unit}": lambda run: number(run.best)}
    return COLUMNS | best | {f"{name.replace('_', ' ')}, {unit}": of(name) for name, unit in units.items()}


def _tables(kind: Kind, group: Sequence[Run]) -> Iterator[Table]:
    """Two tables, of errors and of networks: together they would be wider than most terminals."""
    columns = {name: text for name, text in _columns(kind, group).items() if " of " not in name}  # files have the rest
    title = f"runs of task {kind.task} by the error of {kind}; test errors are mean absolute ones"
    for names, above in (([name for name in columns if name not in DESCRIPTION], title), (["run", *DESCRIPTION], None)):
        table = Table(title=above, title_justify="left", box=box.SIMPLE_HEAD)
        for name in names:
            text = name in ("run", "task", "network", "data")
            align: Any = "left" if text else "right"
            heading = name if text else name.replace(" ", "\n")
            table.add_column(heading, justify=align, overflow="fold", no_wrap=not text, min_width=8 if text else None)
        for one in group:
            table.add_row(*(escape(columns[name](one)) for name in names))
        yield table


def _single(one: Run) -> Table:
    table = Table(title=f"run {escape(one.label)}", title_justify="left", show_header=False)
    for name, text in COLUMNS.items():
        table.add_row(name, escape(text(one)))
    table.add_row("best validation", f"{number(one.best)} {one.kind.unit}")
    for name, error in one.errors.items():
        rest = f"RMSE {number(error.rmse)}, no geometry {number(error.baseline)}"
        table.add_row(f"test, {name.replace('_', ' ')}", f"{number(error.mae)} {error.unit} ({rest})")
    return table


# ---- files ----------------------------------------------------------------------------------------------------------


def _check_folder(folder: Path, overwrite: bool) -> None:
    there = [name for name in FILES if (folder / name).exists()]
    if there and not overwrite:
        raise ConfigError(
            f"--output must be a folder without an earlier report, got {folder} with {few(there)}. "
            "Name another, or pass --overwrite."
        )
    check_output(folder / FILES[0], "--output")


def _facts(one: Run) -> dict[str, Any]:
    """A run as plain values; numbers that are not finite become None, which JSON and CSV can hold."""
    names = ("label", "network", "data", "num_parameters", "num_train", "num_test", "epochs", "steps", "time_s", "best")
    facts = {"folder": str(one.folder), **one.kind._asdict(), **{name: getattr(one, name) for name in names}}
    for name, error in one.errors.items():
        key = f"{name}_{{}} ({error.unit})"
        facts |= {key.format("mae"): error.mae, key.format("rmse"): error.rmse}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in facts.items()}


def _sections(
    groups: dict[Kind, list[Run]], differing: dict[str, dict[str, list[str]]], notes: list[str], axis: str
) -> list[Section]:
    """Sections of the page: a table and a figure for each kind of runs, then the differences."""
    key, label = AXES[axis]
    sections = []
    for kind, group in groups.items():
        columns = _columns(kind, group)
        rows = [[text(one) for text in columns.values()] for one in group]
        blocks: list[Block] = [PageTable(list(columns), rows, "Test errors are mean absolute ones.", left=3)]
        drawn = {one.label: validated(one.history, key) for one in group}
        drawn = {name: curve for name, curve in drawn.items() if curve[0]}
        if drawn:
            figure = comparison_curves({f"{kind}": drawn}, label)
            blocks.append(Picture(figure, f"Errors on the validation parts against the {label}."))
        sections.append(Section(f"By the error of {kind}", blocks))
    about = "Keys of the configurations that differ, with the runs of each value."
    values = [
        (name, "; ".join(f"{value} ({', '.join(labels)})" for value, labels in values_of_key.items()))
        for name, values_of_key in differing.items()
    ]
    sections.append(Section("What differs", [PageTable(("key", "values"), values, about, left=2)] if values else []))
    return [*sections, Section("Notes", [Text(note) for note in notes])]


def validated(history: Sequence[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    """A key of the epochs that were validated, and their errors.

    Example:
        >>> errors = (float("nan"), 9.0, float("nan"), 7.0)
        >>> validated([{"epoch": n, "val_mae": error} for n, error in enumerate(errors, 1)], "epoch")
        ([2, 4], [9.0, 7.0])
    """
    rows = [row for row in history if 0 < row["val_mae"] < math.inf]
    return [row[key] for row in rows], [row["val_mae"] for row in rows]


def _write(
    folder: Path, groups: dict[Kind, list[Run]], differing: dict[str, dict[str, list[str]]], notes: list[str], axis: str
) -> None:
    runs = [one for group in groups.values() for one in group]
    rows_of = [_facts(one) for one in runs]
    whole = [facts | {"notes": one.notes} for facts, one in zip(rows_of, runs, strict=True)]
    about = f"{len(runs)} runs, written {datetime.now():%Y-%m-%d %H:%M}."
    write_page(folder / FILES[0], "Runs", about, _sections(groups, differing, notes, axis))
    with atomic_write(folder / FILES[1]) as file:
        pandas.DataFrame(rows_of, dtype=object).to_csv(file, index=False, lineterminator="\n")
    write_json(folder / FILES[2], {"runs": whole, "differences": differing, "notes": notes})
    print(f"report: {folder}/{', '.join(FILES)}")
