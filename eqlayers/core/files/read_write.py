"""Files that users name: read whole with errors that repeat nothing of their content, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..checks import check_path
from ..errors import ConfigError, needs_packages

MEBIBYTE = 2**20
JSON_LIMIT = 64 * MEBIBYTE  # bytes that are read; results of a large suite have a few million
YAML_LIMIT = MEBIBYTE  # bytes that are read
NODES = 100_000  # of a YAML file with its aliases written out: a few lines can stand for billions
DEPTH = 50
MERGE = "tag:yaml.org,2002:merge"
FLOAT = "tag:yaml.org,2002:float"
TIMESTAMP = "tag:yaml.org,2002:timestamp"


def few(names: Sequence[str]) -> str:
    """Eight names at most for a message, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def flattened(value: Any, prefix: str = "") -> dict[str, Any]:
    """The keys of nested mappings joined by dots.

    Example:
        >>> flattened({"model": {"loss": "l1", "betas": [0.9, 0.999]}, "seed": 1})
        {'model.loss': 'l1', 'model.betas': [0.9, 0.999], 'seed': 1}
    """
    if not isinstance(value, dict) or not value:
        return {prefix: value} if prefix else {}
    inner = [flattened(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in value.items()]
    return {key: item for part in inner for key, item in part.items()}


def plain_name(name: Any, what: str, fix: str, kind: str = "folder") -> str:
    """Return ``name`` if it is the name of one file or folder, and not a path to one."""
    good = isinstance(name, str) and name not in ("", ".", "..") and name.isprintable() and name == name.strip()
    if not good or re.search(r"[/\\]", name) or len(os.fsencode(name)) > 200:
        raise ConfigError(f"{what} must be one plain {kind} name, got {name!r}. {fix}")
    return str(name)


def stays_inside(folder: Path, parent: Path, fix: str) -> None:
    """Raise if a folder is somewhere else than below another one, as a symbolic link makes it."""
    expected = parent.resolve() / os.path.relpath(folder, parent)
    if folder.resolve() != expected:
        raise ConfigError(
            f"{folder} must be a folder inside {parent}, got a symbolic link to {folder.resolve()}. {fix}"
        )


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` for writing; it gets the name `path` only if the block ends without an error.

    A reader sees the old file or the whole new one, also when the writer is killed. A symbolic link is replaced and
    not followed.
    """
    path = Path(check_path("path", path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)  # a temporary file is private; the result is an ordinary one
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def check_output(
    path: str | Path, option: str, endings: Iterable[str] = (), fix: str = "Change it.", new: str | None = None
) -> Path:
    """The path of a file that can be written, asked before the work whose result it shall hold.

    ``fix`` is for another ending; a file that is there is refused with the fix ``new``.
    """
    path, known = Path(path), tuple(endings)
    if known and path.suffix not in known:
        raise ConfigError(f"{option} must end in {', '.join(known)}, got {str(path)!r}. {fix}")
    if new is not None and path.exists():
        raise ConfigError(f"{option} must be a new file, got {path}, which is there. {new}")
    try:
        if path.name in ("", "..") or path.is_dir():
            raise IsADirectoryError("that is a folder")
        if "\0" in str(path):
            raise ValueError("no name has such a character")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{option} must be a file that can be written, got {str(path)!r}: {reason}. Name another."
        ) from error
    return path


# ---- reading ------------------------------------------------------------------------------------------------------


def read_text(path: Path, what: str, fix: str, limit: int) -> str:
    """The text of a file."""
    try:
        kind = "is a folder" if path.is_dir() else None if path.exists() else "does not exist"
        if kind is None and not path.is_file():
            kind = "is a device, a pipe or a socket"
    except (OSError, ValueError) as error:  # a name that no file can have
        kind = f"is no name of a file ({getattr(error, 'strerror', None) or error})"
    if kind is not None:
        raise ConfigError(f"{what} must be a file, got {str(path)!r}, which {kind}. {fix}")
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{what} must be a file that can be read, got {path}: {error.strerror}. {fix}") from error
    if len(data) > limit:
        raise ConfigError(f"{what} must have at most {limit // MEBIBYTE} MiB, got more in {path}. {fix}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{what} must be text in UTF-8, got other bytes in {path}, line {line}. {fix}") from error


def read_json(path: Path, what: str, fix: str, error_type: Callable[[str], Exception] = ConfigError) -> Any:
    """The content of a JSON file, which no error repeats."""
    path = Path(check_path(what, path))
    try:
        return json.loads(read_text(path, what, fix, JSON_LIMIT))
    except ConfigError as error:
        raise error_type(str(error)) from None
    except json.JSONDecodeError as error:
        place = f"in {path}, line {error.lineno}: {error.msg}"
        raise error_type(f"{what} must be JSON, got {place}. {fix}") from None
    except (RecursionError, ValueError) as error:  # too deep, or a number with thousands of digits
        raise error_type(f"{what} must be JSON, got a {type(error).__name__} from {path}. {fix}") from None


# ---- YAML ------------------------------------------------------------------------------------------------------------


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
