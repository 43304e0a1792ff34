"""Splits of structures: sizes, disjoint parts, gaps in time, groups, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from eqlayers.data.structure_splits import STRUCTURE_SPLITS, split_structures
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


@pytest.mark.parametrize("name", ["random", "time"])
@pytest.mark.parametrize("asked", [{"train": 90, "val": 20, "test": 0}, {"val": 50, "test": 50}, {"train": 0}])
def test_too_many_or_none(name, asked):
    with pytest.raises(DataError, match=r"at most the 100 structures together and train at least 1, got .* Lower"):
        split_structures(name, GROUPS, **asked)


@pytest.mark.parametrize(
    ("error", "asked", "message"),
    [
        (ConfigError, {"name": "radnom"}, "split must be one of random, time, config_type, got 'radnom'"),
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
    assert set(STRUCTURE_SPLITS) == {"random", "time", "config_type"}
