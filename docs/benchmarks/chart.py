"""Draws the chart of the front page from stored figures, and writes the numbers beside it.

    python docs/benchmarks/chart.py            # docs/images/chart_*.svg, and the numbers of benchmarks/README.md

The chart of the page about GPUs has the convolution of `docs/benchmarks/gpu/target` and the energies and forces of
`docs/benchmarks/gpu/networks.csv`.

Each network of `docs/benchmarks/networks` is one group of bars: the package that the network comes from, every other
package that ran the same weights, and this package. `eqlayers bench networks NAME --json FILE` makes a result.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[1]
NETWORKS = {"mace": "MACE", "nequip": "NequIP", "sevennet": "SevenNet", "allegro": "Allegro"}
ATOMS, THREADS = 256, 1
FORCES, TRAINING = "energy and forces", "training step"
#: Kinds of rows, with the colour of their bars: packages, the same numbers to rounding, radial networks by tables.
COLOURS = {"peer": "#9aa0a6", "exact": "#3b6fb6", "tables": "#1d3f72"}
PAGE = "benchmarks/README.md"
BEGIN = "<!-- numbers: begin, written by docs/benchmarks/chart.py -->"
END = "<!-- numbers: end -->"


class Bar(NamedTuple):
    """One measured row: microseconds per atom, and peak memory in MiB."""

    network: str
    what: str
    name: str
    kind: str
    time: float
    memory: float


def measured(docs: Path = DOCS) -> list[Bar]:
    """All rows of the chart's size and number of threads, in the order of the files."""
    bars = []
    for network, title in NETWORKS.items():
        for row in stored(docs, network)["rows"]:
            if row["status"] == "ok" and (row["atoms"], row["threads"]) == (ATOMS, THREADS):
                time, memory = row["seconds"]["median"] * 1e6 / ATOMS, (row["memory_bytes"] or 0) / 2**20
                bars.append(Bar(title, row["what"], row["implementation"], row["kind"], time, memory))
    return bars


def stored(docs: Path, network: str) -> dict[str, Any]:
    """The stored result of one network."""
    return json.loads((docs / "benchmarks" / "networks" / network / f"{network}.json").read_text())


def shown(bars: list[Bar], network: str, what: str = FORCES) -> list[Bar]:
    """The bars of one network: each other package by its fastest row; ours by the fastest row of each kind."""
    best: dict[str, Bar] = {}
    for bar in bars:
        if (bar.network, bar.what) == (network, what):
            key = bar.name.partition(",")[0] if bar.kind == "peer" else bar.kind
            if key not in best or bar.time < best[key].time:
                best[key] = bar
    return sorted(best.values(), key=lambda bar: (list(COLOURS).index(bar.kind), -bar.time))


def label(bar: Bar) -> str:
    """The name of a bar: a package, with the way it ran where the package has several; or this package."""
    own = {"exact": "eqlayers", "tables": "eqlayers, tables"}
    return own.get(bar.kind, bar.name.removesuffix(", eager"))


