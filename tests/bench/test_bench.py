"""Configurations of benchmarks, results with their goals, tables, pages and pictures, and the limits of a machine."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from eqlayers import TensorProduct
from eqlayers.bench import measure, roofline
from eqlayers.bench.config import Known, find_config, matching, read_config, read_fields, read_goals
from eqlayers.bench.layers.run import LayerCase, build, read_layer_suite
from eqlayers.bench.measure import RESOLUTION
from eqlayers.bench.plots import bars, figures_of, growth, times_by_atoms
from eqlayers.bench.report import count_goals, head_notes, tables, write_report
from eqlayers.bench.results import Table, fastest, flat_rows, goal, judge, judge_groups, load, number, save, save_csv
from eqlayers.bench.roofline import limit, operations, peak_rate, product_operations
from eqlayers.bench.run import run_suite
from eqlayers.errors import ConfigError
from eqlayers.layers.harmonics.lower import harmonics_formula
from tests.each import each

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
    machine = result["machine"]["cpu"]
    for cell in ("unfused/odd/E30", "| met |", "not measured", "e3nn: ", "Copy bandwidth", result["date"], machine):
        assert cell in text
    goals = [g for case in result["cases"] for g in case["goals"]] + result["group_goals"]
    assert count_goals(result).startswith(f"{len(goals)} goals: {sum(bool(g['met']) for g in goals)} met")


def test_the_head_names_the_machine_and_every_peak() -> None:
    machine = {"cpu": "c", "gpu": "H100", "threads": 2, "cores": 4, "load_average": None}
    about = {"machine": machine, "commit": None, "versions": {"torch": "2", "triton": None}, "date": "today"}
    rate = {"median": 5e9, "q20": 4e9, "q80": 6e9}
    about |= {"copy_bandwidth": rate, "peak_rate": {"float32": rate, "bfloat16": None}}
    first, copies, peak = head_notes(about)
    assert first == "H100, 2 threads on 4 cores; torch 2; commit unknown; today."
    assert copies.startswith("Copy bandwidth: 5 [4, 6] GB/s")
    assert peak.startswith("Peak of multiply-adds, float32, one thread: 5 [4, 6] G/s")


def row_of(who: str, median: float, memory: int | None = None, layout: str = "mul_ir") -> dict:
    seconds = {"median": median, "q20": median, "q80": median}
    about = {"implementation": who, "layout": layout, "direction": "fwd", "share": 0.5}
    return {**about, "seconds": seconds, "memory_bytes": memory}


def test_goals_are_judged_against_the_best_peer() -> None:
    mebibyte = 2**20
    results = [
        row_of("eqlayers", 1.0, mebibyte, "ir_mul"),
        row_of("e3nn", 30.0, 8 * mebibyte),
        row_of("other", 20.0, 4 * mebibyte),
    ]
    ratios = [
        {"layout": "ir_mul", "direction": "fwd", "peer": who, "ratio": {"median": value}}
        for who, value in (("e3nn", 30.0), ("other", 20.0))
    ]
    assert fastest(results, "fwd")["implementation"] == "other"
    assert fastest([*results, row_of("eqlayers-unordered", 1.0)], "fwd")["implementation"] == "other"
    asked = {"ratio": {"fwd": 25}, "share": {"fwd": 0.5}, "memory": {"fwd": 0.2}, "time_ms": {"fwd": 1000.0}}
    judgements = {g["quantity"]: (g["measured"], g["met"]) for g in judge(asked, results, ratios)}
    assert judgements == {
        "ratio": (20.0, False), "share": (0.5, True), "memory": (0.25, False), "time_ms": (1000.0, True),
    }  # fmt: skip
    results[2]["memory_bytes"] = results[1]["memory_bytes"] = 1000  # below what the kernel can tell
    assert judge({"memory": {"fwd": 0.2}}, results, ratios)[0]["met"] is None
    case = {"group": "g", "layouts": ["ir_mul"], "goals_asked": {"median_ratio": {"fwd": 20}}}
    case |= {"results": results, "ratios": ratios}
    slow = {**case, "ratios": [{**r, "ratio": {"median": 1.0}} for r in ratios]}
    assert [g["measured"] for g in judge_groups([case, slow, case])] == [20.0]
    assert judge_groups([case, {**case, "ratios": []}])[0]["met"] is None
    assert goal("memory", 0.2, 0.2)["met"] is True


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "run"}', '{"kind": "walk", "format": 1}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="Give a file that `eqlayers bench run"):
        load(tmp_path / "x.json")


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"a result must .*got .*x\.json: .* Name another"):
        save({"kind": "run"}, tmp_path / "file" / "x.json")
    with pytest.raises(TypeError):
        save({"kind": object()}, tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "a failed write leaves nothing"


@each("value", [0.0123456, 1.0e-6, -0.5, 7.0, 99.95, 999.6, 1234.5, 5e6, -2e9])
def test_numbers_have_three_digits_and_no_exponent(value: float) -> None:
    assert "e" not in number(value)
    assert float(number(value)) == pytest.approx(value, rel=6e-3)


def test_a_cell_stays_one_cell_of_the_table() -> None:
    """A bar would end the cell in Markdown, a bracket would be a style of the terminal."""
    table = Table("t", ["what", ">ms"], [["a | b", "[red]"]])
    assert table.markdown(2).splitlines()[-1] == "| a / b | [red] |"
    (cells,) = zip(*(column.cells for column in table.rich().columns), strict=True)
    assert cells[1] == r"\[red]"


def test_rows_of_csv_have_the_columns_of_all(tmp_path: Path) -> None:
    result = {"kind": "step", "commit": None, "date": "d", "rows": [{"a": 1, "s": {"median": 2.0}}, {"b": "x,y"}]}
    assert flat_rows(result)[0] == {"commit": None, "date": "d", "a": 1, "s_median": 2.0}
    save_csv(result, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == 'commit,date,a,s_median,b\n,d,1,2.0,\n,d,,,"x,y"\n'


FOLDER = Path(__file__).resolve().parents[2] / "configs" / "bench"


@each(
    "kind, good, bad",
    [
        ("text", "x", 3), ("count", 3, 0), ("count", 1, True), ("count", 2, 2.0), ("number", 0.5, -1.0),
        ("number", 3, False), ("texts", [], "x"), ("texts", ["a"], ["a", 1]), ("counts", [1, 2], [1, 0]),
        ("numbers", {"a": 1.5}, {"a": "much"}), ("numbers", {}, [1.5]), ("mapping", {"a": None}, {}),
        ("mappings", {"a": {"b": 1}}, {"a": {}}), (Known("text", "device", ("cpu", "cuda")), "cuda", "gpu"),
        (Known("texts", "layout", ("a", "b")), ["b", "a"], ["c"]),
        (Known("numbers", "goal", ("ratio",)), {"ratio": 2}, {"share": 2}),
    ],
)  # fmt: skip
def test_a_field_has_its_kind(kind: Any, good: Any, bad: Any) -> None:
    assert read_fields("x.yaml", {"field": good}, {"field": kind}) == {"field": good}
    with pytest.raises(ConfigError, match=r"^x\.yaml: .*(field must|expected a (device|layout|goal) among)"):
        read_fields("x.yaml", {"field": bad}, {"field": kind})


def test_defaults_are_filled_in_and_not_looked_at() -> None:
    optional = {"how": ("text", None), "edges": ("counts", [])}
    assert read_fields("x", {"n": 1}, {"n": "count"}, optional) == {"n": 1, "how": None, "edges": []}
    assert read_fields("x", {"n": 1, "how": "y"}, {"n": "count"}, optional)["how"] == "y"


@each(
    "entries, message",
    [
        (None, "x must be a mapping, got nothing"),
        ([1], "x must be a mapping, got a list"),
        ({"password": 1}, "x must have keys among runs, threads, got none of them"),
        ({"runs": 1, "thread": 2}, "x: expected a key among runs, threads; got 'thread'. Did you mean 'threads'?"),
        ({"runs": 1}, "x: expected the key 'threads', got runs. Add it"),
        ({}, "x: expected the key 'runs', got none. Add it"),
    ],
)
def test_mappings_that_are_something_else(entries: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_fields("x", entries, {"runs": "count", "threads": "count"})
    assert str(caught.value).startswith(message)


def test_goals_are_numbers_by_quantity_and_direction() -> None:
    assert read_goals("x", {"ratio": {"fwd": 2}, "memory": {}}, ("fwd", "bwd")) == {"ratio": {"fwd": 2.0}, "memory": {}}
    with pytest.raises(ConfigError, match="x, ratio must"):
        read_goals("x", {"ratio": {"back": 2}}, ("fwd", "bwd"))


def test_a_pattern_chooses_by_name_and_keeps_the_order() -> None:
    items = [SimpleNamespace(name=name) for name in ("fused/b", "fused/a", "other/a")]
    assert matching(items, None, "s") == tuple(items)
    assert matching(items, "fused/*", "s") == tuple(items[:2])
    assert matching(items, "*/[a]", "s") == tuple(items[1:])
    with pytest.raises(ConfigError, match=r"--only must .*got 'x'"):
        matching(items, "x", "s")
    with pytest.raises(ConfigError, match=r"--only must .*got 3"):
        matching(items, 3, "s")  # type: ignore[arg-type]


def test_a_configuration_of_training_is_told_from_one_of_benchmarks(tmp_path: Path) -> None:
    (tmp_path / "fit.yaml").write_text("model: {}\ntrainer: {}\n")
    with pytest.raises(ConfigError, match=r"must be a configuration of benchmarks, got one of training"):
        read_config(tmp_path / "fit.yaml")
    with pytest.raises(ConfigError, match=r"which does not exist\. There is fit\.yaml"):
        read_config(tmp_path / "fits.yaml")


def test_a_name_where_there_is_no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("eqlayers.bench.config.__file__", str(tmp_path / "a" / "b" / "config.py"))
    with pytest.raises(ConfigError, match=r"a path such as path/to/cpu.yaml was expected, got the name 'cpu'"):
        find_config("cpu")


def test_every_line_is_explained() -> None:
    for path in FOLDER.glob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        assert [line for line in lines if "#" not in line] == [], path
        assert yaml.safe_load(path.read_text())


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
    cases = load(STORED)["cases"]
    refused = [{**one, "ratios": [], "results": [{**r, "seconds": None} for r in one["results"]]} for one in cases]
    assert figures_of({**head, "cases": refused}) == {}
    assert figures_of({"kind": "step", "rows": []}) == {}
    without = [{**one, "ratios": []} for one in cases[:1]]
    assert list(figures_of({**head, "cases": without})) == ["s_unfused_shares"]


HARMONICS = LayerCase("a", "SphericalHarmonics", 5, options={"lmax": 3})


def test_what_takes_longer_binds() -> None:
    assert limit(100, 10, 10, 100) == (10.0, "bytes")
    assert limit(10, 1000, 10, 100) == (10.0, "operations")
    assert limit(10, 1000, 10, None) == (1.0, "bytes")


def test_operations_are_those_of_the_formulas() -> None:
    base = harmonics_formula((0, 1), False, "component")  # sqrt(3) times x, y, z, and 1
    # three products for the gradient g of a force, and three for what a gradient of that force is by g
    assert operations(base, [True], [False], [True]) == {"fwd": 3, "fwd+bwd": 6, "fwd+double": 9}
    counts = build(HARMONICS, torch.device("cpu")).operations
    assert counts["fwd"] < counts["fwd+bwd"] < counts["fwd+double"]
    assert build(replace(HARMONICS, rows=10), torch.device("cpu")).operations == {d: 2 * n for d, n in counts.items()}


def test_operations_of_products_are_of_channels_and_of_weights() -> None:
    def count(out: str, mode: str, weight: bool = True) -> tuple[int, ...]:
        layer = TensorProduct("4x1o", "1o", out, [(0, 0, 0, mode, weight)], internal_weights=False)
        return tuple(product_operations(layer.plan.form.program).values())

    apply, scale, mix = 2 * 3 * 4, 1 * 4, 2 * 1 * 4 * 8  # three pairs of components in four channels, to eight
    assert count("4x0e", "uvu", weight=False) == (apply, 2 * apply, 5 * apply)
    assert count("4x0e", "uvu") == (apply + scale, 2 * apply + 5 * scale, 5 * apply + 12 * scale)
    assert count("8x0e", "uvw") == (apply + mix, 3 * apply + 2 * mix, 7 * apply + 5 * mix)


def test_bytes_are_those_of_operands_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**20)
    suite = replace(read_layer_suite(), cases=(replace(HARMONICS, runs=1),))
    limits = run_suite(suite, peers=[])["cases"][0]["limits"]
    x, z = 5 * 3 * 4, 5 * 16 * 4
    assert limits["fwd"]["bytes"] == x + z
    assert limits["fwd+bwd"]["bytes"] == x + z + z + x
    assert limits["fwd+double"]["bytes"] == x + z + z + x + x + x + z


def test_the_peak_is_of_independent_multiply_adds() -> None:
    source = roofline.peak_source("float32")
    assert all(f"a{i} = a{i} * f + t;" in source for i in range(roofline.CHAINS))
    rates = {dtype: peak_rate(dtype, runs=3) for dtype in ("float32", "float64")}
    for rate in rates.values():
        assert rate is None or 1e9 < rate["median"] < 1e12


def test_no_peak_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline.compiler, "why_not", lambda: "needs a C compiler")
    assert peak_rate("float32") is None


def test_no_peak_of_types_that_kernels_do_not_compute_in() -> None:
    assert peak_rate("bfloat16") is None
