"""Configurations before they are parsed, species that they leave out, and the parser's complaints in plain words."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from ..atoms.elements import SYMBOLS
from ..cli.arguments import explain
from ..core.errors import ConfigError
from ..core.files.read_write import few
from ..core.files.yaml_files import read_yaml, yaml_lines
from ..hints.names import nearest
from .checkpoints import read_checkpoint

#: Keys that only configurations of benchmarks have.
OF_BENCHMARKS = {"cases", "device", "edges", "graphs", "jobs", "mode", "operation", "peers", "problems"}
#: Sections that may be the path of another file.
SECTIONS = ("trainer", "model", "data", "ema", "early_stopping")
#: Section that cannot be null -> what ends its effect.
WITHOUT = {
    "ema": "ema.decay to 0 for no average of the weights",
    "early_stopping": "early_stopping.patience to trainer.max_epochs for no early end",
}
# what the parser calls a type -> words
WORDS = {"bool": "true or false", "dict": "a mapping", "float": "a number", "int": "an integer", "str": "text"}
WORDS |= dict.fromkeys(("Iterable", "Sequence", "list", "tuple"), "a list") | {"NoneType": "null", "None": "null"}


def near_files(path: Path | None = None) -> str:
    """A sentence that names the configurations beside a path, and in the working directory."""
    folders = [Path("configs")] if path is None else [path.parent, Path("configs")]
    near = sorted(str(file) for folder in folders if folder.is_dir() for file in folder.glob("*.y*ml"))
    kept = [name for name in dict.fromkeys(near) if not Path(name).name.startswith(".")]
    return f"There is {few(kept)}." if kept else "The source has some in configs/, e.g. configs/qm9_mini.yaml."


def typed_options(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each word of a command line as the name of an option, with the value behind its = or in the next word.

    Example:
        >>> list(typed_options(["fit", "-cmy.yaml", "--name=own"]))
        [('fit', '-cmy.yaml'), ('-c', 'my.yaml'), ('--name', 'own')]
    """
    for word, following in zip(args, [*args[1:], None], strict=True):
        name, equals, rest = word.partition("=")
        if word.startswith("-c") and len(word) > 2:
            name, equals, rest = "-c", "=", word[2:].removeprefix("=")
        yield name, rest if equals else following


def config_files(args: Sequence[str]) -> list[tuple[Path, str]]:
    """The files that a command line names, each with the section that it stands for, or "" for a configuration."""
    files, sections = [], []
    for name, value in typed_options(args):
        if name in ("-c", "--config"):
            if not value:
                came = "nothing" if value is None else "an empty text"
                raise ConfigError(f"{name} must have a file after it, got {came}. {near_files()}")
            files.append((Path(value), ""))
        elif name[2:] in WITHOUT and value in ("null", "None", "false"):
            raise _no_null(name[2:], value)
        elif _is_section_file(name, value):
            sections.append((Path(str(value)), name[2:]))
    return files + sections


def with_flag(args: Sequence[str]) -> list[str]:
    """The command with -c before a configuration that comes first.

    Example:
        >>> with_flag(["fit", "my.yaml", "--name", "own"]), with_flag(["fit", "-c", "my.yaml"])
        (['fit', '-c', 'my.yaml', '--name', 'own'], ['fit', '-c', 'my.yaml'])
    """
    plain = len(args) > 1 and args[1].endswith((".yaml", ".yml")) and not args[1].startswith("-")
    return [args[0], "-c", *args[1:]] if plain else list(args)


def _no_null(section: str, came: str, where: str = "") -> ConfigError:
    return ConfigError(f"{section} must be a section of settings, got {came}{where}. Set {WITHOUT[section]}.")


def _is_section_file(name: str, value: str | None) -> bool:
    return bool(name in [f"--{section}" for section in SECTIONS] and value and not value.lstrip().startswith("{"))


