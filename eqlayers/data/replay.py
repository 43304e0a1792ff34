"""Structures of an earlier training that are mixed into a new one, so that what they taught is not forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eqlayers.atoms.units import read_units
from eqlayers.data.readers import read_keys
from eqlayers.data.statistics import regression
from eqlayers.data.structures import LABELS, StructureArrays

from ..core.checks import check_choice, check_integer, check_items, check_number, check_path, check_type, is_integer
from ..core.errors import ConfigError, DataError

_OFFSET = 4.0  # eV an atom between methods: crystals and dimers of one method leave 3.2 (tungsten)


class Replay(NamedTuple):
    """The structures that are replayed.

    Attributes:
        path: File, or name of an embedded set.
        number: Structures in every epoch, or their fraction of it.
        labels: Those that count.
        keys, units: As of :func:`eqlayers.data.read_structures`.
    """

    path: str
    number: int | float = 0.5
    labels: tuple[str, ...] = tuple(LABELS)
    keys: Mapping[str, str | None] = {}
    units: Mapping[str, Any] = {}


def read_replay(mapping: Any) -> Replay | None:
    """The option ``replay`` of a data module, checked."""
    if mapping is None:
        return None
    fix = "Pass replay={'path': 'old.xyz', 'number': 0.5}."
    options = dict(check_type("replay", mapping, Mapping, "a mapping with the path of a file, or None", fix))
    for name in options:
        check_choice("a key of replay", name, Replay._fields)
    path = check_path("replay.path", options.get("path"), "a file of structures, or the name of an embedded set")
    number, labels = options.get("number", 0.5), options.get("labels")
    if is_integer(number):
        check_integer("replay.number", number, 1, what="a number of structures, or a fraction of each epoch")
    elif check_number("replay.number", number, above=0, fix="0.5 replays as many as there are new ones.") >= 1:
        raise ConfigError(
            f"replay.number must be a number of structures, or a fraction of each epoch below 1, got {number}. 0.5 "
            "replays as many as there are new ones."
        )
    labels = tuple(LABELS) if labels is None else labels
    listed = check_items("replay.labels", labels, "a list of labels", "Pass ['forces'].")
    for label in listed:
        check_choice("replay.labels", label, LABELS)
    return Replay(path, number, tuple(listed), read_keys(options.get("keys")), read_units(options.get("units")))


def only_labels(structures: StructureArrays, labels: tuple[str, ...]) -> StructureArrays:
    """Copy structures, with NaN for every label that is not in ``labels``."""
    hidden = {name: np.full_like(getattr(structures, name), np.nan) for name in LABELS if name not in labels}
    return replace(structures, **hidden)


def check_energies(new: StructureArrays, old: StructureArrays) -> None:
    """Raise a DataError if no shifts fit energies of new and of earlier structures, as of two functionals."""
    species = tuple(sorted({*new.species, *old.species}))
    rows = [(part.counts(species) / part.n_atoms[:, None], part.energy / part.n_atoms) for part in (new, old)]

    def left(counts: Any, energy: Any) -> float:
        counts, energy = counts[~np.isnan(energy)], energy[~np.isnan(energy)]
        residual = energy - counts @ regression(counts, energy, intercept=False)
        return float(np.sqrt(np.square(residual).sum() / max(1, len(residual))))

    single, together = max(left(*part) for part in rows), left(*map(np.concatenate, zip(*rows, strict=True)))
    if together > max(10 * single, _OFFSET):
        raise DataError(
            f"energies of {old.source} must be of the method of {new.source}, got shifts that fit both to "
            f"{together:.3g} eV an atom, and each to {single:.3g}. Replay forces alone, replay.labels: [forces], or "
            "compute the energies again."
        )


def replayed(replay: Replay, old: StructureArrays, num_new: int, seed: int) -> NDArray[np.int64]:
    """Rows of the earlier structures that are in every epoch, drawn from those with a label that counts."""
    number, usable = replay.number, np.flatnonzero(sum(old.label_rows().values()))
    drawn_number = number if is_integer(number) else round(num_new * number / (1 - number))
    if drawn_number < 1 or drawn_number > len(usable):
        raise DataError(
            f"replay.number must be for 1 to {len(usable)} structures, as {old.source} has with labels among "
            f"{', '.join(replay.labels)}, got {number}: {drawn_number} beside {num_new} new ones. "
            f"{'Lower' if drawn_number > 1 else 'Raise'} it."
        )
    drawn = np.random.default_rng(seed).permutation(usable)[: int(drawn_number)]
    return np.asarray(np.sort(drawn), dtype=np.int64)
