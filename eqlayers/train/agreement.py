"""Whether network, data and checkpoint belong together: what would train or test without a word, and wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..atoms.elements import read_species, symbols_of
from ..core.errors import ConfigError
from ..data.datamodule import PARTS, SplitDataModule
from ..data.targets import Target

#: Arguments that say how a network computes, which no weight depends on.
SAME_WEIGHTS = ("knots",)
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


def data_facts(data: Any) -> dict[str, str]:
    """The facts of its data that a checkpoint keeps."""
    target = getattr(data, "target", None)
    return {"target": "energies of structures" if target is None else getattr(target, "name", target)}


def check_checkpoint(saved: Mapping[str, Any], data: Any) -> None:
    """Raise if a checkpoint was made for another target."""
    if saved["target"] != (now := data_facts(data)["target"]):
        raise ConfigError(
            f"the checkpoint predicts {saved['target']}, got data.target {now}. "
            f"Set data.target to {saved['target']}, or train another network under another --name."
        )


def identities(data: Any) -> dict[str, Tensor]:
    """A hash of each structure of each part of some data, the training part first; nothing of foreign data modules."""
    parts = {name: data.part(name) for name in PARTS} if isinstance(data, SplitDataModule) else {}
    return {name: torch.from_numpy(part.structures.identities[part.rows]) for name, part in parts.items() if len(part)}


def check_unseen(saved: Mapping[str, Tensor], data: Any, parts: Sequence[str]) -> dict[str, tuple[float, str]]:
    """Compare parts of some data with what a checkpoint was trained on.

    Structures that the training part of the checkpoint shared with its own other parts are copies, of which the checks
    of the data speak; "start" are those that the potential of ``start_from`` was trained on.

    Returns:
        The share that was trained on, and a sentence, for each part that has such structures; ConfigError for a drawn
        part with structures of the checkpoint's training part.
    """
    said = {}
    for name, now in identities(data).items():
        ours, again, old = (torch.isin(now, saved.get(key, now[:0])) for key in (name, "train", "start"))
        number, seen = (int(which.sum()) if name in parts else 0 for which in (again & ~ours, again & ~ours | old))
        if number and data.is_drawn(name):
            raise ConfigError(
                f"the {name} part must hold no structure that the checkpoint was trained on, got {number} of "
                f"{len(now)}. Set data.path, data.split, data.split_seed and the sizes of the parts as the run's "
                "config.yaml has them, or train anew under another --name."
            )
        if seen:
            about = f"{seen} of {len(now)} {name} structures, {seen / len(now):.0%}, were trained on"
            said[name] = seen / len(now), f"{about}: errors on them say nothing of new structures"
    return said


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
