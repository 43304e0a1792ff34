"""The values of a command line and its files, read once: by key, each with the line or option that gives it."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from torch.nn import Module

from ..cli.arguments import ArgumentParser, explain
from ..core.errors import ConfigError
from ..core.files.read_write import few, parse_yaml, read_yaml_lines
from ..hints.names import nearest

#: Keys that only configurations of benchmarks have.
OF_BENCHMARKS = {"cases", "device", "edges", "graphs", "jobs", "mode", "operation", "peers", "problems"}
#: Sections that may be the path of another file.
SECTIONS = ("trainer", "model", "data", "ema", "early_stopping")
#: Section that cannot be null -> what ends its effect.
WITHOUT = {
    "ema": "ema.decay to 0 for no average of the weights",
    "early_stopping": "early_stopping.patience to trainer.max_epochs for no early end",
}
#: Options of `eqlayers fit` that have no value and are in no configuration.
FLAGS = ("resume", "verbose")
#: Endings of configurations.
YAML = (".yaml", ".yml")
#: Key of the species of a network.
SPECIES = "model.model.init_args.species"
#: Beginning of an option of the network, whose ``init_args`` jsonargparse lets one leave out.
SHORT = re.compile(r"^model\.model\.(?!(?:class_path|init_args|dict_kwargs|help)\b)")
#: Names of keys.
NAME = re.compile(r"[A-Za-z_][\w-]{0,39}")
# what the parser calls a type -> words
WORDS = {"bool": "true or false", "dict": "a mapping", "float": "a number", "int": "an integer", "str": "text"}
WORDS |= dict.fromkeys(("Iterable", "Sequence", "list", "tuple"), "a list") | {"NoneType": "null", "None": "null"}


def near_files(path: Path | None = None) -> str:
    """A sentence that names the configurations beside a path, and in the working directory."""
    folders = [Path("configs")] if path is None else [path.parent, Path("configs")]
    near = sorted(str(file) for folder in folders if folder.is_dir() for file in folder.glob("*.y*ml"))
    listed = [name for name in dict.fromkeys(near) if not Path(name).name.startswith(".")]
    return f"There is {few(listed)}." if listed else "The source has some in configs/, e.g. configs/qm9_mini.yaml."


class Source(NamedTuple):
    """Nested values that one file or one option gives; of a file, the lines of their keys, and its section if any."""

    name: str
    values: dict[str, Any]
    lines: Mapping[str, int] | None = None
    section: str = ""

    def get(self, key: str) -> list[Any]:
        """The value of a key with dots in a list, which is empty where the source has none."""
        value: Any = self.values
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return []
            value = value[part]
        return [value]


@dataclass(frozen=True)
class Command:
    """A command of training: the values of its files, then of its options. The last value of a key counts.

    Attributes:
        name: The first word.
        files: Configurations, and the files of sections that they name.
        options: Options, each with its value as YAML reads it.
        words: The options as words, without flags, where a file of a section is replaced by its content.
        typed: The whole command line.
    """

    name: str
    files: tuple[Source, ...] = ()
    options: tuple[Source, ...] = ()
    words: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()

    @classmethod
    def of(cls, args: Sequence[str]) -> Command:
        """Read the files that a command line names; one that comes first needs no -c before it."""
        name, *words = args
        if words and words[0].endswith(YAML) and not words[0].startswith("-"):
            words.insert(0, "-c")
        parser = ArgumentParser(prog=f"eqlayers {name}", add_help=False)
        parser.add_argument("-c", "--config", metavar="FILE", action="append", default=[])
        parsed, words = parser.parse_known_args(words)
        files = [source for path in parsed.config for source in read_configuration(path)]
        return cls(name, tuple(files), typed=tuple(args)).with_words(words)

    def with_words(self, words: Iterable[str]) -> Command:
        """Add options to the command."""
        left, options, passed = list(words), list(self.options), list(self.words)
        while left:
            word = left.pop(0)
            name, equals, value = word.partition("=")
            if not name.startswith("--"):
                passed.append(word)
                continue
            key = SHORT.sub("model.model.init_args.", name[2:].removesuffix("+"))
            if self.name == "fit" and word[2:] in FLAGS:
                options.append(Source(name, {key: True}))
                continue
            if not equals and left and not left[0].startswith("--"):
                value = left.pop(0)
                word = f"{name}={value}"
            if key in WITHOUT and value in ("null", "None", "false"):
                raise _no_section(key, value)
            if key in SECTIONS and value and not value.lstrip().startswith("{"):
                options.append(_read_section(Path(value), key))
                word = f"{name}={as_text(options[-1].values[key])}"
            else:
                options.append(Source(name, nested({key: as_value(value)})))
            passed.append(word)
        return replace(self, options=tuple(options), words=tuple(passed))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Files and options; the last one that has a key counts."""
        return self.files + self.options

    @property
    def arguments(self) -> list[str]:
        """The words that a parser takes, with contents of files in place of files."""
        return [*(f"--config={as_text(source.values)}" for source in self.files if source.values), *self.words]

    def has(self, key: str) -> bool:
        """Whether a key is given."""
        return any(source.get(key) for source in self.sources)

    def values(self, key: str) -> list[Any]:
        """The values of a key, the one that counts last."""
        return [value for source in self.sources for value in source.get(key)]

    def last(self, key: str, default: Any = None) -> Any:
        """The value of a key that counts; a default where there is none, or null."""
        value = (self.values(key) or [None])[-1]
        return default if value is None else value

    def network(self, default: Any) -> Any:
        """The class of the network that is named, or a default where no network is."""
        paths = [value.get("class_path") if isinstance(value, dict) else value for value in self.values("model.model")]
        named = [path for path in paths if isinstance(path, str) and path]
        try:
            network = class_at(named[-1]) if named else default
        except (ConfigError, ImportError, AttributeError, ValueError):  # the parser reports what is wrong with it
            return default
        return network if isinstance(network, type) and issubclass(network, Module) else default

    def needs_species(self) -> bool:
        """Whether the network needs a list of species, and none is given."""
        network = self.network(None)
        parameter = None if network is None else inspect.signature(network).parameters.get("species")
        return parameter is not None and parameter.default is parameter.empty and self.last(SPECIES) is None

    def check(self, known: Sequence[str]) -> None:
        """Raise for a file without any known key; the message does not repeat its keys, which may be private text."""
        for source in self.sources:
            values = source.values[source.section] if source.section else source.values
            prefix = f"{source.section}." if source.section else ""
            top = [name.removeprefix(prefix).partition(".")[0] for name in known if name.startswith(prefix)]
            if source.lines and values and not values.keys() & set(top):
                what = "a configuration of training with sections such as model, data and trainer"
                if source.section:
                    keys = few(list(dict.fromkeys(top)))
                    what = f"the section {source.section} of a configuration with keys such as {keys}"
                raise ConfigError(
                    f"{source.name} must be {what}, got a mapping with none of them. {near_files(Path(source.name))}"
                )

    def check_cutoff(self, cutoff: float) -> None:
        """Raise if model and data have different cutoffs; the parser's link would overwrite the model's."""
        key = "model.model.init_args.cutoff"
        for value in self.values(key):
            if value is not None and _number(value) != cutoff:
                raise ConfigError(
                    f"{key} must be left out, or be data.cutoff ({cutoff}), got {value!r}. Set data.cutoff."
                )

    def origin(self, key: str) -> tuple[str, bool]:
        """The file and line, or the option, that sets a key or else a section around it; whether it is an option."""
        while key:
            for source in (one for one in reversed(self.sources) if one.get(key)):
                if source.lines is None:
                    return f"the option {source.name}", True
                line = source.lines.get(key)
                return source.name if line is None else f"{source.name}, line {line}", False
            key = key.rpartition(".")[0]
        return "the command line", True


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by keys with dots as nested mappings."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        inner = result
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return result


