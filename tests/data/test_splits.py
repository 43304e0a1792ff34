"""Splits: published counts and permutations, every molecule once, global random state untouched."""

from __future__ import annotations

import numpy as np
import pytest

from eqlayers.data.embedded import MINI_FILE, default_mini_root
from eqlayers.data.splits import QM9_SIZE, SPLITS, make_split
from eqlayers.errors import ConfigError, DataError
from tests.each import each

CASES = [(name, dataset) for name, split in SPLITS.items() for dataset in split.datasets]


def heavy(num: int) -> np.ndarray:
    return np.sort(np.arange(num) % 4 + 1)


@pytest.mark.filterwarnings("ignore:this split was published")
@each("name, dataset", CASES)
@each("num", [20, 24, 101, 2785])
def test_every_row_once_and_no_part_empty(name, dataset, num):
    parts = make_split(name, dataset, heavy(num))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num))
    assert all(len(part) > 0 for part in parts)
    again = make_split(name, dataset, heavy(num))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_standard_is_the_published_one():
    order = np.random.default_rng(1).permutation(QM9_SIZE)
    train, val, test = make_split("standard", "qm9", np.ones(QM9_SIZE, dtype=np.int64))
    assert (len(train), len(val), len(test)) == (110_000, 10_000, 10_831)
    assert np.array_equal(np.concatenate([train, val, test]), order)


def test_cormorant_is_the_published_one_and_leaves_global_state_alone():
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(0)  # noqa: NPY002
        order = np.random.permutation(QM9_SIZE)  # noqa: NPY002
        np.random.seed(5)  # noqa: NPY002
        expected = np.random.rand()  # noqa: NPY002
        np.random.seed(5)  # noqa: NPY002
        train, val, test = make_split("cormorant", "qm9", np.ones(QM9_SIZE, dtype=np.int64))
        assert np.random.rand() == expected  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002
    assert (len(train), len(val), len(test)) == (100_000, 17_748, 13_083)
    assert np.array_equal(np.concatenate([train, val, test]), order)


@pytest.mark.parametrize(("name", "train"), [("standard", 0.8408), ("cormorant", 0.7643)])
def test_other_sizes_are_cut_in_proportion_with_a_warning(name, train):
    with pytest.warns(UserWarning, match=r"published for 130,831 molecules and the data set has 10,000"):
        parts = make_split(name, "qm9", heavy(10_000))
    assert len(parts[0]) == round(10_000 * train)


def test_random_is_the_split_stored_in_the_embedded_file():
    with np.load(default_mini_root() / MINI_FILE) as file:
        stored = file["split"]
    for code, part in enumerate(make_split("random", "mini", heavy(len(stored)))):
        assert np.array_equal(np.sort(part), np.flatnonzero(stored == code))


def test_size_tests_on_the_largest():
    sizes = heavy(400)
    train, val, test = make_split("size", "mini", sizes)
    assert set(sizes[test]) == {4}
    assert max(sizes[train].max(), sizes[val].max()) == 3
    assert len(val) == 30


@pytest.mark.parametrize(
    ("name", "dataset", "known"), [("standard", "mini", "random, size"), ("nope", "qm9", "random, st")]
)
def test_unknown_names_list_the_known_ones(name, dataset, known):
    with pytest.raises(
        ConfigError, match=rf"split \(dataset='{dataset}'\) must be one of {known}.*got '{name}'. Pick one"
    ):
        make_split(name, dataset, heavy(100))


@pytest.mark.filterwarnings("ignore:this split was published")
@pytest.mark.parametrize(
    ("name", "dataset", "num"), [("random", "mini", 4), ("size", "mini", 5), ("standard", "qm9", 2)]
)
def test_an_empty_part_is_an_error(name, dataset, num):
    with pytest.raises(DataError, match=r"at least one molecule in every part; the \w+ part of \d+ molecules is empty"):
        make_split(name, dataset, heavy(num))