def _all_files(args: Sequence[str]) -> list[tuple[Path, str]]:
    """All files of :func:`config_files`, with the files that stand for sections in them."""
    files = []
    for path, section in config_files(args):
        files.append((path, section))
        if not section:
            content = read_yaml(path)
            keys = SECTIONS if isinstance(content, dict) else ()  # of others the parser says what they must be
            files += [(path.parent / content[key], key) for key in keys if isinstance(content.get(key), str)]
    return files


def check_config(path: Path, known: Sequence[str], section: str = "") -> None:
    """Refuse a file that is no configuration of training, before the parser repeats its content.

    A configuration may name any class and any arguments, as it is a program of the user's own.
    """
    content = read_yaml(path, "a configuration", near_files(path))
    if not isinstance(content, dict) or not content:
        kind = "nothing" if content is None or content == {} else "a list" if isinstance(content, list) else "text"
        raise ConfigError(
            f"a configuration must be sections such as model, data and trainer with one `key: value` a line, got "
            f"{kind} in {path}. {near_files(path)}"
        )
    if not section and "model" not in content and content.keys() & OF_BENCHMARKS:
        command = f"eqlayers bench run {path}" if "cases" in content else "eqlayers bench --help"
        raise ConfigError(
            f"{path} must be a configuration of training, got one of benchmarks. Type `{command}`, or name another. "
            f"{near_files()}"
        )
    prefix = f"{section}." if section else ""
    top = [name.removeprefix(prefix).partition(".")[0] for name in known if name.startswith(prefix)]
    if not content.keys() & set(top):  # its keys may be anything, and are not repeated
        what = "a configuration of training with sections such as model, data and trainer"
        if section:
            what = f"the section {section} of a configuration with keys such as {few(list(dict.fromkeys(top)))}"
        raise ConfigError(f"{path} must be {what}, got a mapping with none of them. {near_files(path)}")
    lines = yaml_lines(path)
    sections = {head for name in known for head in accumulate(name.split("."), "{}.{}".format)}
    for name, line in lines.items():
        key = prefix + name
        if key not in sections and not any(key.startswith(f"{name}.") for name in known):
            raise ConfigError(unknown_key(key, known, f" in {path}, line {line}"))
    for key in WITHOUT if not section else ():
        if key in content and content[key] in (None, False):
            raise _no_null(key, "null" if content[key] is None else "false", f" in {path}, line {lines[key]}")
    for key in () if section else SECTIONS:  # a section has no sections, so files cannot lead back to themselves
        if isinstance(content.get(key), str):
            inner = path.parent / content[key]
            if not os.path.isfile(inner):
                raise ConfigError(
                    f"{key} must be a section, or the path of a file with it, got text that is no file in {path}, "
                    f"line {lines[key]}. Write one `key: value` a line below {key}."
                )
            check_config(inner, known, key)


def check_cutoff(args: Sequence[str], cutoff: float) -> None:
    """Raise if model and data cutoffs differ; jsonargparse's link would silently overwrite the model's."""
    key = "model.model.init_args.cutoff"
    other = [value for value in given_values(args, key) if str(value) != str(cutoff) and _number(value) != cutoff]
    if other:
        raise ConfigError(f"{key} must be left out, or be data.cutoff ({cutoff}), got {other[0]!r}. Set data.cutoff.")


def given_values(args: Sequence[str], key: str) -> list[Any]:
    """The values that files and then options give for a key with dots; the last one counts."""
    values: list[Any] = []
    for path, section in _all_files(args):
        value: Any = {section: read_yaml(path)} if section else read_yaml(path)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        values.append(value)
    values += [value for name, value in typed_options(args) if name == f"--{key}"]
    return [value for value in values if value is not None]


def last_value(args: Sequence[str], key: str, default: Any = None) -> Any:
    """The value of a key: files and options may give several, and the last one counts."""
    values = given_values(args, key)
    return default if not values or values[-1] in ("", "null", "None") else values[-1]


