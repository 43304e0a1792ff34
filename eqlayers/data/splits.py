"""Splits into training, validation and test parts, by name.

Splits of molecules are fixed functions of the data set: a change of `seed` changes the order of training batches and
the weights, not the molecules that are tested on. Structures are split at random by number or fraction, in blocks of
time, by groups of the source, or by files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.checks import (
    check_choice,
    check_integer,
    check_items,
    check_number,
    check_seed,
    check_type,
    got,
    is_integer,
)
from ..core.errors import ConfigError, DataError, EqlayersWarning, IndexRangeError, ShapeError

QM9_SIZE = 130_831  # molecules of QM9 without the 3,054 that failed its geometry consistency check
SPLIT_SEED = 2026

IntArray = NDArray[np.int64]
Parts = tuple[IntArray, IntArray, IntArray]  # training, validation, test
_GAP = 0.02  # of a trajectory, between two blocks of it
#: A part as users give it: a number, a fraction, names of groups, a file, or what the split takes without.
Part = int | float | str | list[str] | None


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
            EqlayersWarning,
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


# ---- structures -----------------------------------------------------------------------------------------------------


def _count(name: str, part: Any, num: int) -> int:
    """A number of structures from a number or a fraction."""
    if is_integer(part):
        return check_integer(name, part, 0, what="a number of structures, or a fraction")
    fix = f"Use a number such as {name}=100, or a fraction such as {name}=0.1."
    return round(num * check_number(name, part, at_least=0, at_most=1, fix=fix))


def _counts(num: int, train: Any, val: Any, test: Any) -> tuple[int, int, int]:
    """Numbers of structures; None is the rest for one of training and test, a tenth elsewhere."""
    for_val = _count("val", 0.1 if val is None else val, num)
    rest_is_test = train is not None and test is None
    for_test = 0 if rest_is_test else _count("test", 0.1 if test is None else test, num)
    for_train = num - for_val - for_test if train is None else _count("train", train, num)
    if rest_is_test:
        for_test = num - for_train - for_val
    if for_train < 1 or for_test < 0 or for_train + for_val + for_test > num:
        raise DataError(_too_many(num, for_train, for_val, max(for_test, 0)))
    return for_train, for_val, for_test


def _too_many(num: int, *parts: int) -> str:
    return (
        f"train, val and test must be at most the {num} structures together and train at least 1, got "
        f"{parts[0]}, {parts[1]} and {parts[2]}. Lower them."
    )


def _drawn(num: int, groups: NDArray[Any], train: Any, val: Any, test: Any, seed: int) -> Parts:
    for_train, for_val, for_test = _counts(num, train, val, test)
    order = np.random.default_rng(seed).permutation(num)
    return order[:for_train], order[for_train : for_train + for_val], order[num - for_test :]


def _time(num: int, groups: NDArray[Any], train: Any, val: Any, test: Any, seed: int) -> Parts:
    # Test is the end, validation ends a gap before it, and training another before that: neighbours in time are alike.
    for_val = _count("val", 0.16 if val is None else val, num)
    for_test = _count("test", 0.2 if test is None else test, num)
    gaps = (for_val > 0) + (for_test > 0)
    for_train = num - for_val - for_test - gaps * round(_GAP * num) if train is None else _count("train", train, num)
    free = num - for_train - for_val - for_test
    if for_train < 1 or free < 0:
        raise DataError(_too_many(num, for_train, for_val, for_test))
    rows, start = np.arange(num), for_train + free // max(gaps, 1)
    return rows[:for_train], rows[start : start + for_val], rows[num - for_test :]


def _config_type(num: int, groups: NDArray[Any], train: Any, val: Any, test: Any, seed: int) -> Parts:
    known, rest = sorted(set(groups.tolist())), np.ones(num, dtype=bool)
    masks: dict[str, NDArray[np.bool_]] = {}
    for name, part in (("test", test), ("val", val), ("train", train)):
        if part is None or is_integer(part) or isinstance(part, float):
            continue
        names = [part] if isinstance(part, str) else check_items(name, part, "names of groups", "Pass ['water'].")
        if unknown := [group for group in names if group not in known]:
            raise DataError(f"{name} must name groups among {known}, got {unknown}. Correct the names.")
        masks[name] = np.isin(groups, names)
        if not rest[masks[name]].all():
            raise ConfigError(f"groups must be in one part each, got one twice: {part!r} in {name}. Move it.")
        rest &= ~masks[name]
    if not masks:
        raise ConfigError(
            f"split 'config_type' must have train, val or test as names among {known}, got none. Name groups."
        )
    order = np.random.default_rng(seed).permutation(np.flatnonzero(rest))
    parts = {name: np.flatnonzero(mask) for name, mask in masks.items()}
    for name, part in (("test", test), ("val", val)):
        if name not in parts:  # drawn from the groups that are not named
            drawn = _count(name, (0 if name == "test" else 0.1) if part is None else part, len(order))
            parts[name], order = order[:drawn], order[drawn:]
    if "train" not in parts:
        parts["train"] = order if train is None else order[: _count("train", train, len(order))]
    return parts["train"], parts["val"], parts["test"]


def _read_rows(name: str, path: str, num: int) -> NDArray[np.int64]:
    """Row numbers of a file, separated by line breaks, blanks or commas."""
    expected = f"{name} must be a file of row numbers from 0 to {num - 1}, each once,"
    fix = "Take one such as rMD17's index_train_01.csv, counted from 0."
    try:
        rows = np.array([int(word) for word in Path(path).read_text().replace(",", " ").split()], dtype=np.int64)
    except OSError as error:
        raise DataError(f"{expected} got {path!r} ({error.strerror}). Correct the path.") from None
    except (ValueError, OverflowError):  # of other bytes than text, too
        raise DataError(f"{expected} got {path!r}, which holds other things. {fix}") from None
    outside = rows[(rows < 0) | (rows >= num)]
    if len(outside):
        raise DataError(f"{expected} got {len(outside)} others in {path!r}, the first {outside[0]}. {fix}")
    if len(rows) == 0 or len(np.unique(rows)) < len(rows):
        what = f"{len(rows) - len(np.unique(rows))} twice" if len(rows) else "none"
        raise DataError(f"{expected} got {what} in {path!r}. {fix}")
    return rows


def _rows(num: int, groups: NDArray[Any], train: Any, val: Any, test: Any, seed: int) -> Parts:
    if not isinstance(train, str):
        raise ConfigError(f"split 'rows' must have train as a file of row numbers, got {train!r}. Name the file.")
    files = {name: part for name, part in (("train", train), ("val", val), ("test", test)) if isinstance(part, str)}
    parts = {name: _read_rows(name, path, num) for name, path in files.items()}
    rng = np.random.default_rng(seed)
    if "val" not in parts:  # drawn from the rows for training
        order = rng.permutation(parts["train"])
        for_val = _count("val", 0.1 if val is None else val, len(order))
        parts["val"], parts["train"] = order[:for_val], order[for_val:]
    if "test" not in parts:  # drawn from the rows that are left
        left = rng.permutation(np.setdiff1d(np.arange(num), np.concatenate(list(parts.values()))))
        for_test = len(left) if test is None else _count("test", test, len(left))
        if for_test > len(left):
            raise DataError(f"test must be at most the {len(left)} structures that are left, got {test}. Lower it.")
        parts["test"] = np.sort(left[:for_test])
    taken, counts = np.unique(np.concatenate(list(parts.values())), return_counts=True)
    if counts.max() > 1:
        raise DataError(
            f"rows must be in one part each, got {int((counts > 1).sum())} in two, the first "
            f"{taken[counts.argmax()]}. Take files that belong together, such as index_train_01.csv and "
            "index_test_01.csv."
        )
    return parts["train"], parts["val"], parts["test"]


STRUCTURE_SPLITS = {"random": _drawn, "time": _time, "config_type": _config_type, "rows": _rows}


def split_structures(
    name: str, groups: NDArray[Any], train: Part = None, val: Part = None, test: Part = None, seed: int = SPLIT_SEED
) -> Parts:
    """Split structures into training, validation and test parts.

    Args:
        name: ``"random"``: drawn by ``seed``; 80/10/10 %, and test is the rest where ``train`` is given. ``"time"``: in
            the order of the source, the first 60 % for training, 16 % for validation and the last 20 % for test with
            gaps of 2 % between, as neighbouring frames of a trajectory are alike. ``"config_type"``: parts that are
            names of groups get these; ``val`` and ``test`` that are numbers are drawn from the groups that are left,
            and training gets what remains. ``"rows"``: ``train`` is a file of row numbers, counted from 0, as the files
            of rMD17; ``val`` that is a number is drawn from them, a tenth without; ``test`` is a file as well, or drawn
            from the rows that are left, all of them without.
        groups: Name of the group of every structure, `[N]`.
        train, val, test: Number of structures, fraction of all, names of groups, or a file of row numbers.
        seed: Of the draw; not the seed of training.

    Returns:
        Row numbers of the three parts; validation and test may be empty.

    Raises:
        ConfigError: An unknown name, or a part that cannot be read.
        DataError: More than there is, no training part, an unknown group, or a file without row numbers of the source.

    Example:
        >>> [len(part) for part in split_structures("random", np.full(1000, ""), train=800, val=50)]
        [800, 50, 150]
        >>> [(part[0], part[-1]) for part in split_structures("time", np.full(100, ""))]
        [(np.int64(0), np.int64(59)), (np.int64(62), np.int64(77)), (np.int64(80), np.int64(99))]
    """
    check_choice("split", name, STRUCTURE_SPLITS)
    check_type("groups", groups, np.ndarray, "an array of names [N]", "Pass structures.config_type.")
    parts = STRUCTURE_SPLITS[name](len(groups), groups, train, val, test, check_seed("split_seed", seed))
    if len(parts[0]) == 0:
        raise DataError("the training part must hold at least one structure, got none. Change train, val or test.")
    return parts
