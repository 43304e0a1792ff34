"""Build modules from class paths and arguments in files, importing only known classes and those a caller allows."""

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

#: Public paths of the classes that files may name without permission of the caller.
PUBLIC = tuple(f"eqlayers.models.{name}" for name in ("MACE", "NequIP", "Equiformer", "TFN", "MoleculeNetwork"))
PUBLIC += ("eqlayers.nn.ZBL", "eqlayers.testing.ToyNetwork")
#: Classes that a caller allows: classes, or paths such as 'my_network.Network', separated by commas in one text.
Classes = str | type[nn.Module] | Sequence[str | type[nn.Module]]
_PLAIN = (bool, int, float, str, type(None))
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+", re.ASCII)


def named_classes(classes: Classes | None) -> dict[str, type[nn.Module] | None]:
    """Map each class path that a caller allows to the class, or to None if the caller gave only the path."""
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
    """Check a module's description in a file without imports: class path, class if the caller gave it, arguments."""
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
        if "'class_path'" in repr(options):  # parsers of configurations would instantiate it, too
            raise ConfigError(f"init_args of {path} must be plain values, got another class_path in them. Remove it.")
    except RecursionError:
        raise ConfigError(f"init_args of {path} must be plain, got a list in itself. Flatten it.") from None
    return path, allowed.get(path), dict(options)


def build_part(what: str, part: Any, classes: Classes | None = None) -> nn.Module:
    """Instantiate a module from a ``class_path`` and ``init_args`` in a file; see :func:`check_part`."""
    path, module_class, options = check_part(what, part, classes)
    module, _, name = path.rpartition(".")
    try:
        module_class = module_class or getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigError(
            f"{what} must be of a class that can be imported, got {path!r}: {error}. Install its package, or name the "
            "folder of its file: PYTHONPATH=folder eqlayers ..."
        ) from error
    if not (isinstance(module_class, type) and issubclass(module_class, nn.Module)):
        raise ConfigError(f"{what} must be of a class of torch.nn.Module, got {path!r}. Correct its name.")
    try:
        inspect.signature(module_class).bind(**options)
        return module_class(**options)
    except EqlayersError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} must take the arguments of the file, got {type(error).__name__}: {error}. Install the version "
            "that wrote it."
        ) from error


def describe_part(what: str, module: nn.Module) -> dict[str, Any]:
    """The ``class_path`` and ``init_args`` (from ``module.options``) with which a file describes a module."""
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
    """Raise unless a value consists of numbers, texts, None, lists and dicts, which a file can hold without code."""
    if type(value) in (list, tuple):
        for item in value:
            check_plain(name, item)
    elif isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        for key, item in value.items():
            check_plain(f"{name}[{key!r}]", item)
    elif type(value) not in _PLAIN:
        raise ConfigError(f"{name} must be of numbers, texts, lists and dicts, got {got(value)}. Convert it.")


def _paths(cls: type) -> list[str]:
    """The path where a class is defined, then its public or shortest importable path, if there is one."""
    module, name = cls.__module__, cls.__qualname__
    modules = [] if module == "__main__" else list(accumulate(module.split("."), "{}.{}".format))
    public = [path.rpartition(".")[0] for path in PUBLIC if path.endswith(f".{name}")]
    importable = [path for path in public + modules if getattr(sys.modules.get(path), name, None) is cls]
    return [f"{path}.{name}" for path in (module, *importable[:1])]
