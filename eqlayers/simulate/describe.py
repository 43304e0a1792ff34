"""The description of a file of a potential: network, species, weights, facts, and which kernels run it where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..atoms.elements import SYMBOLS, symbols_of
from ..core.files.read_write import flattened
from ..models import load_potential, read_potential
from ..models.classes import Classes, describe_part
from ..models.molecule_property import MoleculeProperty, load_property
from ..nn import explain


def describe(path: str | Path, classes: Classes | None = None) -> list[tuple[str, str]]:
    """Names and values, in the order in which they are shown."""
    if (learned := load_property(path, classes=classes)) is not None:
        return _of_property(path, learned)
    saved, potential = read_potential(path), load_potential(path, classes=classes)
    parts = [("network", saved.description["network"]), ("repulsion", saved.description["repulsion"])]
    rows = [("file", f"{path}, {Path(path).stat().st_size / 2**20:.2f} MiB")]
    rows += [(name, "none" if part is None else _call(part)) for name, part in parts]
    rows += [
        ("species", symbols_of(potential.species)),
        ("cutoff", f"{potential.cutoff:g} A"),
        ("parameters", f"{sum(p.numel() for p in potential.parameters()):,}"),
        ("dtype", str(potential.dtype).removeprefix("torch.")),
    ]
    for name, values in (("shifts", potential.shifts), ("scales", potential.scales)):
        listed = zip(potential.species, values.tolist(), strict=True)
        rows.append((name, ", ".join(f"{SYMBOLS[z - 1]} {value:.6g}" for z, value in listed) + " eV"))
    lone = "their shifts" if potential.subtract_isolated else "their shifts and what the network gives them"
    rows.append(("energies of lone atoms", lone))
    facts = {name: value for name, value in flattened(saved.facts).items() if value != {}}
    rows += [(name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in facts.items()]
    for device in ("cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
        rows.append((f"kernels on {device}", explain(potential, device, potential.dtype)))
    return rows


def _of_property(path: str | Path, learned: MoleculeProperty) -> list[tuple[str, str]]:
    return [
        ("file", f"{path}, {Path(path).stat().st_size / 2**20:.2f} MiB"),
        ("predicts", f"{learned.name} ({learned.unit}), one number a molecule, not energies"),
        ("network", _call(describe_part("the network", learned.network))),
        ("species", symbols_of(learned.species)),
        ("cutoff", f"{learned.cutoff:g} A"),
        ("parameters", f"{sum(p.numel() for p in learned.parameters()):,}"),
        ("dtype", str(learned.dtype).removeprefix("torch.")),
    ]


def describe_members(paths: Sequence[Path], classes: Classes | None = None) -> list[tuple[str, str]]:
    """Names and values of a committee: what all members share once, the rest by member."""
    each = [dict(describe(path, classes)) for path in paths]
    rows = [("members", f"{len(paths)}")]
    for name in dict.fromkeys(name for one in each for name in one):
        values = [one.get(name, "-") for one in each]
        same = len(set(values)) == 1
        rows.append((name, values[0] if same else "\n".join(f"{n}: {value}" for n, value in enumerate(values, 1))))
    return rows


def _call(part: Mapping[str, Any]) -> str:
    arguments = dict(part["init_args"])
    if isinstance(arguments.get("species"), list):
        arguments["species"] = [SYMBOLS[z - 1] for z in arguments["species"]]
    options = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"{part['class_path']}({options})"


def lines(rows: list[tuple[str, str]]) -> str:
    """Rows as text, values below each other."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  " + value.replace("\n", "\n" + " " * (width + 2)) for name, value in rows)
