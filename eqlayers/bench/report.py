"""Tables and reports of results: times, ratios, goals, and entries that were not timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.files.read_write import plain_name
from .measure import PARTS
from .results import OURS, WORDS, Record, Table, device_seconds, mebibytes, number, spread, verdict, whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Specification of a cell: field and format, see :func:`_cell`, or a function of the row.
Cell = str | Callable[[Record], str]
RENAME = "Rename the suite, its groups and problems."
FORMATS: dict[str, Callable[[Any], str]] = {
    "": str,
    "s in ms": lambda value: spread(value, 1000),
    "s in us": lambda value: spread(value, 1e6),
    "spread": spread,
    "MiB": mebibytes,
    "number": number,
    "largest": lambda value: str(max(value)) if value else "-",
    "error": lambda value: "-" if value is None else f"{value:.1e}",
    "%": lambda value: "-" if value is None else f"{100 * value:.0f}",
    "text": lambda value: str(value or ""),
    "count": lambda value: str(value or "-"),
}


def _cell(row: Record, cell: Cell) -> str:
    """Text of a cell: ``field``, ``field: format`` or ``field.inner: format``; ``field?`` may be missing in the row."""
    if not isinstance(cell, str):
        return cell(row)
    path, _, form = cell.partition(": ")
    value: Any = row
    for key in path.split("."):
        value = (value or {}).get(key.rstrip("?")) if key.endswith("?") else value[key]
    return FORMATS[form](value)


def _sized(row: Record) -> str:
    return f"{row['network']}, {row['atoms']} atoms"


def same(*names: str) -> dict[str, Cell]:
    """Columns whose headings are names of fields."""
    return {name: name.lstrip(">") for name in names}


class Layout(NamedTuple):
    """Tables of a result with rows.

    Attributes:
        title, columns: Title and columns of the first table, which shows the rows.
        further: Function that returns tables below the goals.
        words: Quantity of a goal -> description, in addition to :data:`eqlayers.bench.results.WORDS`.
    """

    title: str
    columns: dict[str, Cell]
    further: Callable[[Record], list[Table]] = lambda result: []
    words: Mapping[str, str] = MappingProxyType({})


def table_of(title: str, columns: dict[str, Cell], rows: list[Record], *notes: str) -> Table:
    """A table of rows with columns by specification."""
    return Table(title, list(columns), [[_cell(row, cell) for cell in columns.values()] for row in rows], list(notes))


NETWORK: dict[str, Cell] = {"network": _sized, "what": "what", "implementation": "implementation"}
PARTS_COLUMNS: dict[str, Cell] = {
    **NETWORK,
    **{f">{part}, %": f"shares.{part}?: %" for part in PARTS},
    ">operators": "operators?: count",  # results before it was counted have none
    ">error, eV an atom": "errors.energy?: error",
    ">error, eV/A": "errors.forces?: error",
    ">error of gradients / largest": "errors.gradients?: error",
    ">compared at atoms": "compared_at: count",
}
STAGE: dict[str, Cell] = {
    **same("problem", "layout", "direction"),
    "variant": "variant?: text",
    ">ms, device": "ms?: spread",
    ">bound, ms": "bound_ms?: number",
    ">time / bound": "times_bound?: number",
    ">registers": "registers?: largest",
    ">spilled bytes": "spill_bytes?: largest",
    "error": "error?: text",
}
MODULES = ["module", "was", "is", "backend", ">error / bound"]


def _modules(result: Record) -> list[Table]:
    return [
        Table(f"modules of {report['network']}", MODULES, report["report"], [_OF_MODULES])
        for report in result.get("reports", [])
    ]


def _parts(result: Record) -> list[Table]:
    first: dict[tuple[str, ...], Record] = {}  # first row of each network, mode and implementation
    for row in result["rows"]:
        if row["shares"] or row["errors"]:
            first.setdefault((_sized(row), row["what"], row["implementation"]), row)
    return [table_of("parts of the time, and errors", PARTS_COLUMNS, list(first.values()))]


def _stages(result: Record) -> list[Table]:
    stages = [row for row in result["rows"] if row["stage"] in ("kernels", "sweep")]
    return [table_of(row["about"], STAGE, row["found"].get("rows", [])) for row in stages]


#: Kind of result -> its tables.
LAYOUTS = {
    "step": Layout(
        "training step: forward, loss, backward, clipping, optimizer",
        {"network": "model"}
        | same("layout", "backend")
        | {">ms": "seconds: s in ms", ">e3nn / this": "ratio: spread"}
        | same(">parameters", "status"),
    ),
    "overhead": Layout(
        "host time of one call",
        same("layer", "input", "gradients")
        | {">this, us": "ours: s in us", ">e3nn, us": "theirs: s in us", ">e3nn / this": "ratio: spread"}
        | same("status"),
    ),
    "accelerate": Layout(
        "networks of other packages, plain and accelerated, float32",
        same("network")
        | {"what": "mode", ">plain, ms": "plain: s in ms", ">accelerated, ms": "accelerated: s in ms"}
        | {">plain / accelerated": "ratio: spread"}
        | {f">{which}, peak MiB": f"memory_{which}: MiB" for which in ("plain", "accelerated")}
        | same("status"),
        _modules,
    ),
    "networks": Layout(
        "whole networks, microseconds per atom",
        {
            **NETWORK,
            ">threads": "threads",
            ">us per atom": lambda row: spread(row["seconds"], 1e6 / row["atoms"]),
            ">first / this": "ratio: spread",
            ">peak MiB": "memory_bytes: MiB",
            "status": lambda row: row["status"] + (f": {row['reason']}" if row["reason"] else ""),
        },
        _parts,
    ),
    "first-gpu": Layout(
        "first minutes on a GPU",
        {"stage": "stage", "what": "about", "status": "status", ">seconds": "seconds: number", "reason": "reason"},
        _stages,
    ),
}


def head_notes(result: Record) -> list[str]:
    """Sentences on machine, versions, commit and date."""
    machine, versions = result["machine"], result["versions"]
    shown = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    load = "" if machine["load_average"] is None else f", load {machine['load_average']} at the start"
    processor = f"{machine.get('gpu', machine['cpu'])}, {machine['threads']} threads on {machine['cores']} cores{load}"
    notes = [f"{processor}; {shown}; commit {result['commit'] or 'unknown'}; {result['date']}."]
    if "copy_bandwidth" in result:
        notes.append(f"Copy bandwidth: {spread(result['copy_bandwidth'], 1e-9)} GB/s, bytes read and written together.")
    for dtype, rate in result.get("peak_rate", {}).items():
        if rate is not None:
            notes.append(f"Peak of multiply-adds, {dtype}, one thread: {spread(rate, 1e-9)} G/s, each counted as two.")
    return notes


def tables(result: Record, layout: Layout | None = None) -> list[Table]:
    """All tables of a result; ``layout`` is for results of other programs."""
    if "cases" in result:
        shown = [_times(result), _goals(_all_goals(result), WORDS), _trouble(result)]
    else:
        layout = LAYOUTS[result["kind"]] if layout is None else layout
        shown = [table_of(layout.title, layout.columns, result["rows"], *result["notes"])]
        shown += [_goals(result["goals"], {**WORDS, **layout.words}), *layout.further(result)]
    shown = [table for table in shown if table.rows]
    if shown:
        shown[0].notes.extend(head_notes(result))
    return shown


_OF_MODULES = "Error: largest difference from the original module, over the bound of the rounding errors of both."
_OF_COPIES = (
    "Share: operands read once and results written once, over time and copy bandwidth. Peak: memory from the operands "
    "to the results of a direction, the forward and what it saves included."
)
_OF_LIMIT = (
    "fwd+bwd: with all gradients. fwd+double: with the gradient by vectors, positions or features, and its "
    "gradients, as in training on forces. Share: the least time of this machine over the time of the call. The least "
    "time is the longer of two times, named in brackets: operands read once and results written once at the copy "
    "bandwidth, or the sums and products of this package's formulas at the peak of multiply-adds. The share can exceed "
    "1 where all fits into the processor's cache. Peak: memory of a whole call, its results included."
)
_OF_PRODUCTS = (
    "Share of the limit: the least time of this machine over the time of the call. The least time is the longer of "
    "two, named in brackets: the bytes at the copy bandwidth, or the least sums and products at the peak of "
    "multiply-adds."
)
_OF_GPU = (
    "ms: from a call on an idle GPU to its end, launches included. ms, device: with an emptied cache, and "
    "behind other work, so that launches cost nothing; share of bandwidth is over this."
)


def _times(result: Record) -> Table:
    of_layers, on_gpu = result["kind"] == "layers", result["device"] == "cuda"
    bound = not of_layers and all("limits" in case for case in result["cases"])  # older files have none
    rows = []
    for case in result["cases"]:
        for row in case["results"]:
            if row["seconds"] is None:
                continue
            least = case["limits"][row["direction"]] if of_layers or bound else {}
            ratios = [
                f"{r['peer']}: {spread(r['ratio'])}"
                for r in case["ratios"]
                if row["implementation"] == OURS and (r["layout"], r["direction"]) == (row["layout"], row["direction"])
            ]
            who = " ".join(part for part in (row["implementation"], row["layout"], f"({row['note']})") if part)
            cells = [case["name"], row["direction"], who, spread(row["seconds"], 1000)]
            cells += [spread(row["seconds_flushed"], 1000)] if on_gpu else []
            cells += ["; ".join(ratios) or "-", number(row["share"]) + (f" ({least['binds']})" if of_layers else "")]
            if bound:
                cells.append(f"{number(least['seconds'] / device_seconds(row)['median'])} ({least['binds']})")
            rows.append([*cells, mebibytes(row["memory_bytes"])])
    columns = ["case", "direction", "who", ">ms", *([">ms, device"] if on_gpu else []), ">peer / this"]
    columns += [">share of the limit" if of_layers else ">share of bandwidth"]
    columns += [*([">share of the limit"] if bound else []), ">peak, MiB"]
    how = "Medians with the 20 % and 80 % quantiles. A ratio above 1: this package is faster. "
    notes = [how + (_OF_LIMIT if of_layers else _OF_COPIES), *([_OF_PRODUCTS] if bound else [])]
    if of_layers:
        abouts = {f"{case['group']}/{case['problem']}": case["about"] for case in result["cases"]}
        notes.append("; ".join(map(": ".join, abouts.items())) + ". E: vectors or edges, N: atoms.")
    notes += [f"Peak memory was not measured: {result['memory_refusal']}."] if result["memory_refusal"] else []
    notes += [_OF_GPU] if on_gpu else []
    return Table(f"suite {result['suite']}, {result['dtype']}, {result['device']}", columns, rows, notes)


def _all_goals(result: Record) -> list[Record]:
    goals = [{"where": f"{case['name']}", **goal} for case in result["cases"] for goal in case["goals"]]
    return goals + [{"where": goal["group"], **goal} for goal in result["group_goals"]]


def _goals(goals: list[Record], known: Mapping[str, str]) -> Table:
    rows = []
    for goal in goals:
        where = " ".join(str(goal[key]) for key in ("where", "direction", "layout") if goal.get(key))
        required = f"{'>=' if goal['at_least'] else '<='} {number(goal['goal'])}"
        words = known.get(goal["quantity"], goal["quantity"])
        rows.append([where, f"{required} {words}", number(goal["measured"]), verdict(goal["met"])])
    return Table("goals", ["where", "goal", ">measured", "verdict"], rows)


def _trouble(result: Record) -> Table:
    """Table of entries that were not timed, with reasons; directions with equal reasons share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for case in result["cases"]:
        for row in case["results"]:
            if row["status"] != "ok":
                key = (case["name"], f"{row['implementation']} {row['layout']}".strip(), row["status"], row["reason"])
                rows.setdefault(key, []).append(row["direction"])
    cells = [[case, who, ", ".join(directions), status, why] for (case, who, status, why), directions in rows.items()]
    return Table("not timed", ["case", "who", "directions", "status", "reason"], cells)


