"""Species of a network that a configuration leaves out: the species of the data, or of the checkpoint that is read."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from ..elements import SYMBOLS
from .checkpoints import read_checkpoint
from .configuration import given_values

__all__ = ["KEY", "leaves_out_species", "listed_for", "species_of_checkpoint"]

#: Of the configuration.
KEY = "model.model.init_args.species"


def leaves_out_species(args: Sequence[str]) -> bool:
    """Whether a command line names a network that needs a list of species, and no species.

    Example:
        >>> leaves_out_species(["fit", "--model.model.class_path", "eqlayers.models.NequIP"])
        True
        >>> leaves_out_species(["fit", "--model.model.class_path", "eqlayers.models.NequIP", f"--{KEY}", "[H]"])
        False
    """
    named: list[Any] = []
    for one in [*given_values(args, "model.model"), *given_values(args, "model.model.class_path")]:
        network = _mapping(one) if isinstance(one, str) and one.lstrip().startswith("{") else one
        if not isinstance(network, Mapping):
            named.append(network)
            continue
        named.append(network.get("class_path"))
        if "species" in (network.get("init_args") or {}):
            return False
    return not given_values(args, KEY) and bool(named) and isinstance(named[-1], str) and _needs_species(named[-1])


def _mapping(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:  # the parser says what is wrong with it
        return None


def _needs_species(class_path: str) -> bool:
    module, _, name = class_path.rpartition(".")
    try:
        network: Callable[..., Any] = getattr(importlib.import_module(module or "eqlayers.models"), name)
        parameter = inspect.signature(network).parameters.get("species")
    except (ImportError, AttributeError, TypeError, ValueError):  # the parser says what is wrong with it
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty


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
