"""From results to tables: times and ratios, goals, and what was refused, wrong or failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..files import plain_name
from .goals import WORDS, Record, device_seconds
from .implementation import OURS
from .parts import PARTS
from .results import whole_file
from .tables import Table, mebibytes, number, spread, verdict


def _step_cells(row: Record) -> list[str]:
    about = [row["model"], row["layout"], row["backend"]]
    return [*about, spread(row["seconds"], 1000), spread(row["ratio"]), str(row["parameters"]), row["status"]]


def _cold_cells(row: Record) -> list[str]:
    times = [spread(row[key], 1000) for key in ("cold_fwd", "cold_bwd", "warm_fwd", "warm_bwd")]
    return [row["problem"], f"{row['implementation']} ({row['note']})", *times, row["status"]]


def _overhead_cells(row: Record) -> list[str]:
    times = [spread(row["ours"], 1e6), spread(row["theirs"], 1e6), spread(row["ratio"])]
    return [row["layer"], row["input"], row["gradients"], *times, row["status"]]


def _accelerate_cells(row: Record) -> list[str]:
    times = [spread(row[key], 1000) for key in ("plain", "accelerated")]
    memory = [mebibytes(row[key]) for key in ("memory_plain", "memory_accelerated")]
    return [row["network"], row["mode"], *times, spread(row["ratio"]), *memory, row["status"]]


def _tables_cells(row: Record) -> list[str]:
    errors = "; ".join(f"{part} {value:.1e}" for part, value in (row["errors"] or {}).items())
    parts = " / ".join(f"{100 * share:.0f} %" for share in (row["shares"] or {}).values())
    times = [spread(row["seconds"], 1000), spread(row["ratio"]), mebibytes(row["memory_bytes"]), parts or "-"]
    return [row["network"], row["what"], row["tables"], *times, errors or "-", row["status"]]


def _networks_about(row: Record) -> list[str]:
    return [f"{row['network']}, {row['atoms']} atoms", row["what"], row["implementation"]]


def _networks_cells(row: Record) -> list[str]:
    times = [spread(row["seconds"], 1e6 / row["atoms"]), spread(row["ratio"]), mebibytes(row["memory_bytes"])]
    status = row["status"] + (f": {row['reason']}" if row["reason"] else "")
    return [*_networks_about(row), str(row["threads"]), *times, status]


def _networks_parts(rows: list[Record]) -> Table:
    """Where the time of each row goes, and how far it is from the reference."""
    shown = [row for row in rows if row["shares"] or row["errors"]]
    cells = []
    for row in shown:
        if row is not next(r for r in shown if _networks_about(r) == _networks_about(row)):
            continue  # the same with other threads
        shares, errors = row["shares"] or {}, row["errors"] or {}
        parts = [f"{100 * shares[part]:.0f}" if part in shares else "-" for part in PARTS]
        found = [f"{errors[part]:.1e}" if part in errors else "-" for part in ("energy", "forces", "gradients")]
        counted = str(row.get("operators") or "-")  # results before it was counted have none
        cells.append([*_networks_about(row), *parts, counted, *found, str(row["compared_at"] or "-")])
    columns = ["network", "what", "implementation", *(f">{part}, %" for part in PARTS), ">operators"]
    columns += [">error, eV an atom", ">error, eV/A", ">error of gradients / largest", ">compared at atoms"]
    return Table("parts of the time, and errors", columns, cells)


def _first_cells(row: Record) -> list[str]:
    return [row["stage"], row["about"], row["status"], number(row["seconds"]), row["reason"]]


def _first_times(rows: list[Record]) -> list[Table]:
    """Times of kernels beside their bounds, by stage; registers and spills where they were compiled alone."""
    found = []
    for row in (row for row in rows if row["stage"] in ("kernels", "sweep")):
        cells = []
        for one in row["found"].get("rows", []):
            about = [one["problem"], one["layout"], one["direction"], one.get("variant", "")]
            compiled = [str(max(one[key])) if one.get(key) else "-" for key in ("registers", "spill_bytes")]
            bound = [number(one.get("bound_ms")), number(one.get("times_bound"))]
            cells.append([*about, spread(one.get("ms")), *bound, *compiled, one.get("error", "")])
        columns = ["problem", "layout", "direction", "variant", ">ms, device", ">bound, ms", ">time / bound"]
        found.append(Table(row["about"], [*columns, ">registers", ">spilled bytes", "error"], cells))
    return found


def _kernels_cells(row: Record) -> list[str]:
    about = [row[key] for key in ("problem", "operation", "layout", "dtype", "triton", "target", "direction")]
    worst = [str(max(row[key])) for key in ("registers", "spill_bytes", "shared_bytes")]
    has = "bound_ms" in row
    bound = [number(row["bound_ms"]), number(row["times_floor"]), _binds(row["launches"])] if has else ["-"] * 3
    return [*about, str(row["kernels"]), *worst, number(row["seconds"]), *bound]


def _binds(launches: list[Record]) -> str:
    """Limits, by the time of the launches that each binds."""
    times: dict[str, float] = {}
    for one in launches:
        times[one["binds"]] = times.get(one["binds"], 0.0) + max(one["seconds"].values())
    return ", ".join(
        sorted((name for name in times if times[name] >= 0.1 * sum(times.values())), key=times.__getitem__)[::-1]
    )


# kind of result -> title, columns, and the cells of a row
ROWS: dict[str, tuple[str, list[str], Callable[[Record], list[str]]]] = {
    "step": (
        "training step: forward, loss, backward, clipping, optimizer",
        ["network", "layout", "backend", ">ms", ">e3nn / this", ">parameters", "status"],
        _step_cells,
    ),
    "cold": (
        "first calls in a fresh process, ms, imports not counted",
        ["problem", "who", ">cold, forward", ">cold, backward", ">warm, forward", ">warm, backward", "status"],
        _cold_cells,
    ),
    "overhead": (
        "host time of one call",
        ["layer", "input", "gradients", ">this, us", ">e3nn, us", ">e3nn / this", "status"],
        _overhead_cells,
    ),
    "accelerate": (
        "networks of other packages, plain and accelerated, float32",
        [
            *("network", "what", ">plain, ms", ">accelerated, ms", ">plain / accelerated"),
            *(">plain, peak MiB", ">accelerated, peak MiB", "status"),
        ],
        _accelerate_cells,
    ),
    "tables": (
        "radial networks by tables",
        [
            *("network", "what", "tables", ">ms", ">first / this", ">peak MiB", ">kernels / products / rest"),
            *("largest errors", "status"),
        ],
        _tables_cells,
    ),
    "networks": (
        "whole networks, microseconds per atom",
        ["network", "what", "implementation", ">threads", ">us per atom", ">first / this", ">peak MiB", "status"],
        _networks_cells,
    ),
    "first-gpu": (
        "first minutes on a GPU",
        ["stage", "what", "status", ">seconds", "reason"],
        _first_cells,
    ),
    "kernels": (
        "printed kernels, compiled ahead of time",
        [
            *("problem", "operation", "layout", "dtype", "triton", "target", "direction"),
            *(">kernels", ">registers", ">spilled bytes", ">shared bytes", ">seconds to compile"),
            *(">bound, ms", ">bound / floor", "what binds"),
        ],
        _kernels_cells,
    ),
}


def head_notes(result: Record) -> list[str]:
    """Machine, versions, commit and date, as sentences."""
    machine, versions = result["machine"], result["versions"]
    shown = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    load = "" if machine["load_average"] is None else f", load {machine['load_average']} at the start"
    place = f"{machine.get('gpu', machine['cpu'])}, {machine['threads']} threads on {machine['cores']} cores{load}"
    notes = [f"{place}; {shown}; commit {result['commit'] or 'unknown'}; {result['date']}."]
    if "copy_bandwidth" in result:
        notes.append(f"Copy bandwidth: {spread(result['copy_bandwidth'], 1e-9)} GB/s, bytes read and written together.")
    for dtype, rate in result.get("peak_rate", {}).items():
        if rate is not None:
            notes.append(f"Peak of multiply-adds, {dtype}, one thread: {spread(rate, 1e-9)} G/s, each counted as two.")
    return notes


def tables(result: Record) -> list[Table]:
    """The tables of a result of any command.

    Args:
        result: What a command returned, or :func:`eqlayers.bench.results.load` read.

    Returns:
        Tables for the terminal and for a file.
    """
    if "cases" in result:
        found = [_times(result), _goals(_all_goals(result)), _trouble(result)]
    else:
        title, columns, cells = ROWS[result["kind"]]
        found = [Table(title, columns, [cells(row) for row in result["rows"]], list(result["notes"]))]
        found.append(_goals(result["goals"]))
        found += [_replaced(report) for report in result.get("reports", [])]
        if result["kind"] == "first-gpu":
            found += _first_times(result["rows"])
        if result["kind"] == "networks":
            found += [_networks_parts(result["rows"]), _dynamics(result.get("dynamics", []))]
        found.append(_by_knots(result.get("errors", [])))
    found = [table for table in found if table.rows]
    if found:
        found[0].notes.extend(head_notes(result))
    return found


def _dynamics(rows: list[Record]) -> Table:
    """The tables of `eqlayers bench networks --dynamics`."""
    columns = ["network", "implementation", ">atoms", ">steps", ">drift", ">around it", ">K", "status"]
    cells = []
    for row in rows:
        measured = [number(row[key]) for key in ("drift", "spread", "temperature")]
        cells.append([row["network"], row["implementation"], str(row["atoms"]), str(row["steps"]), *measured])
        cells[-1].append(row["reason"] or "ok")
    notes = ["Total energy, steps of 0.5 fs from one state. Drift: meV per atom and ps. Around it: meV per atom, RMS."]
    return Table("dynamics at constant energy", columns, cells, notes)


def _replaced(report: Record) -> Table:
    """The changes of `accelerate` to one network."""
    notes = ["Error: largest difference from the original module, over the bound of the rounding errors of both."]
    columns = ["module", "was", "is", "backend", ">error / bound"]
    return Table(f"modules of {report['network']}", columns, report["report"], notes)


def _by_knots(errors: list[Record]) -> Table:
    """Errors of tables of radial networks."""
    parts = ("values", "slopes", "energy64", "forces64", "energy32", "forces32")
    rows = [
        [row["network"], row["interpolation"], str(row["knots"])]
        + ["-" if row[part] is None else f"{row[part]:.1e}" for part in parts]
        for row in errors
    ]
    columns = ["network", "interpolation", ">knots", ">weights", ">slopes", ">eV an atom, float64", ">eV/A, float64"]
    notes = ["Weights and slopes: relative to the largest, in float64. Energies and forces: of the whole potential."]
    return Table("errors by knots", [*columns, ">eV an atom, float32", ">eV/A, float32"], rows, notes)


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


def _of_limit(limit: Record, row: Record) -> str:
    return f"{number(limit['seconds'] / device_seconds(row)['median'])} ({limit['binds']})"


def _times(result: Record) -> Table:
    of_layers = result["kind"] == "layers"
    bound = not of_layers and all("limits" in case for case in result["cases"])  # older files have none
    rows = []
    kinds = {"seconds": ">ms"} | ({"seconds_flushed": ">ms, device"} if result["device"] == "cuda" else {})
    for case in result["cases"]:
        for row in case["results"]:
            if row["seconds"] is None:
                continue
            ratios = [
                f"{r['peer']}: {spread(r['ratio'])}"
                for r in case["ratios"]
                if row["implementation"] == OURS and (r["layout"], r["direction"]) == (row["layout"], row["direction"])
            ]
            rows.append(
                [
                    case["name"],
                    row["direction"],
                    " ".join(part for part in (row["implementation"], row["layout"], f"({row['note']})") if part),
                    *(spread(row[kind], 1000) for kind in kinds),
                    "; ".join(ratios) or "-",
                    number(row["share"]) + (f" ({case['limits'][row['direction']]['binds']})" if of_layers else ""),
                    *([_of_limit(case["limits"][row["direction"]], row)] if bound else []),
                    mebibytes(row["memory_bytes"]),
                ]
            )
    share = ">share of the limit" if of_layers else ">share of bandwidth"
    limit = [">share of the limit"] if bound else []
    columns = ["case", "direction", "who", *kinds.values(), ">peer / this", share, *limit, ">peak, MiB"]
    notes = [
        "Medians with the 20 % and 80 % quantiles. A ratio above 1: this package is faster. "
        + (_OF_LIMIT if of_layers else _OF_COPIES),
        *([_OF_PRODUCTS] if bound else []),
        *([_abouts(result["cases"])] if of_layers else []),
        *([f"Peak memory was not measured: {result['memory_refusal']}."] if result["memory_refusal"] else []),
        *(
            [
                "ms: from a call on an idle GPU to its end, launches included. ms, device: with an emptied cache, and "
                "behind other work, so that launches cost nothing; share of bandwidth is over this."
            ]
            if result["device"] == "cuda"
            else []
        ),
    ]
    return Table(f"suite {result['suite']}, {result['dtype']}, {result['device']}", columns, rows, notes)


def _abouts(cases: list[Record]) -> str:
    """Descriptions of the layers of every problem; E is for edges or vectors, N for atoms."""
    found = {f"{case['group']}/{case['problem']}": case["about"] for case in cases}
    return "; ".join(f"{name}: {about}" for name, about in found.items()) + ". E: vectors or edges, N: atoms."


def _all_goals(result: Record) -> list[Record]:
    goals = [{"where": f"{case['name']}", **goal} for case in result["cases"] for goal in case["goals"]]
    return goals + [{"where": goal["group"], **goal} for goal in result["group_goals"]]


def _goals(goals: list[Record]) -> Table:
    rows = []
    for goal in goals:
        sign = ">=" if goal["at_least"] else "<="
        where = " ".join(str(goal[key]) for key in ("where", "direction", "layout") if goal.get(key))
        words = WORDS.get(goal["quantity"], goal["quantity"])
        rows.append([where, f"{sign} {number(goal['goal'])} {words}", number(goal["measured"]), verdict(goal["met"])])
    return Table("goals", ["where", "goal", ">measured", "verdict"], rows)


def _trouble(result: Record) -> Table:
    """The entries that were not timed, and why; equal reasons of several directions in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for case in result["cases"]:
        for row in case["results"]:
            if row["status"] != "ok":
                key = (case["name"], f"{row['implementation']} {row['layout']}".strip(), row["status"], row["reason"])
                rows.setdefault(key, []).append(row["direction"])
    cells = [[case, who, ", ".join(directions), status, why] for (case, who, status, why), directions in rows.items()]
    return Table("not timed", ["case", "who", "directions", "status", "reason"], cells)


