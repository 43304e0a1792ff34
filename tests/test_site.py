"""The site: its chart shows stored figures."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def chart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_chart", DOCS / "benchmarks" / "chart.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_stored_numbers(chart: ModuleType) -> None:
    """`python docs/benchmarks/chart.py` wrote them."""
    text = (DOCS / chart.PAGE).read_text()
    shown = text.partition(chart.BEGIN)[2].partition(chart.END)[0].strip()
    assert shown == chart.numbers(chart.measured()), (
        f"docs/{chart.PAGE} is stale: run `python docs/benchmarks/chart.py`"
    )


def test_the_fastest_other_package_is_shown(chart: ModuleType, tmp_path: Path) -> None:
    """A row of a third package appears in chart and numbers as soon as it is stored."""
    networks = tmp_path / "benchmarks" / "networks"
    shutil.copytree(DOCS / "benchmarks" / "networks", networks)
    stored = networks / "mace" / "mace.json"
    result: dict[str, Any] = json.loads(stored.read_text())
    row = next(row for row in result["rows"] if (row["atoms"], row["threads"]) == (chart.ATOMS, chart.THREADS))
    other = row | {"implementation": "other, prepared", "seconds": {"median": 0.256, "q20": 0.25, "q80": 0.26}}
    result["rows"].append(other | {"memory_bytes": 3 * 2**20})
    result["rows"].append(other | {"implementation": "other, whole call", "seconds": {"median": 0.5}})
    stored.write_text(json.dumps(result))
    bars = chart.measured(tmp_path)
    assert [bar.name for bar in chart.shown(bars, "MACE") if bar.kind == "peer"] == [
        "mace-torch, eager",
        "other, prepared",
    ]
    assert "| other, prepared | 1,000 | 1,121 | **0.892** | 3 |" in chart.numbers(bars, tmp_path)
    pytest.importorskip("matplotlib")  # absent from the environments of other torches
    chart.draw(bars, tmp_path / "chart.svg", "time", "time")
    assert (tmp_path / "chart.svg").stat().st_size > 5000
