"""Pictures of results: bars of ratios and shares, lines by edges and atoms."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eqlayers.bench.measure import RESOLUTION
from eqlayers.bench.plots import bars, figures_of, growth, times_by_atoms
from eqlayers.bench.results import load

CASES = load(Path(__file__).parent / "stored" / "run.json")["cases"]


def row(who: str, seconds: float, layout: str = "mul_ir", **more: Any) -> dict[str, Any]:
    spread = {"median": seconds, "q20": 0.8 * seconds, "q80": 1.25 * seconds}
    about = {"implementation": who, "layout": layout, "direction": "fwd", "seconds": spread}
    return about | {"share": 0.1 / seconds, "memory_bytes": 4 * RESOLUTION} | more


def case(name: str = "g/p/E10", edges: int = 10) -> dict[str, Any]:
    """Ours in two layouts, of which the second is faster, and two peers."""
    rows = [row("eqlayers", 2.0, "ir_mul"), row("eqlayers", 1.0), row("slow", 9.0, ""), row("quick", 3.0, "")]
    ratios = [
        {"layout": layout, "direction": "fwd", "peer": peer, "ratio": {"median": value, "q20": value / 2, "q80": value}}
        for layout, peer, value in (("mul_ir", "slow", 9.0), ("mul_ir", "quick", 3.0), ("ir_mul", "quick", 1.5))
    ]
    about = {"name": name, "group": name.split("/")[0], "problem": "p", "edges": edges}
    return about | {"results": rows, "ratios": ratios, "goals_asked": {"ratio": {"fwd": 2.5}}}


def test_bars_are_of_the_best_layout_beside_the_fastest_peer() -> None:
    axis = bars([case(), case("g/q/E10")], "title").axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axis.patches] == [(1.0, 2.0)] * 2, "3, from 1 on"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["p/E10", "q/E10"], "without the one group"
    assert [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == "--"] == [2.5]


def test_bars_of_shares_have_their_quantiles_the_other_way_round() -> None:
    """A time that is longer is a share that is smaller."""
    axis = bars([case()], "title", "share").axes[0]
    (bar,) = axis.patches
    assert (bar.get_x(), bar.get_width()) == (0.0, pytest.approx(0.1))
    (errors,) = [one for one in axis.collections if hasattr(one, "get_segments")]
    assert np.asarray(errors.get_segments()[0])[:, 0].tolist() == pytest.approx([0.08, 0.125])


def test_lines_of_growth_are_sorted_and_leave_out_what_cannot_be_told() -> None:
    cases = [case(edges=200), case(edges=50)]
    for one in cases:
        one["results"] = [row("eqlayers", one["edges"] / 1000, memory_bytes=RESOLUTION // 2), row("peer", 1.0, "")]
    times, memory = growth(cases, "title").axes
    lines = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in times.lines}
    assert lines == {"eqlayers mul_ir, fwd": [[50, 50], [200, 200]], "peer, fwd": [[50, 1000], [200, 1000]]}
    assert [line.get_label() for line in memory.lines] == ["peer, fwd"]


def test_times_by_atoms_have_a_panel_for_each_network_and_mode() -> None:
    rows = [
        {"network": network, "what": "forces", "atoms": atoms, "implementation": "a", "threads": 1, "seconds": seconds}
        for network, atoms, seconds in (("n", 64, {"median": 0.064}), ("n", 16, {"median": 0.032}), ("m", 16, None))
    ]
    (axis,) = times_by_atoms(rows).axes
    assert axis.get_title() == "n, forces"
    assert np.asarray(axis.lines[0].get_xydata()).tolist() == [[16, 2000], [64, 1000]]


def test_a_result_has_the_pictures_that_it_has_the_numbers_for() -> None:
    head = {"kind": "run", "suite": "s", "dtype": "float32", "machine": {"threads": 1}}
    refused = [{**one, "ratios": [], "results": [{**r, "seconds": None} for r in one["results"]]} for one in CASES]
    assert figures_of({**head, "cases": refused}) == {}
    assert figures_of({"kind": "step", "rows": []}) == {}
    without = [{**one, "ratios": []} for one in CASES[:1]]
    assert list(figures_of({**head, "cases": without})) == ["s_unfused_shares"]
