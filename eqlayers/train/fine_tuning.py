"""A training that begins with a trained potential: its weights, more species, and shifts of other energies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from ..atoms.elements import element, symbols_of
from ..core.checks import check_type
from ..core.errors import ConfigError
from ..data.statistics import regression
from ..data.structures import StructureArrays
from ..models import Potential, build_potential, describe_potential, read_potential
from ..models.compression import without_tables
from ..models.extend import take_weights, with_species
from ..models.saving import check_part, classes_of, read_content
from .checkpoints import SAME_WEIGHTS, differences
from .configuration import Command, Source, nested
from .predictions import energies_of
from .run import checkpoint_path, run_folder

#: Structures whose energies tell the shifts: enough for the mean of a few numbers, few enough for a minute of a CPU.
MOST = 512
#: Arguments of networks that may differ from the weights' network: facts of the data, and how to compute.
FREE = ("species", "mean_neighbors", "backend", *SAME_WEIGHTS)


def with_network(command: Command) -> Command:
    """Add network, repulsion and cutoff of the potential ``start_from`` to a command.

    Values in files and options of the command take precedence. A configuration may name any class, as it is the user's
    own; a potential may name only classes of :mod:`eqlayers.models` and of the option ``classes``. Commands other than
    a fit, and a resumed fit, take the values from the run's checkpoint, which knows all species.
    """
    start, checkpoint = command.last("start_from"), command.last("ckpt_path")
    if start is None:
        return command
    folder = run_folder(str(command.last("runs", "runs")), str(command.last("name", "default")))
    if command.has("resume") and checkpoint_path(folder, "last").exists():
        checkpoint = checkpoint_path(folder, "last")
    path = checkpoint or start
    if command.name != "fit" and not checkpoint:
        path = checkpoint_path(folder)
    elif not checkpoint and folder.resolve() in Path(str(path)).resolve().parents:
        raise ConfigError(
            f"start_from must be outside of the run's folder, which is written over, got {path}. Give the run another "
            "--name."
        )
    parts, classes = read_potential(path).description, command.last("classes")
    values = {"data.cutoff": check_part("the network", parts.get("network"), classes)[2].get("cutoff")}
    if parts.get("repulsion") is not None:
        check_part("the repulsion", parts["repulsion"], classes)
    values |= {"model.model": parts["network"], "model.repulsion": parts.get("repulsion")}
    typed = {key: command.last(key if key == "data.cutoff" else f"{key}.class_path") for key in values}
    taken = {key: value for key, value in values.items() if value is not None and typed[key] is None}
    return replace(command, files=(Source(str(path), nested(taken), {}), *command.files))


def trained_on(path: str | Path) -> Tensor:
    """Hashes of the structures that a potential was trained on, by its checkpoint or the best of its run; or none."""
    checkpoint = Path(path) if Path(path).suffix == ".ckpt" else checkpoint_path(Path(path).parent)
    known = read_content(checkpoint).get("eqlayers_structures", {}) if checkpoint.is_file() else {}
    if "train" not in known:
        rank_zero_info("start: which structures it was trained on is not known, the test part may have some of them")
    return torch.cat([torch.empty(0, dtype=torch.int64), *(known[n] for n in ("train", "start") if n in known)])


def begun(configured: Potential, start: Potential, species: Sequence[int | str]) -> Potential:
    """The configured potential with the weights of another one, and more species."""
    check_type("start_from", start, Potential, "a Potential", "Load one with load_potential(path).")
    start = without_tables(start)
    mine, theirs = describe_potential(configured), describe_potential(start)
    changes = differences("model.model", _bound(theirs["network"]), _bound(mine["network"]))
    changes += differences("model.repulsion", theirs["repulsion"], mine["repulsion"])
    if changes:
        raise ConfigError(
            f"the network must agree with the potential of start_from, got others (there -> configured): "
            f"{', '.join(changes)}. Leave out model.model and data.cutoff, which are taken from it."
        )
    every = list(dict.fromkeys([*start.species, *configured.species, *(element("species", z) for z in species)]))
    same = {"subtract_isolated": start.subtract_isolated}
    potential = build_potential({**with_species(mine, every), **same}, classes_of(configured))
    take_weights(potential, start)
    return potential.to(configured.dtype).train(configured.training)


def _bound(network: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in network["init_args"].items() if name not in FREE}
    return {"class_path": network["class_path"], "init_args": options}


def fit_shifts(potential: Potential, data: Any, known: Sequence[int], refit: bool) -> None:
    """Correct the shifts of a potential by its errors of the energies of the training part.

    The corrections are the least-squares fit of the errors per atom by the composition, the shortest where it is not
    unique; a fit of whole energies would count twice the binding that the network has learned. Species with a given
    energy of the free atom get this as their shift.

    Source:
        The "change" of the energy bias in DeePMD-kit, Zeng et al. 2023, doi:10.1063/5.0155600.
    """
    before = dict(zip(potential.species, potential.shifts.tolist(), strict=True))
    if "energy" not in potential.properties:
        return
    after = {z: shift for z, shift in data.statistics.shifts.items() if z not in data.statistics.fitted}
    how = "as given by data.e0s"
    potential.shifts.copy_(torch.tensor(list((before | after).values()), dtype=torch.float64))
    if data.statistics.fitted:
        rows = _with_energies(data.train_set.structures, data.train_set.rows)
        part = data.train_set.structures.take(np.array(data.train_set.rows, np.int64)[rows]) if len(rows) else None
        free = [z for z in (part.species if part is not None else ()) if z not in after and (refit or z not in known)]
        how = f"{how}, others " * bool(after) + f"fitted to {len(rows)} energies"
        if part is not None and free:
            atoms = part.n_atoms[:, None]
            part_set = Subset(data.train_set, rows.tolist())
            lacking = (part.energy - energies_of(potential, part_set, data.eval_size(data.train_set)))[:, None] / atoms
            corrections = regression(part.counts(tuple(free)) / atoms, lacking[:, 0], intercept=False)
            after |= {z: before[z] + float(change) for z, change in zip(free, corrections, strict=True)}
    potential.shifts.copy_(torch.tensor(list((before | after).values()), dtype=torch.float64))
    changes = [f"{symbols_of([z])}: {before[z]:.6g} -> {value:.6g} eV" for z, value in after.items()]
    rank_zero_info(f"shifts {how}: {', '.join(changes)}" if changes else "shifts: as in the starting potential")


def _with_energies(structures: StructureArrays, rows: Sequence[int]) -> NDArray[np.int64]:
    """Indices of training structures with energies: up to 512 spread evenly, and some with each species."""
    labelled = np.flatnonzero(~np.isnan(structures.energy[rows]))
    if len(labelled) <= MOST:
        return labelled
    chosen = labelled[np.linspace(0, len(labelled) - 1, MOST).astype(np.int64)]
    counts = structures.take(np.array(rows, np.int64)[labelled]).counts(structures.species)
    rare = [labelled[np.flatnonzero(column)[:8]] for column in counts.T]
    return np.unique(np.concatenate([chosen, *rare]))
