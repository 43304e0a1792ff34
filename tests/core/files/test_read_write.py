"""Files that users name: nothing outside a folder is touched, and no error repeats what is in a file."""

import json
import os
from pathlib import Path

import pytest

from eqlayers.core.files.read_write import atomic_write, check_output, plain_name, read_json, stays_inside
from eqlayers.core.files.yaml_files import read_yaml
from eqlayers.errors import ConfigError, DataError
from tests.each import each

SECRET = "hunter2"


@each(
    "name",
    [
        "", ".", "..", "a/b", "/etc", "../up", "a\\b", "a\nb", "a\0b", " a", "a ", "x" * 300, "\u202e", None, 3, b"a",
        Path("a"),
    ],
)  # fmt: skip
def test_names_that_are_no_plain_names(name: object) -> None:
    with pytest.raises(ConfigError, match=r"name must be one plain folder name, got .*\. Change --name\."):
        plain_name(name, "name", "Change --name.")


@pytest.mark.parametrize("name", ["a", "qm9_mini", "a.b", "...", "-x", ".hidden", "größer", "a b"])
def test_plain_names(name: str) -> None:
    assert plain_name(name, "name", "") == name


def test_links_that_lead_out_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "real" / "sibling").mkdir()
    (tmp_path / "real" / "inner").symlink_to("sibling")
    runs = tmp_path / "runs"
    stays_inside(runs / "new", runs, "")  # the folder itself may be a link, and what it holds may be missing
    for name in ("out", "inner"):
        with pytest.raises(
            ConfigError, match=rf"{name} must be a folder inside .*, got a symbolic link to .*\. Remove it"
        ):
            stays_inside(runs / name, runs, "Remove it.")


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "kept").read_text() == "kept"
    assert (tmp_path / "link").read_text() == "new"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("reader", [read_yaml, read_json])
def test_files_that_are_no_text(reader, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a: 1\n\xd0\xff" + SECRET.encode())
    (tmp_path / "large").write_bytes(b"#" * (64 * 2**20 + 1))
    os.mkfifo(tmp_path / "pipe")
    expected = {
        "binary": "must be text in UTF-8, got other bytes in .*binary, line 2",
        "large": "must have at most (1|64) MiB, got more in",
        "pipe": "must be a file, got .*pipe', which is a device, a pipe or a socket",
        "none": "must be a file, got .*none', which does not exist",
        ".": "must be a file, got .*', which is a folder",
        "x" * 300: "must be a file, got .*which (is no name of a file|does not exist)",
        "a\0b": r"must be a path, got .*x00",
    }
    for name, message in expected.items():
        with pytest.raises(ConfigError, match=f"a suite {message}") as caught:
            reader(tmp_path / name, "a suite", "Name another.")
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", f'{{"a": {SECRET}}}', f'"{SECRET}', "[" * 100_000, "1" * 5000])
def test_json_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=r"a result must .*got .* Delete it") as caught:
        read_json(tmp_path / "x.json", "a result", "Delete it.", DataError)
    assert SECRET not in str(caught.value)


def test_a_good_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps([1, {"a": None}]))
    assert read_json(tmp_path / "x.json", "a result", "") == [1, {"a": None}]


def test_output_is_asked_for_before_the_work(tmp_path: Path) -> None:
    assert check_output(str(tmp_path / "new" / "x.json"), "--json") == tmp_path / "new" / "x.json"
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "x", "", "..", "a\0b"):
        with pytest.raises(ConfigError, match=r"--json must be a file that can be written, got .*\. Name another\."):
            check_output(path, "--json")