def as_value(text: str) -> Any:
    """The value of a text in YAML; text that is no YAML as it is."""
    try:
        return parse_yaml(text, Path(), "a value", "")[0]
    except ConfigError:
        return text


def as_text(value: Any) -> str:
    """A value as YAML with all types written out, which the parser reads back exactly."""
    return yaml.safe_dump(value, default_style='"', default_flow_style=True, width=10**9, sort_keys=False)


def _no_section(section: str, value: str, where: str = "") -> ConfigError:
    return ConfigError(f"{section} must be a section of settings, got {value}{where}. Set {WITHOUT[section]}.")


def read_configuration(path: str | Path) -> list[Source]:
    """A configuration of training, and the files of sections that it names.

    A configuration may name any class and any arguments, as it is a program of the user's own.
    """
    return check_configuration(Path(path), *read_yaml_lines(path, "a configuration", near_files(Path(path))))


def check_configuration(path: Path, content: Any, lines: Mapping[str, int]) -> list[Source]:
    """The content of a configuration, checked, and the files of its sections."""
    _check_mapping(path, content, lines)
    if "model" not in content and content.keys() & OF_BENCHMARKS:
        command = f"eqlayers bench run {path}" if "cases" in content else "eqlayers bench --help"
        raise ConfigError(
            f"{path} must be a configuration of training, got one of benchmarks. Type `{command}`, or name another. "
            f"{near_files()}"
        )
    sections = []
    for key in [key for key in SECTIONS if key in content]:
        if key in WITHOUT and content[key] in (None, False):
            raise _no_section(key, "null" if content[key] is None else "false", f" in {path}, line {lines[key]}")
        if isinstance(content[key], str):
            inner = path.parent / content.pop(key)
            if not os.path.isfile(inner):
                raise ConfigError(
                    f"{key} must be a section, or the path of a file with it, got text that is no file in {path}, "
                    f"line {lines[key]}. Write one `key: value` a line below {key}."
                )
            sections.append(_read_section(inner, key))
    return [Source(str(path), content, lines), *sections]


