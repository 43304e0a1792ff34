"""Configuration files before they are parsed, and the parser's complaints in the words of this package."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..arguments import explain
from ..errors import ConfigError
from ..files import read_yaml, yaml_lines

__all__ = ["check_config", "config_files", "explain_parser_error"]

#: Keys that only configurations of benchmarks have.
OF_BENCHMARKS = {"cases", "device", "edges", "graphs", "jobs", "mode", "operation", "peers", "problems"}
#: Sections that may be the path of another file.
SECTIONS = ("trainer", "model", "data", "ema", "early_stopping")
# what the parser calls a type -> words
WORDS = {"bool": "true or false", "dict": "a mapping", "float": "a number", "int": "an integer", "str": "text"}
WORDS |= dict.fromkeys(("Iterable", "Sequence", "list", "tuple"), "a list") | {"NoneType": "null", "None": "null"}


def near_files(path: Path | None = None) -> str:
    """A sentence that names the configurations beside a path, and those of the working directory."""
    folders = [Path("configs")] if path is None else [path.parent, Path("configs")]
    near = sorted(str(file) for folder in folders if folder.is_dir() for file in folder.glob("*.y*ml"))
    kept = [name for name in dict.fromkeys(near) if not Path(name).name.startswith(".")]
    return f"There is {', '.join(kept)}." if kept else "The source has some in configs/, e.g. configs/qm9_mini.yaml."


def config_files(args: Sequence[str]) -> list[Path]:
    """The configuration files and the sections' files that a command line names."""
    found = []
    for flag, value in zip(args, [*args[1:], None], strict=True):
        name, equals, rest = flag.partition("=")
        if name in ("-c", "--config"):
            given = rest if equals else value
            if given is None:
                raise ConfigError(f"{flag} must have a file after it, got nothing. {near_files()}")
            found.append(Path(given))
        elif flag.startswith("-c") and not flag.startswith("--"):
            found.append(Path(flag[2:]))
    return found + [path for path in map(_section_file, args, [*args[1:], ""]) if path is not None]


def _section_file(flag: str, value: str) -> Path | None:
    name, equals, rest = flag.partition("=")
    given = rest if equals else value
    own = name in [f"--{section}" for section in SECTIONS] and not given.lstrip().startswith("{")
    return Path(given) if own else None


def check_config(path: Path, known: Sequence[str], section: str = "") -> None:
    """Refuse a file that is no configuration of training, before the parser repeats its content.

    Args:
        path: The file.
        known: All keys, with dots.
        section: The section that the file stands for; the whole configuration if empty.

    Raises:
        ConfigError: The file is missing, no YAML, no mapping or a benchmark's, or has an unknown key.
    """
    given = read_yaml(path, "a configuration", near_files(path))
    if not isinstance(given, dict) or not given:
        kind = "nothing" if given is None or given == {} else "a list" if isinstance(given, list) else "text"
        raise ConfigError(
            f"a configuration must be sections such as model, data and trainer with one `key: value` a line, got "
            f"{kind} in {path}. {near_files(path)}"
        )
    if "model" not in given and given.keys() & OF_BENCHMARKS:
        command = f"eqlayers bench run {path}" if "cases" in given else "eqlayers bench --help"
        raise ConfigError(
            f"{path} must be a configuration of training, got one of benchmarks. Type `{command}`, or name another. "
            f"{near_files()}"
        )
    top = {name.partition(".")[0] for name in known}
    if not section and not given.keys() & top:  # its keys may be anything, and are not repeated
        raise ConfigError(
            f"{path} must be a configuration of training with sections such as model, data and trainer, got a mapping "
            f"with none of them. {near_files(path)}"
        )
    for key, line in yaml_lines(path).items():
        taken = any(key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in known)
        if not taken and not section:
            raise ConfigError(unknown_key(key, known, f" in {path}, line {line}"))
    for key in SECTIONS:
        if isinstance(given.get(key), str):
            inner = Path(given[key])
            check_config(inner if inner.is_absolute() else path.parent / inner, known, key)


def check_cutoff(args: Sequence[str], cutoff: float) -> None:
    """Refuse another cutoff of the network than that of the data, which the parser would put in its place unsaid.

    Raises:
        ConfigError: A file or an option gives one.
    """
    key = "model.model.init_args.cutoff"
    given: list[Any] = []
    for path in config_files(args):
        value: Any = read_yaml(path)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        given.append(value)
    for flag, following in zip(args, [*args[1:], ""], strict=True):
        name, equals, rest = flag.partition("=")
        if name == f"--{key}":
            given.append(rest if equals else following)
    other = [value for value in given if value is not None and str(value) != str(cutoff) and _number(value) != cutoff]
    if other:
        raise ConfigError(f"{key} must be left out, or be data.cutoff ({cutoff}), got {other[0]!r}. Set data.cutoff.")


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# ---- complaints -------------------------------------------------------------------------------------------------


def explain_parser_error(message: str, keys: Sequence[str], args: Sequence[str] = ("fit",)) -> str:
    r"""The parser's message as what must be, what came and the fix.

    Args:
        message: What the parser said.
        keys: All keys, with dots.
        args: The command line, to name the place of a wrong value.

    Returns:
        A message for the user.

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
        return unknown_key(unknown, init_parameters(path), f" of {path}")
    found = re.search(r"does not accept (?:option|nested key) '([^']+)'", text)
    found = found or re.search(r"unrecognized arguments: --?([\w.]+)", text)
    if found:
        return unknown_key(found.group(1), keys)
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
    value = re.search(r"(?:Got|Given) value: (.*)$", rest)
    if kinds and value:
        what, came = _words(kinds), f"got {value.group(1)!r}"
    else:
        what, came = "a value that its type takes", f"got one that it refuses: {rest.lstrip('- ').rstrip('.')}"
    return f"{key} must be {what}, {came}. Correct {_place(key, args)}."


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


def _place(key: str, args: Sequence[str]) -> str:
    """Where the value of a key came from: an option counts more than files, a later file more than an earlier one."""
    if not any(arg.partition("=")[0] == f"--{key}" for arg in args):
        for path in reversed(config_files(args)):
            line = yaml_lines(path).get(key)
            if line is not None:
                return f"{path}, line {line}"
    return f"the option --{key}"


def unknown_key(unknown: str, keys: Sequence[str], where: str = "") -> str:
    """An error text for an unknown key."""
    sections = {key.rpartition(".")[0] for key in keys}
    near = difflib.get_close_matches(unknown, sorted({*keys, *sections}), n=1, cutoff=0.6)
    fix = f"Did you mean {near[0]!r}?" if near else "`eqlayers fit --help` lists them."
    return f"a key{where} must be a known one, got {unknown!r}. {fix}"


def init_parameters(class_path: str) -> list[str]:
    """Names of a class's constructor arguments."""
    module, _, name = class_path.rpartition(".")
    return list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