def typed_value(value: Any) -> Any:
    """A value that was typed as text, as YAML reads it; text that is no YAML and other values as they are."""
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        return value


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# ---- complaints -------------------------------------------------------------------------------------------------


def explain_parser_error(message: str, keys: Sequence[str], args: Sequence[str] = ("fit",)) -> str:
    r"""The parser's message as what must be, what came and the fix.

    Example:
        >>> explain_parser_error("Subcommand 'fit' does not accept option 'model.los'", ["model.loss", "model.model"])
        "a key must be a known one, got 'model.los'. Did you mean 'model.loss'?"
        >>> explain_parser_error('Parser key "threads": Expected a <class \'int\'>. Got value: x', ["threads"])
        "threads must be an integer, got 'x'. Correct the option --threads."
    """
    text, command = " ".join(message.split()), args[0]
    inside = re.search(r"class_path '([\w.]+)'.*?[Oo]ption '([^']+)' is not accepted", text)
    if inside:
        path, unknown = inside.groups()
        return unknown_key(unknown, list(inspect.signature(class_at(path)).parameters), f" of {path}")
    match = re.search(r"does not accept (?:option|nested key) '([^']+)'", text)
    match = match or re.search(r"unrecognized arguments: --?([\w.-]+)", text)
    if match:
        return unknown_key(match.group(1), keys)
    stray = re.search(r"unrecognized arguments: (\S+)", text)
    if stray:
        return f"an option must begin with --, got {stray.group(1)!r}. Type `eqlayers {command} -c FILE --key value`."
    if re.search(r"required: .*model\.model$", text):
        return (
            f"{command} must have a configuration that names a network (model.model), got none. "
            f"Type `eqlayers {command} -c FILE`. {near_files()}"
        )
    return _wrong_value(text, args)


def _wrong_value(text: str, args: Sequence[str]) -> str:
    parts = re.findall(r'(?:P|p)arser key "([\w.+]+)"(?: element \d+)?:', text)
    if not parts:
        return explain(text, f"eqlayers {args[0]}")
    key = parts[0] + "".join(f".init_args.{part}" for part in parts[1:] if not part.startswith(parts[0]))
    rest = text.rpartition(f'"{parts[-1]}"')[2].lstrip(": ")
    kinds = re.findall(r"Expected an? (<class '[\w.]+'>|typing\.Literal\[.*?\]|collections\S+|\w[\w.]*\[.*?\])", rest)
    value = re.search(r"(?:Got|Given) value: (.*?)(?: - Expected an? | Given value type: |$)", rest)
    place, typed = _place(key, args)
    if kinds and value:
        what = _words(kinds)
        text = value.group(1)
        came = _kind(text) if not typed else text if text in ("True", "False", "None") else repr(text)
    else:
        what, came = "a value that its type takes", "one that it refuses"
        missing = re.search(  # a module that is there, and a name
            r"module '[\w.]+' has no attribute '\w{1,60}'|(?<=, got )'\w{1,60}'\. Use eqlayers[\w.]+(?=\.)", rest
        )
        came += f": {rest.lstrip('- ').rstrip('.')}" if typed else f": {missing[0]}" if missing else ""
    return f"{key} must be {what}, got {came}. Correct {place}."


def _kind(value: str) -> str:
    """The kind of a value of a file, without repeating the value."""
    if value in ("True", "False", "None"):
        return "null" if value == "None" else "true or false"
    if value[:1] in "[{":
        return "a list" if value[:1] == "[" else "a mapping"
    return "text" if _number(value) is None else "a number"


