"""Reading YAML by a list of known fields: an unknown key or a wrong value is an error that names the fix."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..core.checks import check_path, check_type, got
from ..core.errors import ConfigError
from ..core.files.read_write import few
from ..core.files.yaml_files import read_yaml
from ..hints.names import nearest

Named = TypeVar("Named")


class Known(NamedTuple):
    """A kind of text, texts or mapping whose names must be in a list."""

    kind: str  # a key of KINDS
    what: str  # one of the names, for messages
    names: Iterable[str]


#: The kind of a field: a key of KINDS, or one with the names that it takes.
Field = str | Known


def _is(types: Any, value: Any) -> bool:
    """Whether it is a number above 0; YAML's true is none."""
    return isinstance(value, types) and not isinstance(value, bool) and value > 0


def _all(holder: type, kind: str, value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value
    return isinstance(value, holder) and all(KINDS[kind][1](one) for one in values)


#: kind -> words for what is expected, and the test of a value
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("text", lambda value: isinstance(value, str)),
    "count": ("a positive integer", partial(_is, int)),
    "number": ("a positive number", partial(_is, (int, float))),
    "texts": ("a list of texts", partial(_all, list, "text")),
    "counts": ("a list of positive integers", partial(_all, list, "count")),
    "numbers": ("a mapping to positive numbers", partial(_all, dict, "number")),
    "mapping": ("a mapping with at least one entry", lambda value: isinstance(value, dict) and len(value) > 0),
    "mappings": ("a mapping of mappings", partial(_all, dict, "mapping")),
}
DEVICES = ("cpu", "cuda")
DEVICE = Known("text", "device", DEVICES)


def check_known(what: str, names: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Raise unless every name is in the list.

    Example:
        >>> try:
        ...     check_known("key", ["edgse"], ["edges", "layouts"], "cpu.yaml")
        ... except ConfigError as error:
        ...     print(error)
        cpu.yaml: expected a key among edges, layouts; got 'edgse'. Did you mean 'edges'?
    """
    known = list(known)
    for name in names:
        if name not in known:
            near = nearest(str(name), known)
            fix = f"Did you mean {near!r}?" if near else "Use one of these."
            raise ConfigError(f"{where}: expected a {what} among {', '.join(known)}; got {name!r}. {fix}")


def matching(items: Sequence[Named], pattern: str | None, where: str) -> tuple[Named, ...]:
    """The items whose ``name`` matches ``--only``; all of them without a pattern."""
    names = [str(getattr(item, "name")) for item in items]  # noqa: B009 a protocol would say no more
    if pattern is None:
        return tuple(items)
    check_type("--only", pattern, str, "a pattern of names", "Pass a text such as 'fused/*'.")
    chosen = tuple(item for item, name in zip(items, names, strict=True) if fnmatchcase(name, pattern))
    if not chosen:
        raise ConfigError(f"--only must match a case of {where}, got {pattern!r}. The cases are {', '.join(names)}.")
    return chosen


def read_fields(
    where: str, entries: Any, required: Mapping[str, Field], optional: Mapping[str, tuple[Field, Any]] | None = None
) -> dict[str, Any]:
    """The fields of one mapping, checked, with defaults filled in.

    Args:
        where: File and place, for messages.
        entries: The mapping, as YAML read it.
        required: Field to kind.
        optional: Field to kind and default.

    Example:
        >>> read_fields("graphs.yaml", {"nodes": 3}, {"nodes": "count"}, {"how": ("text", "uniform")})
        {'nodes': 3, 'how': 'uniform'}
    """
    if not isinstance(entries, dict):
        got_type = "nothing" if entries is None else f"a {type(entries).__name__}"
        raise ConfigError(f"{where} must be a mapping, got {got_type}. Write one `key: value` a line.")
    defaults = {name: default for name, (_, default) in (optional or {}).items()}
    kinds = {**required, **{name: kind for name, (kind, _) in (optional or {}).items()}}
    if entries and not entries.keys() & kinds.keys():  # its keys may be anything, and are not repeated
        raise ConfigError(f"{where} must have keys among {', '.join(kinds)}, got none of them. Name another file.")
    check_known("key", entries, kinds, where)
    missing = [name for name in required if name not in entries]
    if missing:
        raise ConfigError(f"{where}: expected the key {missing[0]!r}, got {', '.join(entries) or 'none'}. Add it.")
    for name, value in entries.items():
        kind = kinds[name]
        plain = kind.kind if isinstance(kind, Known) else kind
        words, fits = KINDS[plain]
        if not fits(value):
            raise ConfigError(f"{where}: {name} must be {words}, got {value!r}. Change it.")
        if isinstance(kind, Known):
            check_known(kind.what, [value] if kind.kind == "text" else value, kind.names, where)
    return {name: entries.get(name, defaults.get(name)) for name in kinds}


def read_config(path: Path) -> Any:
    """The content of a configuration of the benchmarks."""
    path = Path(check_path("a configuration", path, "the path of a file"))
    names = sorted(p.name for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    near = few(sorted(names, key=lambda name: -difflib.SequenceMatcher(None, name, path.name).ratio()))
    content = read_yaml(path, "a configuration", f"There is {near}." if near else "Check the path.")
    if isinstance(content, dict) and "trainer" in content and "model" in content:
        raise ConfigError(
            f"{path} must be a configuration of benchmarks, got one of training. Type `eqlayers fit -c {path}`, or "
            "name a file of configs/bench."
        )
    return content


def read_settings(
    name: str, required: Mapping[str, Field], optional: Mapping[str, tuple[Field, Any]] | None = None
) -> tuple[Path, dict[str, Any]]:
    """The path and the fields of a configuration, by its path or its name in `configs/bench`."""
    path = find_config(name)
    return path, read_fields(str(path), read_config(path), required, optional)


def read_goals(where: str, goals: Mapping[str, Any], directions: Iterable[str]) -> dict[str, dict[str, float]]:
    """Quantity to direction to value."""
    limits: dict[str, tuple[Field, Any]] = dict.fromkeys(directions, ("number", None))
    read = {quantity: read_fields(f"{where}, {quantity}", one, {}, limits) for quantity, one in goals.items()}
    return {q: {d: float(v) for d, v in one.items() if v is not None} for q, one in read.items()}


def find_config(name: str) -> Path:
    """The file of a configuration: a path, or the name of one in `configs/bench`.

    An installation has these files in `share/eqlayers/bench`, below the folder that it was installed under.

    Example:
        >>> find_config("smoke").name
        'smoke.yaml'
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a configuration must be a name or the path of a file, got {got(name)}. Pass a text.")
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    here = Path(__file__).resolve()
    checkout = here.parents[2] / "configs" / "bench"
    for folder in (checkout, *(parent / "share" / "eqlayers" / "bench" for parent in here.parents)):
        if folder.is_dir():
            return folder / f"{name}.yaml"
    raise ConfigError(
        f"a path such as path/to/{name}.yaml was expected, got the name {name!r}: there is neither configs/bench of a "
        f"source checkout nor share/eqlayers/bench of an installation. Pass the path of a file."
    )
