"""Save and load potentials as class paths, arguments and weights: loading runs no code of the file.

Only known classes and those that a caller allows are imported.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.checks import check_device, check_dtype, check_items, check_optional, check_path, check_type, got
from ..core.errors import ConfigError, DataError, EqlayersError
from ..core.files.archives import read_tensors
from ..core.files.read_write import atomic_write
from ..hints.names import named_arguments
from .compression import expect_tables
from .potential import Potential

FORMAT, VERSION = "eqlayers.potential", 1
PREFIX = "potential."  # prefix of the potential's weights in a checkpoint of `eqlayers fit`
#: Public paths of the classes that files may name without permission of the caller.
PUBLIC = tuple(f"eqlayers.models.{name}" for name in ("MACE", "NequIP", "Equiformer", "TFN", "MoleculeNetwork"))
PUBLIC += ("eqlayers.nn.ZBL", "eqlayers.testing.ToyNetwork")
#: Classes that a caller allows: classes, or paths such as 'my_network.Network', separated by commas in one text.
Classes = str | type[nn.Module] | Sequence[str | type[nn.Module]]
_PLAIN = (bool, int, float, str, type(None))
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+", re.ASCII)


class SavedPotential(NamedTuple):
    """The content of a file of a potential.

    Attributes:
        description: Class paths and arguments; see :func:`describe_potential`.
        state: The state dict of the potential.
        facts: Notes such as data, units, errors and versions.

    Example:
        >>> SavedPotential({}, {}, {"units": "eV, Angstrom"}).facts["units"]
        'eV, Angstrom'
    """

    description: dict[str, Any]
    state: dict[str, Tensor]
    facts: dict[str, Any]


def describe_potential(potential: Potential) -> dict[str, Any]:
    """Class paths and arguments of a potential, as plain values.

    Args:
        potential: A potential whose network, and repulsion if any, keep their arguments in an attribute ``options``.

    Returns:
        A mapping with ``network`` and ``repulsion`` (each ``class_path`` and ``init_args``, or None), ``species`` and
        ``subtract_isolated``.

    Raises:
        ConfigError: The network has no ``options``, an argument is no plain value, or its class is not importable.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> described = describe_potential(Potential(ToyNetwork(1, cutoff=3.0), species=[29]))
        >>> described["network"]["class_path"], described["network"]["init_args"]["cutoff"], described["species"]
        ('eqlayers.testing.ToyNetwork', 3.0, [29])
    """
    check_type("potential", potential, Potential, "a Potential", "Wrap the network: Potential(network, species=...).")
    return {
        "network": describe_part("the network", potential.network),
        "species": list(potential.species),
        "repulsion": None if potential.repulsion is None else describe_part("the repulsion", potential.repulsion),
        "subtract_isolated": potential.subtract_isolated,
    }


def classes_of(potential: Potential) -> list[type[torch.nn.Module]]:
    """The classes of the network and the repulsion of a potential."""
    return [type(part) for part in (potential.network, potential.repulsion) if part is not None]


def build_potential(description: Mapping[str, Any], classes: Classes | None = None) -> Potential:
    """Build a potential from its description, with initial weights, shifts 0 and scales 1.

    Args:
        description: A result of :func:`describe_potential`.
        classes: Allowed classes of your own, as of :func:`load_potential`.

    Raises:
        ConfigError: The description lacks keys, or a class is not allowed, does not exist, or rejects its arguments.

    Example:
        >>> toy = {"class_path": "eqlayers.testing.ToyNetwork", "init_args": {"num_species": 2}}
        >>> build_potential({"network": toy, "species": [1, 8], "repulsion": None, "subtract_isolated": True}).species
        (1, 8)
    """
    known = {"network", "species", "repulsion", "subtract_isolated"}
    check_type("the description", description, Mapping, "a mapping", "Use describe_potential(potential).")
    if description.keys() != known:
        keys = ", ".join(sorted(map(str, description)))
        raise ConfigError(
            f"the description of a potential must have {', '.join(sorted(known))}, got {keys or 'nothing'}. Use "
            "describe_potential(potential)."
        )
    network, repulsion = description["network"], description["repulsion"]
    return Potential(
        build_part("the network", network, classes),
        description["species"],
        repulsion=None if repulsion is None else build_part("the repulsion", repulsion, classes),
        subtract_isolated=description["subtract_isolated"],
    )


@named_arguments
def save_potential(potential: Potential, path: str | Path, facts: Mapping[str, Any] | None = None) -> None:
    """Write a potential to a file, atomically.

    Args:
        potential: Potential to save; weights keep their dtype.
        path: The file, usually ``*.pt``; an existing file is replaced.
        facts: Plain values to store beside the weights: data, units, errors. The versions of packages are added.

    Raises:
        ConfigError: An argument or fact is no plain value; see :func:`describe_potential`.

    Example:
        >>> import tempfile
        >>> from eqlayers.testing import ToyNetwork
        >>> path = Path(tempfile.mkdtemp()) / "toy.pt"
        >>> save_potential(Potential(ToyNetwork(1), species=[29]), path, {"data": "none"})
        >>> load_potential(path).species, read_potential(path).facts["data"]
        ((29,), 'none')
    """
    from .. import __version__

    noted = dict(check_type("facts", facts or {}, Mapping, "a mapping", "Pass a dict."))
    check_plain("facts", noted)
    versions = {"eqlayers": str(__version__), "torch": str(torch.__version__)}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "potential": describe_potential(potential),
        "state_dict": {name: value.detach().cpu() for name, value in potential.state_dict().items()},
        "facts": {"versions": versions} | noted,
    }
    with atomic_write(path) as file:
        torch.save(content, file)


def read_potential(path: str | Path) -> SavedPotential:
    """Read the content of a file of a potential, without an import of its classes.

    Args:
        path: A file of :func:`save_potential`, or a checkpoint of ``eqlayers fit``.

    Raises:
        ConfigError: There is no such file.
        DataError: The file is truncated, damaged, or holds no potential.

    Example:
        >>> read_potential("no/such.pt")
        Traceback (most recent call last):
        ...
        eqlayers.errors.ConfigError: a potential must be a file, got nothing at no/such.pt. ...
    """
    return _saved(Path(path), read_content(path))


def read_content(path: str | Path) -> Any:
    """Read a file of tensors and plain values, compared with its checksums."""
    path = Path(check_path("a potential", path, "the path of a file"))
    if not path.is_file():
        present = "a folder" if path.is_dir() else "nothing"
        raise ConfigError(
            f"a potential must be a file, got {present} at {path}. Name a file of save_potential or a checkpoint."
        )
    try:
        return read_tensors(path)
    except DataError as error:
        raise unusable(path, str(error)) from None


@named_arguments
def load_potential(
    path: str | Path, dtype: torch.dtype | None = None, device: Any = "cpu", classes: Classes | None = None
) -> Potential:
    """Load a potential from a file, in evaluation mode.

    No code of the file runs: the file names the class of its network and plain arguments, and the class must be of
    ``eqlayers.models``, or among ``classes``.

    Args:
        path: A file of :func:`save_potential`, or a checkpoint of ``eqlayers fit`` of a potential.
        dtype: Dtype of the network; the file's if None. Shifts and sums stay in float64.
        device: Device of the potential.
        classes: Networks and repulsions of your own that the file may name: classes, or paths ('my_network.Network').

    Raises:
        ConfigError: There is no such file; or a class is not allowed, cannot be imported, or rejects its arguments.
        DataError: The file is truncated, damaged, holds no potential, or weights that do not fit.
        DTypeError, DeviceError: No such dtype or device.

    Example:
        >>> load_potential("no/such.pt")
        Traceback (most recent call last):
        ...
        eqlayers.errors.ConfigError: a potential must be a file, got nothing at no/such.pt. ...
    """
    check_optional(check_dtype, "dtype", dtype)
    return restored(path, read_potential(path), dtype, check_device("device", device), classes)


def restored(
    path: str | Path, saved: SavedPotential, dtype: torch.dtype | None, device: torch.device, classes: Classes | None
) -> Potential:
    """Build the potential of the content ``saved`` of a file, with its weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):  # initial weights are overwritten
        potential = build_potential(saved.description, classes)
    fill(path, potential, potential.network, saved.state)
    return potential.to(device=device, dtype=dtype).eval()