def draw(bars: list[Bar], path: Path, field: str, title: str) -> None:
    """One picture, of times or of memory, on a logarithmic axis with the numbers at the bars."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    groups = [(network, shown(bars, network)) for network in NETWORKS.values()]
    rows = sum(len(found) for _, found in groups) + len(groups)
    style = {"svg.hashsalt": "eqlayers", "svg.fonttype": "path", "font.size": 8}
    with plt.rc_context(style):
        figure, axis = plt.subplots(figsize=(3.7, 0.24 * rows + 0.5), layout="constrained")
        values = [getattr(bar, field) for _, found in groups for bar in found if getattr(bar, field)]
        least = min(values) / 2
        place, ticks, names = 0.0, [], []
        for network, found in groups:
            axis.text(0.0, place, network, transform=axis.get_yaxis_transform(), weight="bold", va="center")
            for bar in found:
                place += 1
                value = getattr(bar, field)
                axis.barh(place, value or least, color=COLOURS[bar.kind], height=0.8)
                axis.text((value or least) * 1.08, place, f"{value:,.0f}" if value else "not measured", va="center")
                ticks.append(place)
                names.append(label(bar))
            place += 1
        figure.suptitle(title, x=0.01, ha="left", size=9)
        axis.set(xscale="log", ylim=(place - 0.5, -0.7), xlim=(least, max(values) * 4))
        axis.set_yticks(ticks, names)
        axis.tick_params(left=False)
        axis.spines[["top", "right", "left"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def draw_gpu(docs: Path, path: Path) -> None:
    """Times on a GPU: one convolution in three directions, and energies and forces of MACE by the number of atoms."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    gpu = docs / "benchmarks" / "gpu"
    case = json.loads((gpu / "target" / "gpu-target.json").read_text())["cases"][0]
    directions = {"fwd": "forward", "bwd": "backward", "double_bwd": "second derivatives"}
    packages = {"openequivariance": "#c9ccd1", "cuequivariance": COLOURS["peer"], "eqlayers": COLOURS["exact"]}
    times = {
        (row["implementation"], row["direction"]): row["seconds_flushed"]["median"] * 1e3
        for row in case["results"]
        if row["implementation"] != "eqlayers" or row["layout"] == "ir_mul"
    }
    with (gpu / "networks.csv").open() as file:
        calls = [row for row in csv.DictReader(file) if (row["mode"], row["network"]) == ("forces", "mace")]
    lines = {
        "mace-torch": packages["openequivariance"],
        "mace-torch, cuequivariance": packages["cuequivariance"],
        "eqlayers, recorded": COLOURS["exact"],
        "eqlayers, tables, recorded": COLOURS["tables"],
    }
    style = {"svg.hashsalt": "eqlayers", "svg.fonttype": "path", "font.size": 8}
    with plt.rc_context(style):
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.9), layout="constrained")
        for number, (name, colour) in enumerate(packages.items()):
            heights = [times[name, direction] for direction in directions]
            bars = left.bar([n + 0.27 * (number - 1) for n in range(3)], heights, 0.25, color=colour, label=name)
            left.bar_label(bars, [f"{height:.2g}" for height in heights], size=7)
        left.set_xticks(range(3), list(directions.values()))
        left.set(ylabel="ms, logarithmic", yscale="log", title="convolution, 160,000 edges")
        for name, colour in lines.items():
            rows = [row for row in calls if row["row"] == name]
            atoms = [int(row["atoms"]) for row in rows]
            right.plot(atoms, [float(row["ms"]) for row in rows], "o-", color=colour, label=name, markersize=3)
        right.set(xscale="log", yscale="log", xlabel="atoms", ylabel="ms", title="MACE, energy and forces")
        for axis in (left, right):
            axis.legend(frameon=False, fontsize=7)
            axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def numbers(bars: list[Bar], docs: Path = DOCS) -> str:
    """Five numbers in Markdown: MACE and NequIP beside the fastest other package, the least gain, and training."""

    def row(network: str, what: str, kind: str) -> tuple[Bar, Bar]:
        found = shown(bars, network, what)
        peer = min((bar for bar in found if bar.kind == "peer"), key=lambda bar: bar.time)
        return peer, next(bar for bar in found if bar.kind == kind)

    asked = [
        ("MACE", FORCES, "exact"),
        ("MACE", FORCES, "tables"),
        ("MACE", TRAINING, "tables"),
        ("NequIP", FORCES, "exact"),
        ("NequIP", TRAINING, "tables"),
    ]
    machine = stored(docs, "mace")["machine"]["cpu"]
    lines = [
        f"{ATOMS} atoms, one thread of an {machine}, float32, beside the fastest other package. Times are microseconds",
        "per atom, memory is the peak in MiB.",
        "",
        "| network | what | other | its time | our time | times faster | its memory | our memory |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for network, what, kind in asked:
        peer, own = row(network, what, kind)
        means = f"{what}, radial tables" if kind == "tables" else what
        times = f"{peer.time:,.0f} | {own.time:,.0f} | **{peer.time / own.time:.3g}**"
        memory = " | ".join(f"{bar.memory:,.0f}" if bar.memory else "-" for bar in (peer, own))
        lines.append(f"| {network} | {means} | {label(peer)} | {times} | {memory} |")
    return "\n".join(lines)


def written(text: str, new: str) -> str:
    """A page with the part between its markers replaced."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"a page with numbers must have the markers {BEGIN} and {END}. Put them back.")
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{after}"


def main() -> None:
    """Write pictures and pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of the pages")
    docs = parser.parse_args().docs
    bars = measured(docs)
    draw(bars, docs / "images" / "chart_time.svg", "time", "energy and forces, microseconds per atom")
    draw(bars, docs / "images" / "chart_memory.svg", "memory", "peak memory of it, MiB")
    draw_gpu(docs, docs / "images" / "chart_gpu.svg")
    page = docs / PAGE
    page.write_text(written(page.read_text(), numbers(bars, docs)))
    print(f"written: chart_time.svg, chart_memory.svg, chart_gpu.svg in {docs / 'images'}; the numbers in {page}")


if __name__ == "__main__":
    main()
