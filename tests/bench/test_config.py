"""Configurations of the benchmarks are read by lists of known fields, and errors name the field and the fix."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from eqlayers.bench.config import Known, find_config, matching, read_config, read_fields, read_goals
from eqlayers.errors import ConfigError
from tests.each import each

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "bench"


@each(
    "kind, good, bad",
    [
        ("text", "x", 3),
        ("count", 3, 0),
        ("count", 1, True),
        ("count", 2, 2.0),
        ("number", 0.5, -1.0),
        ("number", 3, False),
        ("texts", [], "x"),
        ("texts", ["a"], ["a", 1]),
        ("counts", [1, 2], [1, 0]),
        ("numbers", {"a": 1.5}, {"a": "much"}),
        ("numbers", {}, [1.5]),
        ("mapping", {"a": None}, {}),
        ("mappings", {"a": {"b": 1}}, {"a": {}}),
        (Known("text", "device", ("cpu", "cuda")), "cuda", "gpu"),
        (Known("texts", "layout", ("a", "b")), ["b", "a"], ["c"]),
        (Known("numbers", "goal", ("ratio",)), {"ratio": 2}, {"share": 2}),
    ],
)
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
