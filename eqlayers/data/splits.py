"""Splits into training, validation and test parts, by name; each is a fixed function of the data set, never of a seed.

A change of `seed` changes the order of training batches and the weights, not the molecules that are tested on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.checks import check_choice, got
from ..core.errors import ConfigError, DataError, IndexRangeError, ShapeError

QM9_SIZE = 130_831  # molecules of QM9 without the 3,054 that failed its geometry consistency check
SPLIT_SEED = 2026

IntArray = NDArray[np.int64]
Parts = tuple[IntArray, IntArray, IntArray]  # training, validation, test


def _random(num: int, heavy: IntArray) -> Parts:
    order = np.random.default_rng(SPLIT_SEED).permutation(num)
    return order[num // 5 :], order[num // 10 : num // 5], order[: num // 10]


def _size(num: int, heavy: IntArray) -> Parts:
    large = heavy == heavy.max(initial=0)
    small = np.flatnonzero(~large)
    small = small[np.random.default_rng(SPLIT_SEED).permutation(len(small))]
    tenth = len(small) // 10
    return small[tenth:], small[:tenth], np.flatnonzero(large)


def _published(order: IntArray, train: int, val: int) -> Parts:
    """Cut a permutation at the published counts; for another number of molecules, in the same proportions."""
    num = len(order)
    if num != QM9_SIZE:
        warnings.warn(
            f"this split was published for {QM9_SIZE:,} molecules and the data set has {num:,}: "
            "it is cut in the same proportions, and results are not comparable with published ones",
            stacklevel=4,
        )
        train, val = round(num * train / QM9_SIZE), max(1, round(num * val / QM9_SIZE))
        train = min(train, num - val - 1)  # leaves at least one test molecule
    return order[:train], order[train : train + val], order[train + val :]


def _standard(num: int, heavy: IntArray) -> Parts:
    return _published(np.random.default_rng(1).permutation(num), 110_000, 10_000)


def _cormorant(num: int, heavy: IntArray) -> Parts:
    # The legacy generator is the definition of this split; an own instance leaves NumPy's global state alone.
    return _published(np.random.RandomState(0).permutation(num), 100_000, 17_748)


@dataclass(frozen=True)
class Split:
    """A named split: the rule, the data sets that it is for, and what it is."""

    rule: Callable[[int, IntArray], Parts]
    datasets: tuple[str, ...]
    about: str


SPLITS: dict[str, Split] = {
    "random": Split(_random, ("mini", "qm9"), "80 % / 10 % / 10 % by default_rng(2026).permutation"),
    "size": Split(_size, ("mini",), "test on the molecules with the most heavy atoms; validate on a tenth of the rest"),
    "standard": Split(_standard, ("qm9",), "110,000 / 10,000 / rest by default_rng(1).permutation"),
    "cormorant": Split(_cormorant, ("qm9",), "100,000 / 17,748 / 13,083 by RandomState(0).permutation"),
}


DATASETS = ("mini", "qm9")


def check_integers(name: str, values: Any, what: str) -> IntArray:
    """A flat array of integers."""
    array = np.asarray(values) if isinstance(values, (list, tuple, np.ndarray)) else None
    if array is None or array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise ShapeError(f"{name} must be an array of integers {what}, got {got(values)}. Pass np.array([...]).")
    return array.astype(np.int64)


def check_rows(name: str, rows: Any, num: int) -> IntArray:
    """Rows of a data set, at least one."""
    array = check_integers(name, rows, f"from 0 to {num - 1}")
    if len(array) == 0:
        raise ShapeError(f"{name} must be an array of at least one row, got none. Use a larger data set or part.")
    if array.min() < 0 or array.max() >= num:
        raise IndexRangeError(
            f"{name} must be from 0 to {num - 1}, got {array.min()} to {array.max()}. Count the molecules from 0."
        )
    return array


def limited(rows: IntArray, limit: int | float | None, seed: int = SPLIT_SEED) -> IntArray:
    """Some rows of the training part: drawn once, and nested for growing numbers; all if ``limit`` is None.

    Example:
        >>> len(limited(np.arange(10), 3)), set(limited(np.arange(10), 3)) < set(limited(np.arange(10), 4))
        (3, True)
        >>> len(limited(np.arange(10), 0.5)), set(limited(np.arange(10), 3)) == set(limited(np.arange(10), 3, seed=1))
        (5, False)
    """
    if limit is None:
        return rows
    limit = max(1, round(limit * len(rows))) if isinstance(limit, float) else limit
    if limit > len(rows):
        raise ConfigError(
            f"limit_train must be at most the {len(rows)} of the training part, got {limit}. Lower it or leave it out."
        )
    return rows[np.random.default_rng(seed).permutation(len(rows))[:limit]]


def check_split(name: str, dataset: str) -> None:
    """Raise ConfigError, listing the known names, unless `dataset` has a split of this name."""
    check_choice("dataset", dataset, DATASETS)
    known = [key for key, split in SPLITS.items() if dataset in split.datasets]
    check_choice(f"split (dataset={dataset!r})", name, known)


def make_split(name: str, dataset: str, heavy: IntArray) -> Parts:
    """Split a data set by name.

    Args:
        name: One of `SPLITS` that lists `dataset`.
        dataset: `"mini"` or `"qm9"`.
        heavy: Number of non-hydrogen atoms of every molecule, `[N]`.

    Returns:
        Row numbers of the training, validation and test part; together every row exactly once.

    Raises:
        ConfigError: For a name that `dataset` does not have; the message lists the ones it has.
        DataError: If a part would be empty.

    Example:
        >>> [len(part) for part in make_split("random", "mini", np.ones(2785, dtype=np.int64))]
        [2228, 279, 278]
    """
    check_split(name, dataset)
    heavy = check_integers("heavy", heavy, "[N], of each molecule")
    parts = SPLITS[name].rule(len(heavy), heavy)
    for part, rows in zip(("training", "validation", "test"), parts, strict=True):
        if len(rows) == 0:
            raise DataError(
                f"split {name!r}: expected at least one molecule in every part; the {part} part of {len(heavy)} "
                "molecules is empty; use a larger data set or another split"
            )
    return parts
