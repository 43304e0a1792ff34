"""YAML files: what cannot be read is refused with its line, and no error repeats what is in a file."""

from pathlib import Path

import pytest

from eqlayers.core.files.yaml_files import read_yaml, read_yaml_lines
from eqlayers.errors import ConfigError

SECRET = "hunter2"

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