def page(result: Record, layout: Layout | None = None) -> str:
    """All tables of a result as Markdown."""
    shown = tables(result, layout)
    return "\n\n".join(table.markdown(level=1 if table is shown[0] else 2) for table in shown) + "\n"


def write_report(
    result: Record, folder: str | Path, layout: Layout | None = None, figures: Mapping[str, Figure] | None = None
) -> list[Path]:
    """Write tables as Markdown and figures as PNG to a folder; return the paths."""
    from .plots import figures_of, save_figure  # here: tables need no matplotlib

    folder = Path(folder)
    pictures = figures_of(result) if figures is None else figures
    name = plain_name(result.get("suite", result["kind"]), "suite of the result", RENAME, "file")
    paths = [folder / plain_name(f"{picture}.png", "name of a picture", RENAME, "file") for picture in pictures]
    text = page(result, layout).encode()
    for path, figure in zip(paths, pictures.values(), strict=True):
        save_figure(figure, path)
    with whole_file(folder / f"{name}.md") as file:
        file.write(text)
    return [folder / f"{name}.md", *paths]


def count_goals(result: Record) -> str:
    """Sentence on the number of met goals; empty without goals."""
    goals = _all_goals(result) if "cases" in result else result["goals"]
    counts = {word: sum(verdict(goal["met"]) == word for goal in goals) for word in ("met", "missed", "not measured")}
    return f"{len(goals)} goals: " + ", ".join(f"{count} {word}" for word, count in counts.items()) if goals else ""