def page(result: Record) -> str:
    """The tables as one page of Markdown, headed by the title of the first."""
    found = tables(result)
    return "\n\n".join(table.markdown(level=1 if table is found[0] else 2) for table in found) + "\n"


def write_report(result: Record, folder: str | Path) -> list[Path]:
    """Write the tables as Markdown, and for a suite the plots as PNG.

    Args:
        result: What :func:`eqlayers.bench.results.load` read.
        folder: Where to; it is made.

    Returns:
        The files.

    Raises:
        ConfigError: The folder cannot be written, or a name in the result would make a file elsewhere.
    """
    from .plots import RENAME, save_plots  # here: tables need no matplotlib

    folder = Path(folder)
    name = result.get("suite", result["kind"])
    path = folder / f"{plain_name(name, 'suite of the result', RENAME, 'file')}.md"
    text = page(result).encode()
    pictures = save_plots(result, folder)
    with whole_file(path) as file:
        file.write(text)
    return [path, *pictures]


def count_goals(result: Record) -> str:
    """One sentence on how many goals were met; empty where there are none."""
    goals = _all_goals(result) if "cases" in result else result["goals"]
    if not goals:
        return ""
    counts = {word: sum(verdict(goal["met"]) == word for goal in goals) for word in ("met", "missed", "not measured")}
    return f"{len(goals)} goals: " + ", ".join(f"{count} {word}" for word, count in counts.items())
