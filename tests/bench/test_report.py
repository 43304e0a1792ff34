"""Tables and pages of results: cells, notes, goals, and what was not timed."""

from pathlib import Path
from typing import Any

from eqlayers.bench.report import count_goals, head_notes, tables, write_report
from eqlayers.bench.results import load

STORED = Path(__file__).parent / "stored" / "run.json"


def test_report_of_a_stored_result(tmp_path: Path) -> None:
    result = load(STORED)
    shown = {table.title: table for table in tables(result)}
    assert list(shown) == ["suite smoke, float32, cpu", "goals", "not timed"]
    files = write_report(result, tmp_path / "new")
    names = [path.name for path in files]
    assert names[0] == "smoke.md"
    assert {"smoke_unfused_ratios.png", "smoke_unfused_shares.png", "smoke_fused_small_growth.png"} <= set(names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files[1:])
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(names), "no temporary file is left"
    text = files[0].read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["# suite smoke, float32, cpu", "## goals", "## not timed"]
    for cell in (
        "unfused/odd/E30",
        "| met |",
        "not measured",
        "e3nn: ",
        "Copy bandwidth",
        result["date"],
        result["machine"]["cpu"],
    ):
        assert cell in text
    goals = [g for case in result["cases"] for g in case["goals"]] + result["group_goals"]
    assert count_goals(result).startswith(f"{len(goals)} goals: {sum(bool(g['met']) for g in goals)} met")


def test_the_head_names_the_machine_and_every_peak() -> None:
    about: dict[str, Any] = {
        "machine": {"cpu": "c", "gpu": "H100", "threads": 2, "cores": 4, "load_average": None},
        "commit": None,
    }
    about |= {"versions": {"torch": "2", "triton": None}, "date": "today"}
    rate = {"median": 5e9, "q20": 4e9, "q80": 6e9}
    first, copies, peak = head_notes(
        {**about, "copy_bandwidth": rate, "peak_rate": {"float32": rate, "bfloat16": None}}
    )
    assert first == "H100, 2 threads on 4 cores; torch 2; commit unknown; today."
    assert copies.startswith("Copy bandwidth: 5 [4, 6] GB/s")
    assert peak.startswith("Peak of multiply-adds, float32, one thread: 5 [4, 6] G/s")
