"""Splits of molecules, published counts and permutations among them, and of structures: time, groups, rows of files."""

import numpy as np
import pytest

from eqlayers.data.embedded import MINI_FILE, default_mini_root
from eqlayers.data.splits import QM9_SIZE, SPLITS, STRUCTURE_SPLITS, make_split, split_structures
from eqlayers.errors import ConfigError, DataError
from tests.each import each, refused

CASES = [(name, dataset) for name, split in SPLITS.items() for dataset in split.datasets]
GROUPS = np.array(["water", "ice", "steam", "ice", "water"] * 20)


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
    with pytest.raises(DataError, match=r"rows must .*got 1 in two, the first 19"):
        split_structures("rows", GROUPS, train=train, test=test)
    with pytest.raises(DataError, match=r"test must be at most the 80 structures that are left, got 81"):
        split_structures("rows", GROUPS, train=train, test=81)
    with pytest.raises(DataError, match="the training part must"):
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


test_what_is_refused = refused(
    "error, asked, message",
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
    lambda asked: split_structures(**({"name": "random", "groups": GROUPS} | asked)),
)


def test_every_split_is_tested():
    assert set(STRUCTURE_SPLITS) == {"random", "time", "config_type", "rows"}
