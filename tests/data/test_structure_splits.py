"""Splits of structures: sizes, disjoint parts, gaps in time, groups, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from eqlayers.data.splits import STRUCTURE_SPLITS, split_structures
from eqlayers.errors import ConfigError, DataError

GROUPS = np.array(["water", "ice", "steam", "ice", "water"] * 20)


def sizes(parts) -> list[int]:
    assert len(set(np.concatenate(parts).tolist())) == sum(map(len, parts)), "parts overlap"
    return [len(part) for part in parts]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [80, 10, 10]),
        ({"train": 50, "val": 20}, [50, 20, 30]),
        ({"train": 50, "val": 20, "test": 10}, [50, 20, 10]),
        ({"val": 0.25, "test": 0}, [75, 25, 0]),
        ({"train": 0.5, "val": 0.5}, [50, 50, 0]),
        ({"val": 0, "test": 0}, [100, 0, 0]),
        ({"test": 1}, [89, 10, 1]),
        ({"train": 1.0, "val": 0}, [100, 0, 0]),
    ],
)
def test_random(asked, expected):
    assert sizes(split_structures("random", GROUPS, **asked)) == expected


def test_the_seed_is_fixed_and_can_be_chosen():
    first, again = (split_structures("random", GROUPS)[0].tolist() for _ in range(2))
    assert first == again
    assert first != sorted(first)
    assert first != split_structures("random", GROUPS, seed=1)[0].tolist()
    # a smaller training part is part of a larger one
    assert split_structures("random", GROUPS, train=10)[0].tolist() == first[:10]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [(0, 59), (62, 77), (80, 99)]),
        ({"train": 50, "val": 20, "test": 20}, [(0, 49), (55, 74), (80, 99)]),
        ({"val": 0}, [(0, 77), None, (80, 99)]),
        ({"val": 0, "test": 0}, [(0, 99), None, None]),
        ({"train": 0.5, "val": 0.5, "test": 0}, [(0, 49), (50, 99), None]),
    ],
)
def test_time(asked, expected):
    parts = split_structures("time", GROUPS, **asked)
    assert [(int(part[0]), int(part[-1])) if len(part) else None for part in parts] == expected
    assert all((np.diff(part) == 1).all() for part in parts)


def test_groups():
    train, val, test = split_structures("config_type", GROUPS, test="steam")
    assert set(GROUPS[test]) == {"steam"}
    assert sizes((train, val, test)) == [72, 8, 20]
    assert "steam" not in GROUPS[train]
    assert "steam" not in GROUPS[val]
    parts = split_structures("config_type", GROUPS, train=["water"], val=["ice"], test=["steam"])
    assert [set(GROUPS[part].tolist()) for part in parts] == [{"water"}, {"ice"}, {"steam"}]
    train, val, test = split_structures("config_type", GROUPS, train=["water"], val=4, test=0.5)
    assert set(GROUPS[train]) == {"water"}
    assert sizes((train, val, test)) == [40, 4, 30]
    assert "water" not in GROUPS[test]


@pytest.fixture
def rows(tmp_path):
    """Writes a file of row numbers and gives its name."""

    def write(name, content) -> str:
        text = content if isinstance(content, str) else "\n".join(map(str, content)) + "\n"
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_files_of_rows(rows):
    train, val, test = rows("train", range(0, 40, 2)), rows("val", "41, 43\n45"), rows("test", [99, 0 + 1])
    parts = split_structures("rows", GROUPS, train=train, val=val, test=test)
    assert [part.tolist() for part in parts] == [list(range(0, 40, 2)), [41, 43, 45], [99, 1]]
    # numbers are drawn: of training rows for validation, of the rest for test
    drawn = split_structures("rows", GROUPS, train=train, val=5)
    assert sizes(drawn) == [15, 5, 80]
    assert sorted(np.concatenate(drawn[:2]).tolist()) == list(range(0, 40, 2))
    assert drawn[1].tolist() != split_structures("rows", GROUPS, train=train, val=5, seed=1)[1].tolist()
    assert sizes(split_structures("rows", GROUPS, train=train, test=test)) == [18, 2, 2]
    assert sizes(split_structures("rows", GROUPS, train=train, val=0, test=0.5)) == [20, 0, 40]
    assert sizes(split_structures("rows", GROUPS, train=train, val=0, test=0)) == [20, 0, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "got none in .*Take one such as rMD17's index_train_01.csv"),
        ("row\n3\n", "got .* which holds other things"),
        ("1.5\n", "got .* which holds other things"),
        ("99999999999999999999\n", "got .* which holds other things"),
        ([3, 100, 101], "got 2 others in .*, the first 100"),
        ([3, -1], "got 1 others in .*, the first -1"),
        ([3, 4, 3], "got 1 twice in"),
    ],
)
def test_files_without_rows(rows, content, message):
    with pytest.raises(DataError, match="train must be a file of row numbers from 0 to 99, each once, " + message):
        split_structures("rows", GROUPS, train=rows("train", content))


def test_rows_that_do_not_fit(rows, tmp_path):
    train, test = rows("train", range(20)), rows("test", [30, 19])
    with pytest.raises(DataError, match=r"rows must be in one part each, got 1 in two, the first 19"):
        split_structures("rows", GROUPS, train=train, test=test)
    with pytest.raises(DataError, match=r"test must be at most the 80 structures that are left, got 81"):
        split_structures("rows", GROUPS, train=train, test=81)
    with pytest.raises(DataError, match=r"the training part must hold at least one structure"):
        split_structures("rows", GROUPS, train=train, val=20)
    with pytest.raises(DataError, match=r"got '.*none' \(No such file or directory\)\. Correct the path"):
        split_structures("rows", GROUPS, train=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"must have train as a file of row numbers, got 20. Name the file"):
        split_structures("rows", GROUPS, train=20)
    (tmp_path / "bytes").write_bytes(b"\x93NUMPY\xff")
    with pytest.raises(DataError, match="which holds other things"):
        split_structures("rows", GROUPS, train=str(tmp_path / "bytes"))


@pytest.mark.parametrize("name", ["random", "time"])
@pytest.mark.parametrize("asked", [{"train": 90, "val": 20, "test": 0}, {"val": 50, "test": 50}, {"train": 0}])
def test_too_many_or_none(name, asked):
    with pytest.raises(DataError, match=r"at most the 100 structures together and train at least 1, got .* Lower"):
        split_structures(name, GROUPS, **asked)


@pytest.mark.parametrize(
    ("error", "asked", "message"),
    [
        (ConfigError, {"name": "radnom"}, "split must be one of random, time, config_type, rows, got 'radnom'"),
        (ConfigError, {"val": 1.5}, r"val must be at most 1, got 1.5. Use a number such as val=100"),
        (ConfigError, {"val": -1}, "val must be a number of structures, or a fraction, at least 0, got -1"),
        (ConfigError, {"val": "ice"}, "val must be .*, got 'ice'. Use a number"),
        (ConfigError, {"name": "config_type"}, r"must have train, val or test as names among \['ice', .*, got none"),
        (DataError, {"name": "config_type", "test": "fog"}, r"test must name groups among .*, got \['fog'\]"),
        (ConfigError, {"name": "config_type", "test": "ice", "val": ["ice"]}, "in one part each, got one twice"),
        (DataError, {"name": "config_type", "test": ["ice", "water", "steam"]}, "training part must hold at least one"),
        (ConfigError, {"seed": -1}, "split_seed must be a seed"),
    ],
)
def test_what_is_refused(error, asked, message):
    with pytest.raises(error, match=message):
        split_structures(**({"name": "random", "groups": GROUPS} | asked))


def test_every_split_is_tested():
    assert set(STRUCTURE_SPLITS) == {"random", "time", "config_type", "rows"}
