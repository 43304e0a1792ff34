"""Whether network, data and checkpoint belong together: what would train or test without a word, and wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..core.errors import ConfigError
from ..data.targets import Target
from ..elements import read_species, symbols_of

#: Arguments that say how a network computes, which no weight depends on.
SAME_WEIGHTS = ("knots",)
#: Facts of its data that a checkpoint records.
FACTS = ("target", "dataset", "split")
#: Read-outs of one target each, which scalars can be fitted to as well.
SPECIAL = {
    "vector": ("mu", "a vector read-out predicts a norm"),
    "extent": ("r2", "the read-out of an extent has squared distances"),
}


def check_network(model: nn.Module, data: Any) -> None:
    """Raise unless the network can learn the target of the data: cutoff, species, pooling and read-out."""
    if not callable(getattr(model, "set_statistics", None)):
        raise ConfigError(
            f"the network must have set_statistics(shifts, scale, mean_neighbors), got {type(model).__name__}. "
            "Use eqlayers.models.MoleculeNetwork, or give your network this method."
        )
    mine, theirs = getattr(model, "cutoff", None), getattr(data, "cutoff", None)
    if mine is not None and theirs is not None and float(mine) != float(theirs):
        raise ConfigError(
            f"model and data must have one cutoff, got {mine} Angstrom in the model and {theirs} in the data. "
            "Set data.cutoff and model.model.init_args.cutoff to the same number."
        )
    known, present = getattr(model, "species", None), data.statistics.species
    if known is not None and not set(present) <= set(known):
        raise ConfigError(
            f"the network must know every species of the data, {symbols_of(present)}, got {symbols_of(known)}. "
            "Set model.model.init_args.species."
        )
    if getattr(data, "target", None) is not None:  # structures have energies, and networks of them no read-out
        _check_readout(model, data.target)


def _check_readout(model: nn.Module, target: Target) -> None:
    readout, pooling = getattr(model, "readout", None), getattr(model, "pooling", None)
    for special, (name, what) in SPECIAL.items():
        if readout == special and target.name != name:
            raise ConfigError(
                f"{what}, so it is for the target {name}, got {target.name}. "
                "Set model.model.init_args.readout to scalar."
            )
    if target.name == "mu":
        return  # the one property that is the norm of a vector; scalars can be fitted to it as well
    wanted = "sum" if target.extensive else "mean"
    if pooling is not None and pooling != wanted:
        kind = "grows with the molecule" if target.extensive else "does not grow with the molecule"
        raise ConfigError(
            f"{target.name} {kind}, so atoms must be pooled by {wanted}, got {pooling}. "
            f"Set model.model.init_args.pooling to {wanted}."
        )


def data_facts(data: Any) -> dict[str, Any]:
    """The facts of its data that a checkpoint keeps: target, data set and split."""
    target = getattr(data, "target", None)
    facts = {"target": "energies of structures" if target is None else getattr(target, "name", target)}
    return facts | {name: getattr(data, name, None) for name in FACTS[1:]}


def check_checkpoint(saved: Mapping[str, Any], data: Any) -> None:
    """Raise if a checkpoint was made for another target, or on another split of the same data set."""
    now = data_facts(data)
    if saved["target"] != now["target"]:
        raise ConfigError(
            f"the checkpoint predicts {saved['target']}, got data.target {now['target']}. "
            f"Set data.target to {saved['target']}, or train another network under another --name."
        )
    if saved["dataset"] == now["dataset"] and saved["split"] != now["split"]:
        raise ConfigError(
            f"the checkpoint was trained on the split {saved['split']!r} of {saved['dataset']}, got data.split "
            f"{now['split']!r}: its training molecules may be among these test molecules. "
            f"Set data.split to {saved['split']}, or train anew under another --name."
        )


def differences(path: str, saved: Any, mine: Any) -> list[str]:
    """The differences between two nested mappings of arguments, a text for each value that weights depend on.

    Example:
        >>> differences("model", {"lmax": 1, "p": 6}, {"lmax": 2, "p": 6})
        ['model.lmax: 1 -> 2']
        >>> differences("model", {"knots": 64}, {"knots": None})
        []
    """
    if isinstance(saved, Mapping) and isinstance(mine, Mapping):
        keys = sorted((saved.keys() | mine.keys()).difference(SAME_WEIGHTS))
        return [line for key in keys for line in differences(f"{path}.{key}", saved.get(key), mine.get(key))]
    if path.endswith(".species") and saved and mine and read_species(saved) == read_species(mine):
        return []  # symbols are atomic numbers
    return [] if saved == mine else [f"{path}: {saved!r} -> {mine!r}"]
