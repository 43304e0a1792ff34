"""Classes and arguments of modules in files: only classes that are known or that the caller names are imported."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch import nn

from ..core.checks import check_items, got
from ..core.errors import ConfigError, EqlayersError

#: Classes of which potentials in files are made, by their public names: files have these, whatever module defines them.
PUBLIC = tuple(f"eqlayers.models.{name}" for name in ("MACE", "NequIP", "Equiformer", "TFN", "MoleculeNetwork"))
PUBLIC += ("eqlayers.nn.ZBL", "eqlayers.testing.ToyNetwork")
#: What callers name: classes, or paths such as 'my_network.Network', several in one text with commas between.
Classes = str | type[nn.Module] | Sequence[str | type[nn.Module]]
_PLAIN = (bool, int, float, str, type(None))
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+", re.ASCII)


def named_classes(classes: Classes | None) -> dict[str, type[nn.Module] | None]:
    """The paths that a caller allows, with the class where it is one."""
    what, fix = "classes of torch.nn.Module, or their paths", "Pass 'my_network.Network', or a list of several."
    several = [] if classes is None else [classes] if isinstance(classes, (str, type)) else classes
    paths: dict[str, type[nn.Module] | None] = {}
    for item in check_items("classes", several, what, fix):
        if isinstance(item, type) and issubclass(item, nn.Module):
            paths |= dict.fromkeys(_paths(item), item)
            continue
        for path in item.split(",") if isinstance(item, str) else [item]:
            if not isinstance(path, str) or not _NAME.fullmatch(path.strip()):
                raise ConfigError(f"classes must be {what}, got {got(path)}. {fix}")
            paths[path.strip()] = None
    return paths


def check_part(what: str, part: Any, classes: Classes | None = None) -> tuple[str, Any, dict[str, Any]]:
    """The path of a class in a file, the class where the caller gave it, and plain arguments; nothing is imported."""
    allowed = named_classes(classes)
    path, options = (part.get(key) if isinstance(part, Mapping) else None for key in ("class_path", "init_args"))
    if not isinstance(path, str) or not isinstance(options, Mapping):
        raise ConfigError(f"{what} must be given by class_path and init_args, got {got(part)}. Give both.")
    if path not in allowed and path not in PUBLIC:
        name = path if _NAME.fullmatch(path) else "my_network.Network"
        raise ConfigError(
            f"{what} must be of a class of eqlayers.models, ZBL, or one that you name, got {got(path)} from a file; "
            f"nothing was imported. If the class is your own, name it: --classes {name}, in Python classes={[name]}."
        )
    try:
        check_plain(f"init_args of {path}", options)
        if "'class_path'" in repr(options):  # which parsers of configurations would make as well
            raise ConfigError(f"init_args of {path} must be plain values, got another class_path in them. Remove it.")
    except RecursionError:
        raise ConfigError(f"init_args of {path} must be plain, got a list in itself. Flatten it.") from None
    return path, allowed.get(path), dict(options)


def build_part(what: str, part: Any, classes: Classes | None = None) -> nn.Module:
    """A module from its class and arguments in a file."""
    path, kind, options = check_part(what, part, classes)
    place, _, name = path.rpartition(".")
    try:
        kind = kind or getattr(importlib.import_module(place), name, None)
    except ImportError as error:
        raise ConfigError(
            f"{what} must be of a class that can be imported, got {path!r}: {error}. Install its package, or name the "
            "folder of its file: PYTHONPATH=folder eqlayers ..."
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"{what} must be of a class of torch.nn.Module, got {path!r}. Correct its name.")
    try:
        inspect.signature(kind).bind(**options)
        return kind(**options)
    except EqlayersError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} must take the arguments of the file, got {type(error).__name__}: {error}. Install the version "
            "that wrote it."
        ) from error


def describe_part(what: str, module: nn.Module) -> dict[str, Any]:
    """The class and the arguments of a module, as a file has them."""
    options = getattr(module, "options", None)
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"{what} must keep its arguments as a dict in the attribute `options`, got {got(options)} of "
            f"{type(module).__name__}. Set self.options in its __init__."
        )
    check_plain(f"options of {type(module).__name__}", options)
    paths = _paths(type(module))
    if len(paths) < 2:
        raise ConfigError(
            f"{what} must be of a class at the top of a module that others can import, got {paths[0]}. Move it to a "
            "file of its own."
        )
    return {"class_path": paths[-1], "init_args": dict(options)}


def check_plain(name: str, value: Any) -> None:
    """Raise unless a value is one that a file holds without code."""
    if type(value) in (list, tuple):
        for item in value:
            check_plain(name, item)
    elif isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        for key, item in value.items():
            check_plain(f"{name}[{key!r}]", item)
    elif type(value) not in _PLAIN:
        raise ConfigError(
            f"{name} must be of numbers, texts, lists and dicts, which any reader knows, got {got(value)}. Convert it."
        )


def _paths(kind: type) -> list[str]:
    """The path where a class is defined; then its path in files, public or the shortest, if others can import it."""
    module, name = kind.__module__, kind.__qualname__
    homes = [] if module == "__main__" else list(accumulate(module.split("."), "{}.{}".format))
    public = [path.rpartition(".")[0] for path in PUBLIC if path.endswith(f".{name}")]
    there = [home for home in public + homes if getattr(sys.modules.get(home), name, None) is kind]
    return [f"{home}.{name}" for home in (module, *there[:1])]
