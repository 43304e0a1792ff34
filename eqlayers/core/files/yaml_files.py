"""YAML files that users name: parsed once, with errors that repeat nothing of their content."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..checks import check_path
from ..errors import ConfigError, needs_packages
from .read_write import MEBIBYTE, read_text

YAML_LIMIT = MEBIBYTE  # bytes that are read
NODES = 100_000  # of a YAML file with its aliases written out: a few lines can stand for billions
DEPTH = 50
MERGE = "tag:yaml.org,2002:merge"
FLOAT = "tag:yaml.org,2002:float"
TIMESTAMP = "tag:yaml.org,2002:timestamp"


def _without_content(problem: str) -> str:
    """A parser's words on a problem, less what they quote from the file; single characters and tokens stay."""
    quoted = re.compile(r"'[^']*'|\"[^\"]*\"")
    plain = re.compile(r"..?.?|.<[a-z -]+>.")  # with the quotes
    return quoted.sub(lambda m: m[0] if plain.fullmatch(m[0]) else "something", " ".join(problem.split()))


def _compose(path: Path, text: str, what: str, fix: str, loader: type) -> Any:
    """The nodes of a YAML text, checked: no key twice, not too much behind aliases."""
    import yaml

    def wrong(mark: Any, problem: str) -> ConfigError:
        line = "" if mark is None else f", line {mark.line + 1}"
        return ConfigError(f"{what} must be YAML, got in {path}{line}: {problem}. {fix}")

    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.DirectiveToken) and token.name not in ("YAML", "TAG"):
                raise wrong(token.start_mark, "a directive that YAML has not")
            if not isinstance(token, (yaml.StreamStartToken, yaml.DirectiveToken)):
                break
        top = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        raise wrong(error.problem_mark or error.context_mark, _without_content(error.problem or "no YAML")) from None
    except yaml.YAMLError as error:  # characters that YAML has not
        position = getattr(error, "position", 0)
        line = text[: position if isinstance(position, int) else 0].count("\n") + 1
        raise ConfigError(f"{what} must be YAML, got in {path}, line {line}: a control character. {fix}") from None
    except RecursionError:
        raise ConfigError(f"{what} must be YAML of at most {DEPTH} levels, got more in {path}. {fix}") from None

    sizes: dict[int, int] = {}  # nodes behind a node; 0 while it is being counted

    def size(node: Any, depth: int) -> int:
        if depth > DEPTH or sizes.get(id(node)) == 0:
            raise wrong(node.start_mark, f"more than {DEPTH} levels, or an alias that contains itself")
        if id(node) in sizes:
            return sizes[id(node)]
        sizes[id(node)] = 0
        children: list[Any] = []
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise wrong(key.start_mark, "a key that is a list or a mapping")
                if key.value in seen:
                    raise wrong(key.start_mark, "a key for the second time")
                seen.add(key.value)
                children += [key, value]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        total = 1 + sum(size(child, depth + 1) for child in children)
        if total > NODES:
            raise wrong(node.start_mark, f"more than {NODES} values, aliases written out")
        sizes[id(node)] = total
        return total

    if top is not None:
        size(top, 0)
    return top


def read_yaml(path: Path, what: str = "a configuration", fix: str = "Correct the file, or name another.") -> Any:
    """The content of a YAML file, which no error repeats: a file that was named by mistake may hold secrets."""
    return read_yaml_lines(path, what, fix)[0]


def read_yaml_lines(path: str | Path, what: str, fix: str) -> tuple[Any, dict[str, int]]:
    """The content of a YAML file, and the line of each key; the names of nested keys are joined by dots."""
    path = Path(check_path(what, path))
    with needs_packages(what, "bench"):  # `train` has it as well, and more that is missed first
        import yaml  # noqa: F401 -- here: saving a potential needs this file, and not the package
    return parse_yaml(read_text(path, what, fix, YAML_LIMIT), path, what, fix)


def parse_yaml(text: str, path: Path, what: str, fix: str) -> tuple[Any, dict[str, int]]:
    """The content of a YAML text, and the line of each key; errors name ``path``.

    1e-3 is a number, as in YAML 1.2, and a date is text. Keys that a merge (``<<``) brings have lines as well;
    those that stand beside it count more.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 as its base has it
            first: [(tag, pattern) for tag, pattern in rows if tag != TIMESTAMP]
            for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver(FLOAT, re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))
    top = _compose(path, text, what, fix, Loader)
    lines: dict[str, int] = {}
    _add_lines(top, "", lines)
    try:
        return None if top is None else Loader("").construct_document(top), lines
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = _without_content(error.problem or "no YAML")
        raise ConfigError(f"{what} must be YAML, got in {path}{line}: {problem}. {fix}") from None
    except (ValueError, OverflowError) as error:  # a number that is none
        raise ConfigError(f"{what} must be YAML, got in {path}: a {type(error).__name__} of a value. {fix}") from None


def _add_lines(node: Any, prefix: str, lines: dict[str, int]) -> None:
    """Add the line of each key below a node."""
    pairs = node.value if node is not None and node.id == "mapping" else []
    for key, value in pairs:
        if key.tag != MERGE:
            lines.setdefault(f"{prefix}{key.value}", key.start_mark.line + 1)
            _add_lines(value, f"{prefix}{key.value}.", lines)
    for merged in [value for key, value in pairs if key.tag == MERGE]:
        for source in merged.value if merged.id == "sequence" else [merged]:
            _add_lines(source, prefix, lines)