def _words(kinds: Iterable[str]) -> str:
    choices: list[str] = []
    names: list[str] = []
    for kind in kinds:
        literal = re.match(r"typing\.Literal(\[.*\])", kind)
        if literal:
            choices += map(str, ast.literal_eval(literal.group(1)))
        else:
            name = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", kind).partition("[")[0].rpartition(".")[2]
            names.append(WORDS.get(name, f"a {name}"))
    listed = [f"one of {', '.join(dict.fromkeys(choices))}"] if choices else []
    return " or ".join(dict.fromkeys([*listed, *names]))


def _place(key: str, args: Sequence[str]) -> tuple[str, bool]:
    """The source of the value of a key, and whether it was typed.

    An option counts more than files, a later file more than an earlier one.
    """
    if any(name == f"--{key}" and not _is_section_file(name, value) for name, value in typed_options(args)):
        return f"the option --{key}", True
    for path, section in reversed(_all_files(args)):
        if section == key:
            return str(path), False
        line = yaml_lines(path).get(key.removeprefix(f"{section}."))
        if line is not None and key.startswith(section):
            return f"{path}, line {line}", False
    return f"the option --{key}", not config_files(args)


def unknown_key(unknown: str, keys: Sequence[str], where: str = "") -> str:
    """An error text for an unknown key; one that is no name may be anything, and is not repeated."""
    if not all(re.fullmatch(r"[A-Za-z_][\w-]{0,39}", part) for part in unknown.split(".")):
        return f"a key{where} must be a known one, got one that is no name. `eqlayers fit FILE --help-all` lists them."
    sections = {key.rpartition(".")[0] for key in keys}
    near = nearest(unknown, sorted({*keys, *sections}))
    fix = f"Did you mean {near!r}?" if near else "`eqlayers fit FILE --help-all` lists them."
    return f"a key{where} must be a known one, got {unknown!r}. {fix}"


def class_at(path: str) -> Any:
    """The class of a path of import, which is of ``eqlayers.models`` without a module."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module or "eqlayers.models"), name)


# ---- species that are left out -------------------------------------------------------------------------------------

#: Key of the species of a network.
SPECIES = "model.model.init_args.species"


def leaves_out_species(args: Sequence[str]) -> bool:
    """Whether a command line names a network that needs a list of species, and no species.

    Example:
        >>> leaves_out_species(["fit", "--model.model.class_path", "eqlayers.models.NequIP"])
        True
        >>> leaves_out_species(["fit", "--model.model.class_path", "eqlayers.models.NequIP", f"--{SPECIES}", "[H]"])
        False
    """
    networks = _networks(args)
    if given_values(args, SPECIES) or any("species" in (one.get("init_args") or {}) for one in networks):
        return False
    network = network_of(args, None)
    parameter = None if network is None else inspect.signature(network).parameters.get("species")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def network_of(args: Sequence[str], other: Any) -> Any:
    """The class of the network that a command line names, or another one where it names none that is there."""
    try:
        named = [one["class_path"] for one in _networks(args) if isinstance(one.get("class_path"), str)]
        return class_at(named[-1]) if named and named[-1] else other
    except (ConfigError, ImportError, AttributeError, ValueError):  # the parser says what is wrong with it
        return other


def _networks(args: Sequence[str]) -> list[Mapping[str, Any]]:
    """The network in files and then options; the last one counts most."""
    networks = []
    for one in [*given_values(args, "model.model"), *given_values(args, "model.model.class_path")]:
        network = typed_value(one) if isinstance(one, str) and one.lstrip().startswith("{") else one
        networks.append(network if isinstance(network, Mapping) else {"class_path": network})
    return networks


def species_of_checkpoint(path: str) -> list[int | str] | None:
    """The species of the network in a checkpoint, or None where it does not record them."""
    recorded = read_checkpoint(path).get("hyper_parameters", {}).get("model")
    options = recorded.get("init_args", {}) if isinstance(recorded, Mapping) else {}
    return options.get("species") or None


def listed_for(class_path: str, numbers: Sequence[int]) -> list[int | str]:
    """Species for a network: symbols, which people read, where it is of this package, and else atomic numbers.

    Example:
        >>> listed_for("eqlayers.models.NequIP", [1, 8]), listed_for("mine.Network", [1, 8])
        (['H', 'O'], [1, 8])
    """
    return [SYMBOLS[z - 1] if class_path.startswith("eqlayers.") else z for z in numbers]
