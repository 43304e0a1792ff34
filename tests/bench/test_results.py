"""Results: goals beside the best peer, files that are whole or not there, and rows of CSV."""

from pathlib import Path

import pytest

from eqlayers.bench.results import Table, fastest, flat_rows, goal, judge, judge_groups, load, number, save, save_csv
from eqlayers.errors import ConfigError
from tests.each import each


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
        "ratio": (20.0, False),
        "share": (0.5, True),
        "memory": (0.25, False),
        "time_ms": (1000.0, True),
    }
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
