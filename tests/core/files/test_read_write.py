"""Files that users name: nothing outside a folder is touched, and no error repeats what is in a file."""

import json
import os
from pathlib import Path

import pytest

from eqlayers.core.files.read_write import (
    atomic_write,
    check_output,
    plain_name,
    read_json,
    read_yaml,
    read_yaml_lines,
    stays_inside,
)
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


BAD_YAML = {
    "unfinished": (f"a: [{SECRET}", r"line 1"),
    "two values": (f"a: 1\nb: {SECRET}: {SECRET}", r"line 2: mapping values are not allowed"),
    "tab": (f"a: 1\n\tb: {SECRET}", r"line 2"),
    "alias": (f"x: 1\na: *{SECRET}", r"line 2: found undefined alias something"),
    "tag": (f"a: !{SECRET} 1", r"line 1: could not determine a constructor for the tag something"),
    "python": (f"a: !!python/object/apply:os.system [{SECRET}]", r"line 1: could not determine"),
    "twice": (f"{SECRET}: 1\n{SECRET}: 2", r"line 2: a key for the second time"),
    "nested twice": (f"a:\n  {SECRET}: 1\n  {SECRET}: 2", r"line 3: a key for the second time"),
    "list as key": (f"? [{SECRET}]\n: 1", r"line 1: a key that is a list or a mapping"),
    "no number": (f"a: !!int {SECRET}", r"a ValueError of a value"),
    "control character": (f"a: {SECRET}\nb: \x01", r"line 2: a control character"),
    "itself": (f"a: &x [{SECRET}, *x]", r"line 1: more than 50 levels, or an alias"),
    "deep": ("[" * 400 + SECRET, r"levels|line 1"),
    "bomb": (
        f"a0: &a0 [{SECRET}]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)),
        "more than 100000",
    ),
}


def lines(path: Path) -> dict[str, int]:
    """The lines of the keys of a file."""
    return read_yaml_lines(path, "a suite", "Name another.")[1]


@pytest.mark.parametrize("kind", BAD_YAML)
def test_yaml_that_cannot_be_read(kind: str, tmp_path: Path) -> None:
    text, message = BAD_YAML[kind]
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(tmp_path / "x.yaml", "a suite", "Name another.")
    text = str(caught.value)
    assert SECRET not in text
    assert text.startswith("a suite must be YAML")
    assert text.endswith("Name another.")
    assert caught.value.__cause__ is None, "the parser's own error repeats the line"


def test_good_files(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a:\n  b: &x 1\n  c: [2, *x]\n")
    assert read_yaml(tmp_path / "x.yaml") == {"a": {"b": 1, "c": [2, 1]}}
    assert lines(tmp_path / "x.yaml") == {"a": 1, "a.b": 2, "a.c": 3}
    (tmp_path / "x.yaml").write_text("")
    assert read_yaml(tmp_path / "x.yaml") is None


def test_a_merge_brings_keys_that_those_beside_it_overrule(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("base: &b\n  a: 1\n  c: 2\nmine:\n  <<: *b\n  a: 3\n")
    assert read_yaml(tmp_path / "x.yaml")["mine"] == {"a": 3, "c": 2}
    assert [lines(tmp_path / "x.yaml")[key] for key in ("mine.a", "mine.c")] == [6, 3]


def test_numbers_with_an_exponent_are_numbers_and_dates_are_text(tmp_path: Path) -> None:
    """The parser of commands reads options in the same way."""
    (tmp_path / "x.yaml").write_text("a: 1e-3\nb: '1e3'\nc: {1: 2., 8: -.5E+2}\nd: 2026-11-28\ne: 5e3x\n")
    assert read_yaml(tmp_path / "x.yaml") == {
        "a": 1e-3,
        "b": "1e3",
        "c": {1: 2.0, 8: -50.0},
        "d": "2026-11-28",
        "e": "5e3x",
    }


def test_a_caller_may_change_what_it_read(tmp_path: Path) -> None:
    """Texts are parsed once, and every caller has its own copy."""
    (tmp_path / "x.yaml").write_text("a: [1]")
    read_yaml(tmp_path / "x.yaml")["a"].append(2)
    assert read_yaml(tmp_path / "x.yaml") == {"a": [1]}
