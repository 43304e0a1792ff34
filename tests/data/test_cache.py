"""Caches: whole or absent, and never trusted when corrupt or stale."""

import os
import warnings

import numpy as np
import pytest

from eqlayers.core.files.read_write import atomic_write
from eqlayers.data.cache import cached_arrays, content_key, user_cache_dir

ARRAYS = {"a": np.arange(1000.0), "b": np.arange(6).reshape(2, 3)}


class Builder:
    """Counts how often the arrays are made."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {name: array.copy() for name, array in ARRAYS.items()}


def fetch(path, key="key", problem=lambda arrays: None):
    build = Builder()
    arrays = cached_arrays(path, key, build, problem)
    assert set(arrays) == set(ARRAYS)
    assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    return build.calls


def test_made_once_then_read(tmp_path):
    path = tmp_path / "new" / "cache.npz"
    assert [fetch(path), fetch(path)] == [1, 0]
    assert [entry.name for entry in path.parent.iterdir()] == ["cache.npz"]


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip_one_bit(data: bytes) -> bytes:
    return data[:3000] + bytes([data[3000] ^ 1]) + data[3001:]


@pytest.mark.parametrize("damage", [truncate, flip_one_bit, lambda data: b"", lambda data: b"not a cache"])
def test_corrupt_is_made_again_with_a_warning(tmp_path, damage):
    path = tmp_path / "cache.npz"
    fetch(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match=r"is not used and made again: it cannot be read"):
        assert fetch(path) == 1
    assert fetch(path) == 0


def test_a_file_of_another_user_is_made_again(tmp_path, monkeypatch):
    path, fstat = tmp_path / "cache.npz", os.fstat
    fetch(path)

    def owned_by_another(descriptor):
        status = list(fstat(descriptor))
        status[4] += 1
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", owned_by_another)
    with pytest.warns(UserWarning, match="made again: expected a file of user"):
        assert fetch(path) == 1
    monkeypatch.setattr(os, "fstat", fstat)
    path.chmod(0o666)
    with pytest.warns(UserWarning, match="made again: expected a file that only its owner can write, its mode is 666"):
        assert fetch(path) == 1
    assert fetch(path) == 0


def test_a_folder_that_all_users_can_write_is_not_used(tmp_path):
    path = tmp_path / "open" / "cache.npz"
    fetch(path)
    path.parent.chmod(0o777)
    with pytest.warns(UserWarning, match="any user can replace") as caught:
        assert fetch(path) == 1
    assert [str(one.message).split(" (")[0].split("npz ")[1] for one in caught] == [
        "is not used and made again: it cannot be read",
        "cannot be written",
    ]
    assert all("any user can replace" in str(one.message) for one in caught)


def test_a_shorter_array_in_a_header_is_seen(tmp_path):
    """One bit: NumPy would read 2000 of 3000 numbers and never come to the checksum."""
    path = tmp_path / "cache.npz"
    long = {"long": np.arange(3000)}
    cached_arrays(path, "key", lambda: long, lambda arrays: None)
    path.write_bytes(path.read_bytes().replace(b"(3000,)", b"(2000,)"))
    with pytest.warns(UserWarning, match=r"it cannot be read \(BadZipFile: its member 'long\.npy' is damaged"):
        assert len(cached_arrays(path, "key", lambda: long, lambda arrays: None)["long"]) == 3000


def test_foreign_npz_is_made_again(tmp_path):
    path = tmp_path / "cache.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.warns(UserWarning, match="made again"):
        assert fetch(path) == 1


def test_stale_is_made_again_with_a_warning(tmp_path):
    path = tmp_path / "cache.npz"
    fetch(path)
    with pytest.warns(UserWarning, match="made again: it was made from other data or settings"):
        assert fetch(path, key="other") == 1


def test_objection_is_made_again_with_a_warning(tmp_path):
    path = tmp_path / "cache.npz"
    fetch(path)
    with pytest.warns(UserWarning, match="made again: too short"):
        assert fetch(path, problem=lambda arrays: "too short") == 1


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way of a folder")
    with pytest.warns(UserWarning, match="cannot be written .* set cache_dir to a folder that you alone"):
        assert fetch(tmp_path / "file" / "cache.npz") == 1


def test_atomic_write_keeps_the_old_file_on_error(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with atomic_write(path) as file:
            file.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_atomic_write_replaces_and_is_readable_by_others(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644


def test_key_depends_on_everything():
    a = np.arange(6)
    keys = [a, a.reshape(2, 3), a.astype(np.int32), a + 1, 5.0, "5.0", 5]
    assert len({content_key(value) for value in keys}) == len(keys)
    assert content_key("a", "b") != content_key("ab")
    assert content_key(np.arange(12).reshape(3, 4).T) == content_key(
        np.ascontiguousarray(np.arange(12).reshape(3, 4).T)
    )


def test_user_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "own"))
    assert user_cache_dir() == tmp_path / "own"
    monkeypatch.delenv("EQLAYERS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_dir() == tmp_path / "eqlayers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache_dir() == type(tmp_path)(os.path.expanduser("~")) / ".cache" / "eqlayers"


def test_no_warning_when_all_is_well(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fetch(tmp_path / "cache.npz")
        fetch(tmp_path / "cache.npz")
