"""Choose settings of a training for a file of structures, and format them as YAML with reasons as comments."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from ...atoms.database import database_units
from ...atoms.elements import SYMBOLS, symbols_of
from ...core.errors import DataError
from ...data.plausible import check_parts, check_shifts
from ...data.qm9 import NO_UNIT
from ...data.splits import split_structures
from ...data.statistics import without_training
from .facts import Facts, described

#: Default cutoff in Angstrom.
USUAL = 5.0
_SHORTEST, _LONGEST = 4.0, 7.0
_MANY = 80  # most neighbours of an atom on average; the cutoff is shortened for more
_FEWEST = 3  # fewest structures for a split
_STEPS = 12_000  # optimizer steps that the number of epochs is chosen for
_ATOMS, _ATOMS_OF_MOLECULES = 200, 800  # atoms in a batch: of potentials, and of molecules with one label each
_LOSS = "lengths of force errors, sizes of energy errors per atom, over the forces' scale"
#: (least number of atoms in the training part, channels of the network).
_CHANNELS = ((0, 32), (5_000, 64), (150_000, 128))
_COLUMN, _WIDTH = 32, 119  # column of comments, and width of lines
#: Section -> comment.
_SECTIONS = {"data.keys": "names of labels in the file", "data.units": "units of these labels in the file"}


class Choices(NamedTuple):
    """Settings by dotted key in the order of the file, messages about the data, and number of steps of an epoch."""

    settings: dict[str, Setting]
    noticed: list[str]
    steps: int


def choose(facts: Facts, unit: str = NO_UNIT) -> Choices:
    """Choose the settings of a training; ``unit`` is the unit of a property."""
    shifts, whole = _shifts(facts), np.arange(len(facts.structures))
    rows = whole if facts.target is not None else np.flatnonzero(~without_training(facts.structures))
    if len(rows) < _FEWEST:
        raise DataError(
            f"{facts.path} must have at least {_FEWEST} structures of more than one atom, one for each of training, "
            f"validation and test, got {len(rows)}. Add structures."
        )
    split, sizes, noticed = _split(facts, rows)
    parts = split_structures(split.value, facts.structures.config_type[rows], **{k: s.value for k, s in sizes.items()})
    part_rows = {name: rows[part] for name, part in zip(("train", "val", "test"), parts, strict=True)}
    noticed += check_parts(facts.structures, part_rows)
    if set(facts.structures.species) <= set(facts.isolated):
        noticed += check_shifts(facts.structures, facts.isolated)
    cutoff = _cutoff(facts)
    train = facts.structures.take(part_rows["train"])
    batch, edges = _batches(facts, train, cutoff.value, _ATOMS if facts.target is None else _ATOMS_OF_MOLECULES)
    steps = math.ceil(len(train) / batch.value)
    epochs = max(20, min(500, math.ceil(_STEPS / steps)))
    every = max(1, epochs // 40)
    epochs = every * math.ceil(epochs / every)
    labels, learned = facts.structures.labels, None if facts.target is None else choose_property(facts, unit)
    about = f"{facts.sizes} atoms, {facts.periodic} periodic" + (f", and {facts.free} free atoms" if facts.free else "")
    settings: dict[str, Setting] = {"data.path": Setting(facts.path, about)}
    settings |= _labels(facts) if learned is None else learned
    settings |= {"data.split": split, **{f"data.{name}": setting for name, setting in sizes.items()}}
    settings |= {"data.cutoff": cutoff} | ({"data.e0s": shifts} if learned is None else {}) | {"data.batch_size": batch}
    if edges is not None:
        settings["data.max_edges"] = edges
    together = max(1, min(100, 2000 // int(facts.structures.n_atoms.max())))
    warmup, about = min(100, steps * epochs // 10), f"{len(train):,} training structures, {steps:,} steps each"
    end = "stop after this many validations without a lower error; there are fewer"
    settings |= {
        "data.eval_batch_size": Setting(together, "structures per batch of validation and test"),
        "model.optimizer": Setting("soap", "or adamw"),
        "model.learning_rate": Setting(0.06 if learned is None else 0.02, "highest rate of the optimizer"),
        "model.warmup_steps": Setting(warmup, "optimizer steps of linear rise, then a half cosine over the rest"),
        "model.loss": Setting("l1", _LOSS if learned is None else "sizes of errors over the deviation of the labels"),
    }
    settings |= _weights(labels)
    settings |= _network(facts, int(train.n_atoms.sum()), learned)
    settings |= {
        "trainer.accelerator": Setting("auto", "a GPU if there is one, else the CPU"),
        "trainer.devices": Setting(1, "of them"),
        "trainer.max_epochs": Setting(epochs, f"passes over {about}; the schedule follows it"),
        "trainer.gradient_clip_val": Setting(10.0, "largest norm of the gradient of the (dimensionless) loss"),
        "trainer.check_val_every_n_epoch": Setting(every, "epochs from validation to validation"),
        "trainer.log_every_n_steps": Setting(min(50, steps), "optimizer steps between two rows of the logs"),
        "ema.decay": Setting(0.99, "per step; the averaged weights are validated, tested and saved"),
        "early_stopping.patience": Setting(epochs // every + 1, end),
    }
    return Choices(settings, [*facts.file.notes, *facts.noticed, *noticed], steps)


def _labels(facts: Facts) -> dict[str, Setting]:
    """Settings for names and units of labels, with comments on assumptions."""
    if facts.embedded:
        return {}
    columns = facts.file.columns
    used = {name: columns[name] for name in columns if name in ("energy", "forces", "stress", "virial")}
    settings = {  # several recognised names are read without a key
        f"data.keys.{name}": Setting(column.names[0], f"name in the file, of {column.number:,} structures")
        for name, column in used.items()
        if len(column.names) == 1
    }
    for name, column in used.items():
        why = "as it was given" if name in facts.file.explicit else "taken for granted; the file says no unit"
        names = "" if len(column.names) == 1 else f"{' and '.join(column.names)}, of {column.number:,} structures; "
        settings[f"data.units.{name}"] = Setting(facts.file.units[name], names + why)
    if "groups" in facts.file.units:
        settings["data.units.groups"] = Setting(facts.file.units["groups"], "of a config_type, or by periodicity")
    if facts.skip_bad:
        settings["data.skip_bad"] = Setting(True, "frames that cannot be read are left out, and listed")
    return settings


def _split(facts: Facts, rows: Any) -> tuple[Setting, dict[str, Setting], list[str]]:
    """Settings of the split and of the sizes of its parts, and messages."""
    num, types = len(rows), len(np.unique(facts.structures.config_type[rows]))
    if facts.trajectory and types == 1 and num >= 20:
        sizes = {"val": Setting(0.16, "of the structures, before the test part"), "test": Setting(0.2, "the last ones")}
        return Setting("time", "in blocks of time, as successive structures are alike"), sizes, []
    about, noticed = "drawn by a seed", list[str]()
    if facts.trajectory:
        noticed.append(
            "successive frames are alike, so a random split puts neighbours of training frames into the test part, and "
            "errors on it flatter: give a file of its own as data.test_path, or name groups with split: config_type"
        )
        about = "drawn by a seed; frames come from trajectories, so errors on the test part flatter"
    elif math.isfinite(facts.successive):
        about = "drawn by a seed, as successive structures are not alike"
    tenth = max(1, round(0.1 * num))
    sizes = {"val": Setting(tenth, "structures for validation"), "test": Setting(tenth, "structures for the report")}
    return Setting("random", about), sizes, noticed


def _cutoff(facts: Facts) -> Setting:
    """Cutoff: the default, at least twice the nearest-neighbour distance, and shorter with too many neighbours."""
    near = facts.near
    cutoff = min(_LONGEST, max(USUAL, math.ceil(2 * (2 * near.nearest - 0.1)) / 2))
    why = "usual" if cutoff == USUAL else f"twice the {near.nearest:.2f} A to the nearest neighbour"
    while near.at(cutoff)[0] > _MANY and cutoff > _SHORTEST:
        cutoff -= 0.5
        why = f"short, as {near.at(cutoff + 0.5)[0]:.0f} atoms are within {cutoff + 0.5:g} A"
    mean = near.at(cutoff)[0]
    return Setting(cutoff, f"Angstrom; {why}; {mean:.0f} neighbours on average; the model takes it from here")


def _shifts(facts: Facts) -> Setting:
    """Setting for the energies of atoms (e0s)."""
    species = facts.structures.species
    if "energy" not in facts.structures.labels:
        return Setting("none", "no energies to fit energies of atoms to")
    if facts.isolated:
        about = "energies of atoms from the structures with one atom, which are in no part"
        missing = [z for z in species if z not in facts.isolated]
        about += f"; no free atom of {symbols_of(missing)} is in the file, so a fit gives the rest" if missing else ""
        return Setting("isolated", about)
    why = "; no free atoms are in the file" if facts.unique else ", not energies of free atoms: too few compositions"
    return Setting("fit", f"energies of atoms by least squares{why}; or {{H: ..., O: ...}} in eV")


def _batches(facts: Facts, train: Any, cutoff: float, atoms: int) -> tuple[Setting, Setting | None]:
    """Batch size, and a limit of edges if sizes of structures differ much."""
    mean, largest = float(train.n_atoms.mean()), int(train.n_atoms.max())
    number = 2 ** max(0, min(int(math.log2(atoms / 25)), int(math.log2(max(1.0, atoms / mean)))))
    if len(train) > 20_000:
        number *= 4
    batch = Setting(number, f"structures per optimizer step, {round(number * mean):,} atoms on average")
    if largest < 2 * mean:
        return batch, None
    edges = max(facts.near.at(cutoff)[1], int(2 * number * mean * facts.near.at(cutoff)[0]))
    limit = int(float(f"{1.2 * edges:.1g}")) + 1000
    return batch, Setting(limit, "at most, of all structures of a batch: sizes differ, and memory stays bounded")


def _weights(labels: tuple[str, ...]) -> dict[str, Setting]:
    """Settings of the weights of the loss."""
    settings = {}
    for name, noun in (("energy", "energies"), ("forces", "forces"), ("stress", "stress")):
        if name in labels:
            settings[f"model.{name}_weight"] = Setting(1.0, f"weight of the {noun} in the loss")
    if {"energy", "forces"} <= set(labels):
        settings["model.second_stage"] = Setting(0.75, "from three quarters of the training on ...")
        settings["model.second_energy_weight"] = Setting(10.0, "... energies weigh more; other weights stay")
    return settings


def _network(facts: Facts, atoms: int, learned: dict[str, Setting] | None) -> dict[str, Setting]:
    """Settings of the network: MACE, or MoleculeNetwork for a property, with a size for the amount of data."""
    channels = next(number for least, number in reversed(_CHANNELS) if atoms >= least)
    size = {32: "32 channels: few data", 64: "64 channels", 128: "128 channels: many data"}[channels]
    labels, symbols = facts.structures.labels, [SYMBOLS[z - 1] for z in facts.structures.species]
    about = f"irreps of the features of an atom; {size} ({atoms:,} atoms to train on)"
    widths = [32] if channels < 128 else [64, 64]
    network = Setting("eqlayers.models.MACE", "or NequIP, TFN, Equiformer of eqlayers.models")
    settings = {
        "species": Setting(symbols, "symbols; without this line, the elements of the data"),
        "hidden": Setting(f"{channels}x0e + {channels}x1o", about),
        "correlation": Setting(3, "most neighbours in one product; 2 is faster"),
        "lmax": Setting(3 if channels > 32 else 2, "largest degree of the spherical harmonics of an edge"),
        "layers": Setting(2, "steps of message passing; an atom depends on atoms within this many cutoffs"),
        "num_basis": Setting(8, "Bessel functions of an edge's length"),
        "radial_hidden": Setting(widths, "widths of the network from these functions to weights"),
    }
    if learned is not None:
        pooling = ("sum", "... added over") if learned["data.extensive"].value else ("mean", "... averaged over")
        del settings["correlation"]
        network = Setting("eqlayers.models.MoleculeNetwork", "one number for each molecule")
        settings["species"] = Setting(symbols, "chemical symbols")
        settings["layers"] = Setting(3, "interactions; an atom depends on atoms within this many cutoffs")
        settings["readout"] = Setting("scalar", "invariant numbers of the atoms ...")
        settings["pooling"] = Setting(pooling[0], f"{pooling[1]} the molecule")
    elif not {"energy", "forces"} & set(labels):
        others = [name for name in ("dipole", "polarizability") if name in labels]
        settings["properties"] = Setting(others, "what is predicted; the file has no energies or forces")
    options = {f"model.model.init_args.{name}": setting for name, setting in settings.items()}
    return {"model.model.class_path": network, **options}


def as_yaml(facts: Facts, choices: Choices, name: str, typed: str, file: str | None = None) -> str:
    """Format a configuration as YAML with comments."""
    task = ("potential", "energies, forces and stress of structures")
    task = task if facts.target is None else ("property", "one number for each molecule")
    general = {
        "task": Setting(*task),
        "name": Setting(name, "the run's folder under `runs`"),
        "runs": Setting("runs", "folder of all runs"),
        "seed_everything": Setting(2026, "seed of weights; the same seed and thread count give the same result"),
        "threads": Setting(1, "CPU threads of torch; 0 for torch's choice, faster where structures are large"),
        "test_after_fit": Setting(True, "test the best weights at the end and write the report"),
    }
    what = f"The property {facts.target} of" if facts.target else "A potential for"
    heading = [f"{what} {described(facts)}.", f"Written by `{typed}`."]
    if file is not None:
        heading.append(f"  eqlayers fit {file}")
    heading.append(
        "Every key is also an option, e.g. --trainer.max_epochs 10. "
        + ("Units: eV and Angstrom; errors are reported in meV and meV/A. " if facts.target is None else "")
        + "Paths begin at the folder in which the command is typed."
    )
    if choices.noticed:
        heading += ["", "Noticed in the data:", *(f"- {note}" for note in choices.noticed)]
    return "\n".join([*_comments(heading), "", *_lines({**general, **choices.settings}), ""])


def _comments(paragraphs: Iterable[str]) -> list[str]:
    """Wrap paragraphs as comment lines."""
    lines = []
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    for text in paragraphs:
        indent = "#   " if text.startswith("- ") else "# "
        lines += textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent=indent, **whole) or ["#"]
    return lines


def _lines(settings: dict[str, Setting]) -> list[str]:
    """Lines of nested keys with their comments."""
    lines: list[str] = []
    before: list[str] = []  # the outermost section of the key before, if any
    begun: set[str] = set()
    for key, (value, about) in settings.items():
        *sections, last = key.split(".")
        if sections[:1] != before:
            lines.append("")
        before = sections[:1]
        for depth, name in enumerate(sections):
            if (section := ".".join(sections[: depth + 1])) not in begun:
                begun.add(section)
                lines += _line(depth, f"{name}:", _SECTIONS.get(section, ""))
        lines += _line(len(sections), f"{last}: {scalar(value)}", about)
    return lines


def _line(depth: int, text: str, about: str) -> list[str]:
    """A line with its comment at the end, or above if it is too long."""
    start = f"{'  ' * depth}{text}"
    if not about:
        return [start]
    line = f"{start:<{_COLUMN - 1}} # {about}"
    if len(line) <= _WIDTH:
        return [line]
    width = _WIDTH - 2 * depth - 2
    return [*(f"{'  ' * depth}# {part}" for part in textwrap.wrap(about, width)), start]


def scalar(value: Any) -> str:
    """Format a value as YAML; a text is quoted only if YAML would read another value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(scalar, value))}]"
    if not isinstance(value, str):
        return repr(value)
    plain = re.fullmatch(r"[\w./+^ -]+", value) is not None
    return value if plain and yaml.safe_load(f"[{value}]") == [value] else json.dumps(value, ensure_ascii=False)