def fill(path: str | Path, module: torch.nn.Module, network: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the weights of a file into a module, which takes their dtype; raise if names or shapes differ."""
    about = f"its weights do not fit {type(network).__name__}"
    expect_tables(module, state)
    problem = misfit(module.state_dict(), state, finite=True)
    if problem is not None:
        raise unusable(path, f"{about}: {problem}")
    dtypes = (state[f"network.{name}"].dtype for name, _ in network.named_parameters())
    module.to(dtype=next((dtype for dtype in dtypes if dtype.is_floating_point), None))
    try:
        module.load_state_dict(state)
    except RuntimeError as error:  # layers with checks of their own in load_state_dict
        raise unusable(path, f"{about}: {' '.join(str(error).split())}") from None


# ---- the content of files -----------------------------------------------------------------------------------------


def unusable(path: str | Path, problem: str) -> DataError:
    """A DataError about a file that is no valid potential; ``problem`` is the reason."""
    return DataError(
        f"a potential must be a file of save_potential, or a checkpoint of a potential that `eqlayers fit` wrote, got "
        f"{path}: {problem}. Use another file, or save the potential again."
    )


def _saved(path: Path, content: Any) -> SavedPotential:
    """Description, weights and facts from the content of a saved potential or of a checkpoint of ``eqlayers fit``."""
    if not isinstance(content, dict):
        raise unusable(path, f"it holds a {type(content).__name__}, not a dictionary")
    state, options = content.get("state_dict"), content.get("hyper_parameters")
    if content.get("format") == FORMAT:
        if content.get("version") != VERSION:
            raise unusable(path, f"its version is {content.get('version')!r}, this eqlayers reads {VERSION}")
        described, facts = content.get("potential"), content.get("facts")
    elif isinstance(options, dict) and isinstance(options.get("potential"), dict):
        described = options["potential"]
        facts = {name: content[name] for name in ("epoch", "global_step") if name in content}
        inner = state.items() if isinstance(state, dict) else ()
        state = {name.removeprefix(PREFIX): value for name, value in inner if str(name).startswith(PREFIX)}
    elif isinstance(options, dict) and isinstance(options.get("property"), dict):
        name, unit = (options["property"].get(key) for key in ("name", "unit"))
        raise DataError(
            f"a potential must give energies, got {path}, which predicts {name} ({unit}), not energies. Use it alone, "
            f"with `eqlayers predict molecules.xyz -m {path} -o predicted.xyz` or `eqlayers info {path}`."
        )
    else:
        keys = ", ".join(repr(key) for key in list(content)[:5]) or "nothing"
        raise unusable(path, f"it describes no potential, but has {keys}")
    tensors = isinstance(state, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
    if not (isinstance(described, dict) and isinstance(facts, dict) and tensors):
        raise unusable(path, "a description, weights or facts are missing in it")
    return SavedPotential(described, dict(state or {}), facts)


def misfit(
    mine: Mapping[str, Tensor], saved: Mapping[str, Tensor], strict: bool = True, finite: bool = False
) -> str | None:
    """How saved weights differ from a module's in names (if ``strict``), shapes or dtypes; None if they fit."""
    both = [name for name in mine if name in saved]
    wrong = {
        "missing": [name for name in mine if strict and name not in saved],
        "unknown": [name for name in saved if strict and name not in mine],
        "of another shape": [name for name in both if mine[name].shape != saved[name].shape],
        "of another dtype": [n for n in both if mine[n].is_floating_point() != saved[n].is_floating_point()],
        "not finite": [name for name, value in saved.items() if finite and not torch.isfinite(value).all()],
    }
    differences = [
        f"{len(names)} {what} ({', '.join(names[:2])}{', ...' if names[2:] else ''})"
        for what, names in wrong.items()
        if names
    ]
    return "; ".join(differences) or None


# ---- classes that files name ---------------------------------------------------------------------------------------


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
