"""Reading YAML by a list of known fields: an unknown key or a wrong value is an error that names the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from ..core.checks import check_path, check_type, got
from ..core.errors import ConfigError
from ..files import few, read_yaml

Named = TypeVar("Named")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# kind -> (test, words for what is expected)
KINDS = {
    "text": (lambda value: isinstance(value, str), "text"),
    "count": (_is_count, "a positive integer"),
    "number": (lambda value: _is_number(value) and value > 0, "a positive number"),
    "texts": (lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of texts"),
    "counts": (lambda value: isinstance(value, list) and all(map(_is_count, value)), "a list of positive integers"),
    "numbers": (
        lambda value: isinstance(value, dict) and all(_is_number(v) and v > 0 for v in value.values()),
        "a mapping to positive numbers",
    ),
    "mapping": (lambda value: isinstance(value, dict) and len(value) > 0, "a mapping with at least one entry"),
}


def check_known(what: str, names: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Raise unless every name is in the list.

    Raises:
        ConfigError: With the first that is not, and the nearest one that is.

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
            near = difflib.get_close_matches(str(name), known, n=1)
            fix = f"Did you mean {near[0]!r}?" if near else "Use one of these."
            raise ConfigError(f"{where}: expected a {what} among {', '.join(known)}; got {name!r}. {fix}")


def matching(items: Sequence[Named], pattern: str | None, where: str) -> tuple[Named, ...]:
    """The items whose ``name`` matches ``--only``; all of them without a pattern.

    Raises:
        ConfigError: None does.
    """
    names = [str(getattr(item, "name")) for item in items]  # noqa: B009 a protocol would say no more
    if pattern is None:
        return tuple(items)
    check_type("--only", pattern, str, "a pattern of names", "Pass a text such as 'fused/*'.")
    chosen = tuple(item for item, name in zip(items, names, strict=True) if fnmatchcase(name, pattern))
    if not chosen:
        raise ConfigError(f"--only must match a case of {where}, got {pattern!r}. The cases are {', '.join(names)}.")
    return chosen


def read_fields(
    where: str, given: Any, required: Mapping[str, str], optional: Mapping[str, tuple[str, Any]]
) -> dict[str, Any]:
    """The fields of one mapping, checked, with defaults filled in.

    Args:
        where: File and place, for messages.
        given: The mapping, as YAML read it.
        required: Field to kind, a key of ``KINDS``.
        optional: Field to kind and default.

    Raises:
        ConfigError: An unknown or missing key, or a value of another kind.

    Example:
        >>> read_fields("graphs.yaml", {"nodes": 3}, {"nodes": "count"}, {"how": ("text", "uniform")})
        {'nodes': 3, 'how': 'uniform'}
    """
    if not isinstance(given, dict):
        kind = "nothing" if given is None else f"a {type(given).__name__}"
        raise ConfigError(f"{where} must be a mapping, got {kind}. Write one `key: value` a line.")
    kinds = {**required, **{name: kind for name, (kind, _) in optional.items()}}
    if given and not given.keys() & kinds.keys():  # its keys may be anything, and are not repeated
        raise ConfigError(f"{where} must have keys among {', '.join(kinds)}, got none of them. Name another file.")
    check_known("key", given, kinds, where)
    missing = [name for name in required if name not in given]
    if missing:
        raise ConfigError(f"{where}: expected the key {missing[0]!r}, got {', '.join(given) or 'none'}. Add it.")
    for name, value in given.items():
        test, words = KINDS[kinds[name]]
        if not test(value):
            raise ConfigError(f"{where}: {name} must be {words}, got {value!r}. Change it.")
    return {**{name: given[name] for name in required}, **{n: given.get(n, d) for n, (_, d) in optional.items()}}


def read_config(path: Path) -> Any:
    """The content of a configuration of the benchmarks.

    Raises:
        ConfigError: There is no such file, it is not YAML, or it is a configuration of training.
    """
    path = Path(check_path("a configuration", path, "the path of a file"))
    names = sorted(p.name for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    near = few(sorted(names, key=lambda name: -difflib.SequenceMatcher(None, name, path.name).ratio()))
    found = read_yaml(path, "a configuration", f"There is {near}." if near else "Check the path.")
    if isinstance(found, dict) and "trainer" in found and "model" in found:
        raise ConfigError(
            f"{path} must be a configuration of benchmarks, got one of training. Type `eqlayers fit -c {path}`, or "
            "name a file of configs/bench."
        )
    return found


def read_goals(where: str, given: Mapping[str, Any], directions: Iterable[str]) -> dict[str, dict[str, float]]:
    """Quantity to direction to value."""
    limits: dict[str, tuple[str, Any]] = dict.fromkeys(directions, ("number", None))
    read = {quantity: read_fields(f"{where}, {quantity}", one, {}, limits) for quantity, one in given.items()}
    return {q: {d: float(v) for d, v in one.items() if v is not None} for q, one in read.items()}


def find_config(name: str) -> Path:
    """The file of a configuration: a path, or the name of one in `configs/bench`.

    An installation has these files in `share/eqlayers/bench`, below the folder that it was installed under.

    Raises:
        ConfigError: There is no folder of configurations.

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
