"""Goals of times on a GPU: multiples of the least time of the machine code, which some card can reach."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from eqlayers.bench.products.suite import read_suite
from eqlayers.bench.results import judge, load
from eqlayers.bench.roofline import GRAPH, MEMORY, STORED, TIMES_BOUND, bound_of, read_bounds, scaled_bound
from ptx_emulator import bounds

LARGE = {"problem": "mace-large", "operation": "conv", "dtype": "float32"}


def about(layout: str, direction: str, **others: str) -> dict[str, str]:
    return {**LARGE, "layout": layout, "direction": direction, **others}


def test_on_the_card_of_the_bounds_they_are_as_they_were_stored() -> None:
    rows = [row for row in load(STORED, ("kernels",))["rows"] if row.get("launches")]
    last = {tuple(row[name] for name in ("problem", "operation", "layout", "direction")): row for row in rows}
    assert len(last) > 10
    assert read_bounds().keys() == last.keys()
    for key, row in last.items():
        assert scaled_bound(read_bounds()[key], MEMORY) == pytest.approx(row["bound_ms"] / 1000)


def test_the_card_and_the_graph_of_the_bounds() -> None:
    """The package repeats two numbers of the emulator, which is in no wheel."""
    assert bounds.H200.memory == MEMORY
    assert bounds.Graph() == bounds.Graph(*GRAPH)


def test_only_what_waits_for_main_memory_is_scaled() -> None:
    launches = [{"seconds": {"HBM": 0.2, "L2": 0.3}}, {"seconds": {"HBM": 0.5, "issue": 0.1}}]
    assert scaled_bound(launches, MEMORY) == pytest.approx(0.8)
    assert scaled_bound(launches, MEMORY / 2) == pytest.approx(1.4)
    assert scaled_bound(launches, 100 * MEMORY) == pytest.approx(0.3 + 0.1)


def test_bounds_belong_to_a_dtype_and_to_sizes(tmp_path: Path) -> None:
    whole = bound_of(about("ir_mul", "double_bwd"), MEMORY, 3000, 160_000)
    assert whole == pytest.approx(2.28e-3, rel=0.01)
    assert bound_of(about("ir_mul", "double_bwd", dtype="float64"), MEMORY, 3000, 160_000) is None
    assert bound_of(about("ir_mul", "double_bwd"), MEMORY, 4000, 70_000) is None
    assert bound_of(about("ir_mul", "double_bwd", problem="diffdock"), MEMORY, 3000, 160_000) is None
    assert read_bounds(tmp_path / "none.json") == {}


def test_no_goal_of_a_gpu_lies_below_its_bound() -> None:
    """Milliseconds and shares of the bandwidth know nothing of the kernels; multiples of the bound do."""
    for name in ("gpu", "gpu-small"):
        for case in read_suite(name).cases:
            assert not {"time_ms", "share"} & case.goals.keys(), case.name
            for direction, times in case.goals.get("times_bound", {}).items():
                assert times >= TIMES_BOUND
                for layout in case.layouts:
                    asked = {"problem": case.problem.name, "operation": case.operation, "dtype": case.dtype}
                    asked |= {"layout": layout, "direction": direction}
                    assert bound_of(asked, MEMORY, case.graph.nodes, case.graph.edges), case.name


def test_times_are_judged_beside_the_bound() -> None:
    seconds = {"median": 2.5e-3, "q20": 2e-3, "q80": 3e-3}
    row = {"implementation": "eqlayers", "layout": "ir_mul", "direction": "fwd", "seconds": seconds}
    asked = {"times_bound": {"fwd": TIMES_BOUND}}
    judged = [
        judge(asked, [{**row, **bound}], [])[0]
        for bound in ({"bound_seconds": 2e-3}, {"bound_seconds": 1e-3}, {"bound_seconds": None}, {})
    ]
    assert [goal["measured"] for goal in judged] == [pytest.approx(1.25), pytest.approx(2.5), None, None]
    assert [goal["met"] for goal in judged] == [True, False, None, None]
