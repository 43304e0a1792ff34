"""Species of a network that a configuration leaves out: the species of the data, or of the checkpoint that is read."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ..core.errors import ConfigError
from ..elements import SYMBOLS
from .checkpoints import read_checkpoint
from .configuration import given_values

#: Key of the configuration.
KEY = "model.model.init_args.species"


def leaves_out_species(args: Sequence[str]) -> bool:
    """Whether a command line names a network that needs a list of species, and no species.

    Example:
        >>> leaves_out_species(["fit", "--model.model.class_path", "eqlayers.models.NequIP"])
        True
        >>> leaves_out_species(["fit", "--model.model.class_path", "eqlayers.models.NequIP", f"--{KEY}", "[H]"])
        False
    """
    networks = _networks(args)
    if given_values(args, KEY) or any("species" in (one.get("init_args") or {}) for one in networks):
        return False
    network = network_of(args, None)
    parameter = None if network is None else inspect.signature(network).parameters.get("species")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def network_of(args: Sequence[str], other: Any) -> Any:
    """The class of the network that a command line names, or another one where it names none that is there."""
    try:
        named = [one["class_path"] for one in _networks(args) if isinstance(one.get("class_path"), str)]
        module, _, name = named[-1].rpartition(".") if named else ("", "", "")
        return getattr(importlib.import_module(module or "eqlayers.models"), name) if name else other
    except (ConfigError, ImportError, AttributeError, ValueError):  # the parser says what is wrong with it
        return other


def _networks(args: Sequence[str]) -> list[Mapping[str, Any]]:
    """The network in files and then options; the last one counts most."""
    networks = []
    for one in [*given_values(args, "model.model"), *given_values(args, "model.model.class_path")]:
        network = _mapping(one) if isinstance(one, str) and one.lstrip().startswith("{") else one
        networks.append(network if isinstance(network, Mapping) else {"class_path": network})
    return networks


def _mapping(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:  # the parser says what is wrong with it
        return None


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