def _read_section(path: Path, section: str) -> Source:
    content, lines = read_yaml_lines(path, "a configuration", near_files(path))
    lines = {f"{section}.{key}": line for key, line in lines.items()}
    _check_mapping(path, content, lines)
    return Source(str(path), {section: content}, lines, section)


def _check_mapping(path: Path, content: Any, lines: Mapping[str, int]) -> None:
    if not isinstance(content, dict) or not content:
        got = "nothing" if content is None or content == {} else "a list" if isinstance(content, list) else "text"
        raise ConfigError(
            f"a configuration must be sections such as model, data and trainer with one `key: value` a line, got "
            f"{got} in {path}. {near_files(path)}"
        )
    for key, line in lines.items():
        first, *others = key.split(".")
        if not all(NAME.fullmatch(part) for part in [first, *(others[:1] if first in SECTIONS else ())]):
            raise ConfigError(unknown_key(key, (), f" in {path}, line {line}"))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def explain_parser_error(message: str, keys: Sequence[str], command: Command) -> str:
    r"""The parser's message as what must be, what was given and the fix.

    Example:
        >>> command = Command.of(["fit", "--threads", "x"])
        >>> explain_parser_error("Group 'model' does not accept option 'los'", ["model.loss", "model.model"], command)
        "a key must be a known one, got 'model.los'. Did you mean 'model.loss'?"
        >>> explain_parser_error('Parser key "threads": Expected a <class \'int\'>. Got value: x', ["threads"], command)
        "threads must be an integer, got 'x'. Correct the option --threads."
    """
    text = " ".join(message.split())
    inside = re.search(r"class_path '([\w.]+)'.*?[Oo]ption '([^']+)' is not accepted", text)
    if inside:
        path, unknown = inside.groups()
        return unknown_key(unknown, list(inspect.signature(class_at(path)).parameters), f" of {path}")
    unknown = re.search(
        r"(?:Group '(.+?)' does not accept option|Option) '(.*?)'|unrecognized arguments: --?([^=\s]+)", text
    )
    if unknown:
        key = ".".join(part for part in unknown.groups() if part)
        origin, is_option = command.origin(key)
        return unknown_key(key, keys, "" if is_option else f" in {origin}")
    stray = re.search(r"unrecognized arguments: (\S+)", text)
    if stray:
        return f"an option must begin with --, got {stray[1]!r}. Type `eqlayers {command.name} -c FILE --key value`."
    if re.search(r"required.*model\.model|model\.model.*required", text):
        return (
            f"{command.name} must have a configuration that names a network (model.model), got none. "
            f"Type `eqlayers {command.name} -c FILE`. {near_files()}"
        )
    names = re.findall(r'[Pp]arser key "([\w.+]+)"(?: element \d+)?:', text)
    if not names:
        return explain(text, f"eqlayers {command.name}")
    key = names[0]
    for name in names[1:]:
        key = name if name.startswith(key) else f"{key}.init_args.{name}"
    rest = text.rpartition(f'"{names[-1]}"')[2].lstrip(": ")
    types = re.findall(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\]|collections\S+|\w[\w.]*\[.*?\])", rest)
    value = re.search(r"(?:Got|Given|Command) value: (.*?)(?: - Expected an? | Command value type: |$)", rest)
    origin, is_option = command.origin(key)
    if types and value:
        what, text = _words(types), value[1]
        got = _type(text) if not is_option else text if text in ("True", "False", "None") else repr(text)
    else:
        what, got = "a value that its type takes", "one that it refuses"
        missing = re.search(  # a module that is there, and a name
            r"module '[\w.]+' has no attribute '\w{1,60}'|(?<=, got )'\w{1,60}'\. Use eqlayers[\w.]+(?=\.)", rest
        )
        got += f": {rest.lstrip('- ').rstrip('.')}" if is_option else f": {missing[0]}" if missing else ""
    return f"{key} must be {what}, got {got}. Correct {origin}."


