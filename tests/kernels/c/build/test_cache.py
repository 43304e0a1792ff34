"""The cache of compiled kernels: whole or absent, private, bounded, and never trusted when it need not be."""

import errno
import os
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from eqlayers_kernels.c.build import cache

KEYS = [f"kernel-{i:064x}" for i in range(6)]
PAYLOAD = b"\x7fELF" + bytes(range(256)) * 4


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache of its own."""
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_allowance", {})
    monkeypatch.setattr(cache, "_warned", set())
    return tmp_path / "cache" / "kernels"


def test_stored_then_found(folder):
    assert cache.find(KEYS[0]) is None
    assert not folder.parent.exists()  # looking makes nothing
    path = cache.store(KEYS[0], PAYLOAD)
    assert cache.find(KEYS[0]) == path == folder / f"{KEYS[0]}.so"
    assert path.read_bytes().startswith(PAYLOAD)
    assert [entry.name for entry in folder.iterdir()] == [path.name]  # no temporary file is left


def test_private_whatever_the_mask(folder):
    before = os.umask(0)
    try:
        path = cache.store(KEYS[0], PAYLOAD)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (folder, path)] == [0o700, 0o600]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2], lambda data: data[:-1],
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], lambda data: b"", lambda data: PAYLOAD,
    ],
    ids=["half", "last byte", "one bit", "empty", "no trailer"],
)  # fmt: skip
def test_a_damaged_file_is_not_used(damage, caplog):
    path = cache.store(KEYS[0], PAYLOAD)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.find(KEYS[0]) is None
    assert "does not match its checksum" in caplog.text
    assert cache.store(KEYS[0], PAYLOAD) == cache.find(KEYS[0])


def test_a_file_under_another_name_is_not_used():
    path = cache.store(KEYS[0], PAYLOAD)
    path.rename(path.with_name(f"{KEYS[1]}.so"))
    assert cache.find(KEYS[1]) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_used(mode, caplog):
    path = cache.store(KEYS[0], PAYLOAD)
    path.chmod(mode)
    assert cache.find(KEYS[0]) is None
    assert f"only its owner can write, its mode is {mode:o}" in caplog.text
    cache.store(KEYS[0], PAYLOAD)
    assert cache.find(KEYS[0]) == path


def test_a_file_of_someone_else_is_not_used(monkeypatch, caplog):
    cache.store(KEYS[0], PAYLOAD)
    fstat = os.fstat

    def owned_by_another(descriptor):
        status = list(fstat(descriptor))
        status[stat.ST_UID] += 1
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", owned_by_another)
    assert cache.find(KEYS[0]) is None
    assert "it belongs to user" in caplog.text


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_that_all_users_can_replace_is_not_used(folder, mode):
    cache.store(KEYS[0], PAYLOAD)
    folder.parent.chmod(mode)
    assert cache.find(KEYS[0]) is None
    with pytest.raises(PermissionError, match=rf"any user can replace {folder}, as the mode of \S+ is {mode:o}"):
        cache.store(KEYS[1], PAYLOAD)
    assert "any user can replace" in cache.info().problem
    folder.parent.chmod(0o775)  # a group's writing is left to the group, as masks of 002 give it
    assert cache.find(KEYS[0]) is not None


def test_entries_of_a_sticky_folder_are_safe_if_they_are_ours(folder, monkeypatch):
    cache.store(KEYS[0], PAYLOAD)
    folder.parent.chmod(0o1777)  # as /tmp
    assert cache.find(KEYS[0]) is not None
    lstat = os.lstat

    def owned_by_another(path, **options):
        status = list(lstat(path, **options))
        status[stat.ST_UID] += 7 * (str(path) == str(folder))
        return os.stat_result(status)

    monkeypatch.setattr(os, "lstat", owned_by_another)
    assert cache.find(KEYS[0]) is None


def test_a_link_that_others_can_replace_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "mine")
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "open" / "link"))
    cache.store(KEYS[0], PAYLOAD)
    (tmp_path / "open").chmod(0o777)
    assert cache.find(KEYS[0]) is None
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "mine"))
    assert cache.find(KEYS[0]) is not None


def test_a_link_or_a_pipe_is_not_used(folder, tmp_path):
    path = cache.store(KEYS[0], PAYLOAD)
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert cache.find(KEYS[0]) is None
    os.mkfifo(folder / f"{KEYS[1]}.so")
    assert cache.find(KEYS[1]) is None  # and does not wait for a writer
    assert cache.store(KEYS[0], PAYLOAD) == cache.find(KEYS[0])
    assert not path.is_symlink()


def place(key):
    with cache.loadable(key, PAYLOAD) as path:
        assert path.read_bytes() == PAYLOAD
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


def placed_twice(match):
    """Both times in a private folder that is gone afterwards; one warning in all (a second one would be an error)."""
    with pytest.warns(RuntimeWarning, match=match) as caught:
        place(KEYS[0])
    place(KEYS[1])
    assert len(caught) == 1
    assert "private temporary folder" in str(caught[0].message)
    assert "set EQLAYERS_CACHE_DIR to another folder" in str(caught[0].message)


def test_a_file_in_place_of_the_folder(folder):
    folder.parent.write_text("occupied")
    placed_twice(r"expected to keep compiled kernels in .*, got: .*(Not a directory|File exists)")
    assert folder.parent.read_text() == "occupied"
    assert "Not a directory" in cache.info().problem
    with pytest.raises(NotADirectoryError):
        cache.clear()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_no_space_or_no_permission(folder, monkeypatch, number):
    cache.store(KEYS[2], PAYLOAD)
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_CREAT and str(folder) in str(path):
            raise OSError(number, os.strerror(number))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    placed_twice(os.strerror(number))
    assert cache.find(KEYS[2]) is not None  # what is there is still used
    assert cache.find(KEYS[0]) is None


def test_no_space_half_way_leaves_nothing_behind(folder, monkeypatch):
    def full(descriptor):
        if str(folder) in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    placed_twice("No space left on device")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_is_not_used(folder, mode):
    cache.store(KEYS[2], PAYLOAD)
    folder.chmod(mode)
    assert cache.find(KEYS[2]) is None
    placed_twice("expected a folder that only its owner can write")
    with pytest.raises(PermissionError, match="only its owner"):
        cache.clear()


def test_a_working_cache_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cache.loadable(KEYS[0], PAYLOAD) as path:
            pass
    assert path.exists()


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_the_least_recently_used_go_first(folder, monkeypatch):
    size = cache.store(KEYS[0], PAYLOAD).stat().st_size
    cache._allowance.clear()
    monkeypatch.setattr(cache, "LIMIT_BYTES", 3 * size)
    for i, key in enumerate(KEYS[:3]):
        age(cache.store(key, PAYLOAD), 100 - 10 * i)  # KEYS[0] is the oldest
    assert len(list(folder.iterdir())) == 3  # at the limit, not beyond
    assert cache.find(KEYS[0]) is not None  # used: now the youngest
    cache.store(KEYS[3], PAYLOAD)
    assert {path.stem for path in folder.iterdir()} == {KEYS[0], KEYS[2], KEYS[3]}
    monkeypatch.setattr(cache, "LIMIT_BYTES", size // 2)
    cache._allowance.clear()
    cache.store(KEYS[4], PAYLOAD)
    assert {path.stem for path in folder.iterdir()} == {KEYS[4]}  # what was just stored stays, to be loaded


def test_the_folder_is_looked_at_once_for_many_kernels(folder, monkeypatch):
    size = len(PAYLOAD)
    monkeypatch.setattr(cache, "LIMIT_BYTES", 80 * size)
    looks, files = [], cache._files
    monkeypatch.setattr(cache, "_files", lambda folder: looks.append(folder) or files(folder))
    for i in range(64):
        cache.store(f"kernel-{i:064x}", PAYLOAD)
    assert 10 <= len(looks) <= 16  # at the first, and after every sixteenth of the limit
    cache.store(KEYS[0], PAYLOAD)
    for i in range(40):
        cache.store(f"more-{i:064x}", PAYLOAD)
    assert len(list(folder.iterdir())) <= 80 + 5  # beyond the limit by a sixteenth at most


def test_temporary_files_of_the_dead_are_removed(folder):
    cache.store(KEYS[0], PAYLOAD)
    old, new = folder / ".tmp-old", folder / ".tmp-new"
    old.write_bytes(PAYLOAD)
    new.write_bytes(PAYLOAD)
    age(old, cache.STALE_SECONDS + 60)
    cache._allowance.clear()  # as in another process
    cache.store(KEYS[1], PAYLOAD)
    assert not old.exists()
    assert new.exists()


def test_info_and_clear_touch_only_kernels(folder):
    assert cache.info() == cache.Info(str(folder), 0, 0, cache.LIMIT_BYTES, None)
    assert cache.clear() == 0
    assert not folder.exists()
    sizes = [cache.store(key, PAYLOAD).stat().st_size for key in KEYS[:3]]
    (folder / "notes.txt").write_text("mine")
    (folder / ".tmp-abc").write_text("unfinished")
    assert cache.info() == cache.Info(str(folder), 3, sum(sizes), 512 * 2**20, None)
    assert cache.clear() == 3
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert cache.info().entries == 0


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", "~/mine")
    assert cache.directory() == tmp_path / "mine" / "kernels"
    monkeypatch.delenv("EQLAYERS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.directory() == tmp_path / "xdg" / "eqlayers" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.directory() == tmp_path / ".cache" / "eqlayers" / "kernels"


def test_no_home(monkeypatch):
    monkeypatch.delenv("EQLAYERS_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    placed_twice("found none; set EQLAYERS_CACHE_DIR")
    assert cache.find(KEYS[0]) is None
    assert "EQLAYERS_CACHE_DIR" in cache.info().problem


HAMMER = """
import sys
from eqlayers_kernels.c.build import cache
payload = b"x" * 200_000
for i in range(100):
    cache.store(sys.argv[1], payload)
    assert cache.find(sys.argv[1]) is not None, i
"""


def test_processes_that_write_the_same_kernel(folder):
    """A reader sees a whole file at every moment, however many write it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(cache.__file__).parents[2])}
    command = [sys.executable, "-c", HAMMER, KEYS[0]]
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in both] == [("", 0)] * 2
    assert [path.name for path in folder.iterdir()] == [f"{KEYS[0]}.so"]