_BETTER = 0.5  # ratio of errors below which the extensive fit is better


class Setting(NamedTuple):
    """A value of the configuration and its comment."""

    value: Any
    about: str


def choose_property(facts: Facts, unit: str) -> dict[str, Setting]:
    """Settings of the data of a property; its unit may be in the metadata of a database."""
    number, target = facts.file.columns["y"].number, str(facts.target)
    if unit == NO_UNIT and facts.path.endswith(".db"):
        unit = database_units(Path(facts.path)).get(target, unit)
    about = "set it: the file says none" if unit == NO_UNIT else "which reports name"
    return {
        "data.target": Setting(target, f"name in the file, of {number:,} structures"),
        "data.unit": Setting(unit, f"{about}; numbers stay as they are"),
        "data.extensive": _extensive(facts),
    }


def _extensive(facts: Facts) -> Setting:
    """Setting whether a property is extensive: a linear fit by atom counts is much better than by fractions."""
    known = np.flatnonzero(~np.isnan(facts.structures.y))
    part = facts.structures.take(known)
    counts = part.counts(part.species).astype(np.float64)
    sizes = np.unique(part.n_atoms)
    errors = []
    for columns in (counts, counts / part.n_atoms[:, None]):
        fit = np.linalg.lstsq(columns, part.y, rcond=None)[0]
        errors.append(float(np.sqrt(np.square(part.y - columns @ fit).mean())))
    added, averaged = errors
    if len(sizes) > 1 and added < _BETTER * averaged:
        return Setting(True, f"it grows with the molecule: sums over atoms fit to {added:.3g}, means to {averaged:.3g}")
    about = f"means over atoms fit to {averaged:.3g}, sums to {added:.3g}" if len(sizes) > 1 else "all have one size"
    return Setting(False, f"it does not grow with the molecule: {about}")