def class_at(path: str) -> Any:
    """Import a class by its dotted path; a name without a module is one of ``eqlayers.models``."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module or "eqlayers.models"), name)


def _type(value: str) -> str:
    """The type of a value of a file in words, without repeating the value."""
    if value in ("True", "False", "None"):
        return "null" if value == "None" else "true or false"
    if value[:1] in "[{":
        return "a list" if value[:1] == "[" else "a mapping"
    return "text" if _number(value) is None else "a number"


def _words(types: Iterable[str]) -> str:
    choices: list[str] = []
    names: list[str] = []
    for text in types:
        literal = re.match(r"typing\.Literal(\[.*\])", text)
        if literal:
            choices += map(str, ast.literal_eval(literal.group(1)))
        else:
            name = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text).partition("[")[0].rpartition(".")[2]
            names.append(WORDS.get(name, f"a {name}"))
    listed = [f"one of {', '.join(dict.fromkeys(choices))}"] if choices else []
    return " or ".join(dict.fromkeys([*listed, *names]))


def unknown_key(unknown: str, keys: Sequence[str], where: str = "") -> str:
    """An error text for an unknown key; one that is no name may be anything, and is not repeated."""
    if not all(NAME.fullmatch(part) for part in unknown.split(".")):
        return f"a key{where} must be a known one, got one that is no name. `eqlayers fit FILE --help-all` lists them."
    sections = {key.rpartition(".")[0] for key in keys}
    near = nearest(unknown, sorted({*keys, *sections}))
    if unknown == "overwrite":
        fix = "No run writes over another: go on with --resume, pass another --name, or move or remove the folder."
    else:
        fix = f"Did you mean {near!r}?" if near else "`eqlayers fit FILE --help-all` lists them."
    return f"a key{where} must be a known one, got {unknown!r}. {fix}"
