"""Configurations of training: merged keys, files for sections, and errors that repeat nothing of a file."""

import re
from pathlib import Path

import pytest

from eqlayers.cli.main import main
from eqlayers.models import MoleculeNetwork
from eqlayers.train.configuration import Command, as_value, read_configuration

SECRET = "hunter2"
NETWORK = "class_path: eqlayers.models.MoleculeNetwork, init_args: {hidden: 2x0e + 2x1o, layers: 1}"
GOOD = f"""\
name: good
data: {{limit_train: 16, batch_size: 8}}
model: {{model: {{{NETWORK}}}}}
trainer: {{accelerator: cpu, max_epochs: 1}}
"""
#: Ends every command that got as far as the trainer.
LAST = ("--trainer.max_time=soon", r"`Timer\(duration='soon'\)` is not a valid duration")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated, use .isinstance"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)"),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that must be refused, one line that repeats no secret."""
    assert main(args) == 2
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    (line,) = [text for text in captured.err.splitlines() if "eqlayers: error: " in text]
    return line


# what a file says of its trainer -> what YAML makes of it
MERGES = {
    "{<<: {accelerator: cpu}, max_epochs: 1}": {"accelerator": "cpu", "max_epochs": 1},
    "{<<: [{accelerator: cpu}, {accelerator: gpu, max_epochs: 2}]}": {"accelerator": "cpu", "max_epochs": 2},
    "{<<: {max_epochs: 3}, max_epochs: 1}": {"max_epochs": 1},
}


@pytest.mark.parametrize("text", MERGES)
def test_merged_keys(text: str, place: Path) -> None:
    (place / "c.yaml").write_text(f"name: x\ntrainer: {text}\n")
    (source,) = read_configuration(place / "c.yaml")
    assert source.values["trainer"] == MERGES[text]
    assert set(source.lines or ()) == {"name", "trainer", *(f"trainer.{key}" for key in MERGES[text])}


def test_the_line_of_a_merged_key_is_the_one_that_counts(place: Path) -> None:
    (place / "c.yaml").write_text("trainer:\n  <<:\n    max_epochs: 3\n    devices: 1\n  max_epochs: 1\n")
    (source,) = read_configuration(place / "c.yaml")
    assert source.lines == {"trainer": 1, "trainer.devices": 4, "trainer.max_epochs": 5}


def test_what_is_given_is_in_one_place_with_its_origin(place: Path) -> None:
    """Options count more than files wherever they stand, and the last file counts more than the first."""
    (place / "sub").mkdir()
    (place / "sub" / "a.yaml").write_text("name: '1e3'\nmodel: {learning_rate: 1e-3}\ndata: d.yaml\n")
    (place / "sub" / "d.yaml").write_text("e0s: {1: -13.6}\nseed: 3\n")
    (place / "b.yaml").write_text("model:\n  learning_rate: 2e-3\n")
    command = Command.of(["fit", "sub/a.yaml", "--data.seed", "4", "-c", "b.yaml", "--resume", "--ema.decay=0.9"])
    assert [command.last(key) for key in ("name", "data.seed", "ema.decay", "data.e0s")] == ["1e3", 4, 0.9, {1: -13.6}]
    assert (command.values("model.learning_rate"), command.last("threads", 1)) == ([1e-3, 2e-3], 1)
    assert command.has("resume")
    assert not command.has("verbose")
    assert command.origin("model.learning_rate") == ("b.yaml, line 2", False)
    assert command.origin("data.e0s") == ("sub/d.yaml, line 1", False)
    assert command.origin("data.seed") == ("the option --data.seed", True)
    assert command.words == ("--data.seed=4", "--ema.decay=0.9")
    *files, _, _ = command.arguments
    contents = [as_value(word.removeprefix("--config=")) for word in files]
    assert contents[0] == {"name": "1e3", "model": {"learning_rate": 1e-3}}
    assert contents[1:] == [{"data": {"e0s": {1: -13.6}, "seed": 3}}, {"model": {"learning_rate": 2e-3}}]


@pytest.mark.parametrize("words", [["--resume", "c.yaml"], ["--resume", "x"]])
def test_a_flag_has_no_value(words: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "c.yaml").write_text(GOOD)
    assert re.search(rf"must begin with --, got '{words[1]}'", refused(["fit", *words, "-c", "c.yaml"], capsys))


# files -> options; they are read up to the trainer
READ = {
    "merge": ({"c.yaml": GOOD.replace("{accelerator: cpu,", "{<<: {accelerator: cpu},")}, []),
    "section in a file": ({"c.yaml": re.sub("data: .*", "data: d.yaml", GOOD), "d.yaml": "limit_train: 16\n"}, []),
    "section as an option": ({"c.yaml": GOOD, "d.yaml": "limit_train: 16\n"}, ["--data", "d.yaml"]),
    "directives": ({"c.yaml": f"%YAML 1.2\n%TAG ! tag:example.org,2000:\n---\n{GOOD}"}, []),
}


@pytest.mark.parametrize("kind", READ)
def test_configurations_that_are_read(kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, options = READ[kind]
    for name, text in files.items():
        (place / name).write_text(text)
    assert re.search(LAST[1], refused(["fit", "-c", "c.yaml", *options, LAST[0]], capsys))


# name -> (c.yaml, message)
FILES = {
    "itself": ("data: c.yaml\n", r"c\.yaml must be the section data .* keys such as dataset, .*, got a mapping with"),
    "loop": ("data: a.yaml\n", r"a\.yaml must be the section data of a configuration .*, got a mapping with none"),
    "known and itself": ("ema: {decay: 0.9}\ndata: k.yaml\n", r"key in k\.yaml, line 2 must .* got 'data\.data'"),
    "null section": ("data: {}\nema: null\n", r"ema must be a section of settings, got null in .*c\.yaml, line 2"),
    "null key": ("name: x\n~: 3\n", r"a key in c\.yaml, line 2 must be a known one, got one that is no name\. `eq"),
    "empty key": ("name: x\n'': 3\n", r"a key in c\.yaml, line 2 must be a known one, got one that is no name"),
    "key of words": (f"name: x\n{SECRET} y: 3\n", r"a key in c\.yaml, line 2 must be .*, got one that is no name"),
    "long key": (f"name: x\n{SECRET * 6}: 3\n", r"a key in c\.yaml, line 2 must be .*, got one that is no name"),
    "directive": (f"%{SECRET}\n---\nname: x\n", r"must be YAML, got in c\.yaml, line 1: a directive that YAML has not"),
    "no file": (
        f"name: x\ndata: {SECRET}\n",
        r"data must be a section, .*, got text that is no file in c\.yaml, line 2",
    ),
    "endless": (f"name: x\ndata: {SECRET * 99}\n", r"data must be a section, .* no file in c\.yaml, line 2\. Write"),
    "choice": (
        f"model: {{loss: {SECRET}}}\n",
        r"model\.loss must be one of l1, .*, got text\. Correct c\.yaml, line 1",
    ),
    "list": (f"name: [{SECRET}]\n", r"name must be text, got a list\. Correct c\.yaml, line 1"),
    "mapping": (f"name: {{a: {SECRET}}}\n", r"name must be text, got a mapping\. Correct c\.yaml, line 1"),
    "number": ("name: 31337\n", r"name must be text, got a number\. Correct c\.yaml, line 1"),
    "flag": ("name: true\n", r"name must be text, got true or false\. Correct c\.yaml, line 1"),
    "network": (
        f"model: {{model: {SECRET}}}\n",
        r"model\.model must be a value .*, got one that it refuses\. Correct c",
    ),
    "merged": (
        f"data:\n  <<:\n    batch_size: {SECRET}\n",
        r"data\.batch_size must .*, got text\. Correct c\.yaml, line 3",
    ),
    "section": ("data: d.yaml\n", r"data\.batch_size must be an integer, got text\. Correct d\.yaml, line 1"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_refused(kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = FILES[kind]
    files = {"a.yaml": "data: c.yaml\n", "k.yaml": "batch_size: 1\ndata: k.yaml\n", "d.yaml": f"batch_size: {SECRET}\n"}
    for name, text in (files | {"c.yaml": content}).items():
        (place / name).write_text(text)
    assert re.search(message, refused(["fit", "-c", "c.yaml"], capsys))


# options -> message
OPTIONS = {
    **dict.fromkeys((("-c", ""), ("-c=",), ("--config=",)), r"a configuration must be a path, got ''\."),
    ("--runs", "\0"): r"runs must be a folder, got '\\x00'\.",
    ("--data.cache_dir", "\0"): r"cache_dir must be a folder, or None, got '\\x00'\.",
    ("--ckpt_path", "\0"): r"a checkpoint must be the path of a file, got '\\x00'\.",
    ("--data", "d.yaml"): r"data\.batch_size must be an integer, got text\. Correct d\.yaml, line 1\.",
    ("--data", "{batch_size: q}"): r"data\.batch_size must be an integer, got 'q'\. Correct the option --data\.",
    ("--data.limit_train", "true"): r"limit_train must be an integer or .*, got True\. Correct the option",
    ("--seed_everything", "1e3"): r"must be true or false or an integer, got '1000\.0'\. Correct the option --seed",
    ("--data.cutoff", "1e308"): r"cutoff must be at most 1e\+06 of Angstrom, got 1e\+308\. ",
    ("--model.model.init_args.lmax", "12"): r"lmax must be an integer, at most 11, got 12\. 1 is usual\.",
    ("--model.model.cutoff", "3.5"): r"init_args\.cutoff must be left out, or be data\.cutoff \(5\.0\), got 3\.5\.",
    ("--overwrite",): r"must be a known one, got 'overwrite'\. .* --resume, pass another --name, or move or remove",
    ("--x-y", "1"): r"a key must be a known one, got 'x-y'\. `eqlayers fit FILE --help-all` lists them\.",
}


@pytest.mark.parametrize("options", OPTIONS, ids=[" ".join(map(repr, options)) for options in OPTIONS])
def test_options_that_are_refused(options: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "good.yaml").write_text(GOOD)
    (place / "d.yaml").write_text(f"batch_size: {SECRET}\n")
    assert re.search(OPTIONS[options], refused(["fit", "-c", "good.yaml", *options], capsys))


def test_all_degrees_of_e3nn_are_taken() -> None:
    assert MoleculeNetwork(hidden="1x0e", lmax=11, layers=0).irreps_sh.lmax == 11


def test_the_most_alike_suites_are_named_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"There is smoke\.yaml, .* and \d+ more\.$", refused(["bench", "run", "smok"], capsys))


@pytest.mark.parametrize("command", [["fit", "-c", "none.yaml"], ["bench", "run", "./none.yaml"]])
def test_many_files_are_not_all_named(command: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(11):
        (place / f"f{i:02}.yaml").write_text("x: 1\n")
    assert re.search(r"There is f00\.yaml, .*, f07\.yaml and 3 more\.$", refused(command, capsys))
