"""Read configurations of benchmarks: YAML checked against tables of field names and types."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..core.checks import check_path, check_type, got
from ..core.errors import ConfigError
from ..core.files.read_write import few, read_yaml
from ..hints.names import nearest

Named = TypeVar("Named")


class Known(NamedTuple):
    """Type of a field whose texts or keys must be among ``names``."""

    type: str  # a key of TYPES
    what: str  # noun for one of the names, for messages
    names: Iterable[str]


#: Type of a field: a key of TYPES, or a type with allowed names.
Field = str | Known


def _is(types: Any, value: Any) -> bool:
    """Whether a value is a number of some types above 0, and no bool."""
    return isinstance(value, types) and not isinstance(value, bool) and value > 0


def _all(holder: type, item: str, value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value
    return isinstance(value, holder) and all(TYPES[item][1](entry) for entry in values)


#: Name of a type -> description, and test of a value.
TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
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
    """Raise unless all ``names`` are in ``known``.

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
    """Items whose ``name`` matches the pattern of ``--only``; all items for None."""
    names = [str(getattr(item, "name")) for item in items]  # noqa: B009 attribute of a TypeVar
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
    """Check the fields of a mapping, and fill in defaults.

    Args:
        where: File and section, for messages.
        entries: The parsed mapping.
        required: Field -> type.
        optional: Field -> type and default.

    Example:
        >>> read_fields("graphs.yaml", {"nodes": 3}, {"nodes": "count"}, {"how": ("text", "uniform")})
        {'nodes': 3, 'how': 'uniform'}
    """
    if not isinstance(entries, dict):
        got_type = "nothing" if entries is None else f"a {type(entries).__name__}"
        raise ConfigError(f"{where} must be a mapping, got {got_type}. Write one `key: value` a line.")
    defaults = {name: default for name, (_, default) in (optional or {}).items()}
    types = {**required, **{name: type_ for name, (type_, _) in (optional or {}).items()}}
    if entries and not entries.keys() & types.keys():  # another file, whose keys are not listed
        raise ConfigError(f"{where} must have keys among {', '.join(types)}, got none of them. Name another file.")
    check_known("key", entries, types, where)
    missing = [name for name in required if name not in entries]
    if missing:
        raise ConfigError(f"{where}: expected the key {missing[0]!r}, got {', '.join(entries) or 'none'}. Add it.")
    for name, value in entries.items():
        expected = types[name]
        words, fits = TYPES[expected.type if isinstance(expected, Known) else expected]
        if not fits(value):
            raise ConfigError(f"{where}: {name} must be {words}, got {value!r}. Change it.")
        if isinstance(expected, Known):
            check_known(expected.what, [value] if expected.type == "text" else value, expected.names, where)
    return {name: entries.get(name, defaults.get(name)) for name in types}


def read_config(path: Path) -> Any:
    """Read the YAML file of a benchmark configuration."""
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
    """Path and checked fields of a configuration, given by path or by name in `configs/bench`."""
    path = find_config(name)
    return path, read_fields(str(path), read_config(path), required, optional)


def read_goals(where: str, goals: Mapping[str, Any], directions: Iterable[str]) -> dict[str, dict[str, float]]:
    """Check goals: quantity -> direction -> value."""
    limits: dict[str, tuple[Field, Any]] = dict.fromkeys(directions, ("number", None))
    read = {quantity: read_fields(f"{where}, {quantity}", values, {}, limits) for quantity, values in goals.items()}
    return {q: {d: float(v) for d, v in values.items() if v is not None} for q, values in read.items()}


def find_config(name: str) -> Path:
    """Path of a configuration from a path or a name in `configs/bench`.

    The installed package has these files in `share/eqlayers/bench` of its prefix.

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
