"""`eqlayers bench tables`: radial networks by interpolation; errors against knots, time and memory with and without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import models
from ..errors import ConfigError
from ..lowering.interpolation import INTERPOLATIONS
from ..models import Potential, Structures, compress, load_potential
from ..models.compression import radial_errors, thaw, without_tables
from .atoms import SPECIES, edges, structures
from .config import check_known, find_config, read_config, read_fields
from .goals import Record, goal
from .implementation import OURS
from .machine import describe, keep_random_state, threads
from .measure import alternate, ratio, summary
from .memory import peak_extra, refusal
from .parts import KERNELS, PRODUCTS, time_by_part
from .run import Say, quiet
from .step import Batch, LoadBatch, difference, networks, read_training, training_step

FIELDS = {
    **dict.fromkeys(("threads", "runs", "atoms", "knots", "batch_size"), "count"),
    "tolerance": "number",
    "tried": "counts",
    "model": "text",
    "networks": "mapping",
    "goals": "mapping",
}
KNOWN = ("MACE", "NequIP", "TFN")
CPU = torch.device("cpu")
#: What must hold before anything is timed: eV per atom, eV/Angstrom, and of gradients of weights relative to the
#: largest.
LIMITS = {"energy": 1e-5, "forces": 1e-4, "gradients": 1e-3}
ENERGY_AND_FORCES, TRAINING = "energy and forces", "training step"
Call = Callable[[], Any]


class Subject(NamedTuple):
    """A potential in its variants, which have the same weights, and atoms for it."""

    name: str
    variants: dict[str, Potential]
    atoms: Structures


def cluster(count: int, species: Sequence[int], cutoff: float, dtype: torch.dtype) -> Structures:
    """A cluster of so many atoms, with the edges within the cutoff."""
    (one,) = structures((count,))
    pairs, _ = edges(one, cutoff)
    return Structures(torch.tensor(list(species))[one.species % len(species)], one.pos.to(dtype), pairs)


def subject(name: str, make: Callable[[int | None], Potential], fields: Mapping[str, Any]) -> Subject:
    """A potential without tables, with live ones, and compressed."""
    plain, live, frozen = make(None), make(fields["knots"]), make(None)
    for other in (live, frozen):
        other.load_state_dict(plain.state_dict())
    compress(frozen.eval().requires_grad_(False), fields["tolerance"])
    atoms = cluster(fields["atoms"], plain.species, plain.cutoff, plain.dtype)
    return Subject(name, {"none": plain, f"live, {fields['knots']} knots": live, "compressed": frozen}, atoms)


def made(kind: str, options: Mapping[str, Any]) -> Callable[[int | None], Potential]:
    """Makes one of the configured networks, as a potential in float32, with so many knots."""

    def make(knots: int | None) -> Potential:
        torch.manual_seed(0)
        species = list(SPECIES)
        return Potential(getattr(models, kind)(species, **options, knots=knots), species).to(torch.float32)

    return make


def loaded(path: str) -> Callable[[int | None], Potential]:
    """Makes the potential of a file with so many knots."""

    def make(knots: int | None) -> Potential:
        potential = without_tables(load_potential(path, torch.float32))
        if knots is not None:
            compress(potential, knots=knots)
            thaw(potential)
        return potential

    return make


def predict(potential: Potential, atoms: Structures, training: bool) -> tuple[Tensor, Tensor]:
    """Energy and forces."""
    found = potential(atoms, ("energy", "forces"), create_graph=training)
    return found["energy"], found["forces"]


def gradients(potential: Potential, atoms: Structures) -> Tensor:
    """Gradients of a loss on energy and forces, with respect to all weights."""
    energy, forces = predict(potential, atoms, True)
    loss = energy.sum() / len(atoms.z) + forces.square().mean()
    found = torch.autograd.grad(loss, list(potential.network.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def errors_of(one: Potential, other: Potential, atoms: Structures, training: bool) -> dict[str, float]:
    """Largest differences of energies per atom, of forces, and of gradients relative to the largest."""
    (energy, forces), (wanted, right) = (predict(p, atoms, False) for p in (other, one))
    found = {
        "energy": float((energy - wanted).detach().abs().max()) / len(atoms.z),
        "forces": float((forces - right).detach().abs().max()),
    }
    if training:
        mine, theirs = gradients(other, atoms), gradients(one, atoms)
        found["gradients"] = float((mine - theirs).abs().max() / theirs.abs().max())
    return found


def shares(call: Call) -> dict[str, float]:
    """Parts of the time of a call: generated kernels, matrix products, and all else."""
    found = time_by_part(call).shares
    kernels = sum(found[part] for part in KERNELS)
    return {"kernels": kernels, PRODUCTS: found[PRODUCTS], "rest": 1 - kernels - found[PRODUCTS]}


def time_all(name: str, what: str, calls: dict[str, Call], errors: Mapping[str, Any], runs: int) -> list[Record]:
    """A row for each variant; ratios and memory refer to the first."""
    kept = [key for key in calls if all(value <= LIMITS[part] for part, value in errors.get(key, {}).items())]
    seconds = dict(zip(kept, alternate([calls[key] for key in kept], runs), strict=True))
    first = next(iter(calls))
    rows: list[Record] = []
    for key, call in calls.items():
        row: Record = {"network": name, "what": what, "tables": key, "errors": errors.get(key), "status": "wrong"}
        row |= dict.fromkeys(("seconds", "ratio", "memory_bytes", "shares"))
        if key in kept:
            row |= {"status": "ok", "seconds": summary(seconds[key]), "shares": shares(call)}
            row["ratio"] = ratio(seconds[first], seconds[key]) if key != first and first in kept else None
            row["memory_bytes"] = peak_extra(call) if refusal(CPU) is None else None
        rows.append(row)
    return rows


def measure_potential(one: Subject, runs: int, say: Say) -> list[Record]:
    """Energies and forces of all variants, and a training step of those that train."""
    plain = next(iter(one.variants.values()))
    say(f"{one.name}: energies and forces")
    for variant in one.variants.values():
        variant.eval().requires_grad_(False)
    calls = {key: _call(predict, variant, one.atoms, False) for key, variant in one.variants.items()}
    found = {key: errors_of(plain, variant, one.atoms, False) for key, variant in one.variants.items()}
    rows = time_all(one.name, ENERGY_AND_FORCES, calls, found, runs)
    say(f"{one.name}: training step")
    trained = {key: variant for key, variant in one.variants.items() if key != "compressed"}
    for variant in trained.values():
        variant.train().requires_grad_(True)
    calls = {key: _call(gradients, variant, one.atoms) for key, variant in trained.items()}
    found = {key: errors_of(plain, variant, one.atoms, True) for key, variant in trained.items()}
    return rows + time_all(one.name, TRAINING, calls, found, runs)


def _call(function: Callable[..., Any], *args: Any) -> Call:
    return lambda: function(*args)


class MainJob(NamedTuple):
    """The training step of the main job with e3nn's layers, with this package's, and with these and live tables.

    Attributes:
        calls: The steps, by what is different.
        errors: Largest differences of predictions and gradients from those with e3nn's layers, in float64.
        batch: The molecules.
    """

    calls: dict[str, Call]
    errors: dict[str, dict[str, float]]
    batch: Batch


def main_job(training: Mapping[str, Any], knots: int, batch: Batch) -> MainJob:
    """Steps on a batch, as a training configuration asks for."""
    nets = networks(training["options"], batch, ["ir_mul"], None)
    live = networks({**training["options"], "knots": knots}, batch, ["ir_mul"], None)["ir_mul"]
    live.load_state_dict(nets["ir_mul"].state_dict())
    named = {"e3nn's layers": nets["e3nn"], "none": nets["ir_mul"], f"live, {knots} knots": live}
    errors = {key: {"gradients": difference(net, nets["e3nn"], batch)} for key, net in named.items()}
    calls = {key: training_step(net.float(), batch, training["rate"], training["clip"]) for key, net in named.items()}
    return MainJob(calls, errors, batch)


def measure_main(fields: Mapping[str, Any], path: Path, load_batch: LoadBatch, runs: int, say: Say) -> list[Record]:
    """Rows of the main job."""
    say("main job")
    training = read_training(path.parent / fields["model"])
    batch = load_batch({**training["data"], "batch_size": fields["batch_size"]})
    job = main_job(training, fields["knots"], batch)
    return time_all("main job", TRAINING, job.calls, job.errors, runs)


def errors_by_knots(
    name: str, make: Callable[[int | None], Potential], tried: Sequence[int], atoms: int
) -> list[Record]:
    """Errors of weights and slopes for every interpolation; of energies and forces for the one of models."""
    rows: list[Record] = []
    exact = {dtype: make(None).to(dtype).eval() for dtype in (torch.float64, torch.float32)}
    for count in tried:
        for way in INTERPOLATIONS:
            found = radial_errors(exact[torch.float64], count, way)
            row: Record = {"network": name, "knots": count, "interpolation": way, **found._asdict()}
            row |= dict.fromkeys(("energy64", "forces64", "energy32", "forces32"))
            if way == "spline":
                for dtype, potential in exact.items():
                    other = make(None).to(dtype).eval()
                    compress(other, knots=count)
                    place = cluster(atoms, other.species, other.cutoff, dtype)
                    errors = errors_of(potential, other, place, False)
                    bits = "64" if dtype == torch.float64 else "32"
                    row |= {f"{part}{bits}": errors[part] for part in ("energy", "forces")}
            rows.append(row)
    return rows


def judged(rows: Sequence[Record], goals: Mapping[str, Any], where: str) -> list[Record]:
    """The goals of the configuration beside what was measured."""
    found = []
    for name, wanted in goals.items():
        check_known("goal", wanted, ("ratio", "memory"), where)
        for quantity, limit in wanted.items():
            main, memory = name == "main", quantity == "memory"
            what = TRAINING if main or memory else ENERGY_AND_FORCES
            own = [row for row in rows if row["network"] == ("main job" if main else name) and row["what"] == what]
            measured = None
            if own and own[-1]["status"] == "ok":
                bytes_ = [row["memory_bytes"] for row in (own[0], own[-1])]
                speed = None if own[-1]["ratio"] is None else own[-1]["ratio"]["median"]
                measured = (bytes_[1] / bytes_[0] if all(bytes_) else None) if memory else speed
            found.append(goal(quantity, float(limit), measured, where=f"{name}, {what}"))
    return found


def run_tables(
    name: str = "tables",
    *,
    load_batch: LoadBatch,
    potential: str | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    say: Say = quiet,
) -> Record:
    """Measure what tables of radial networks do; nothing is timed that was not compared first.

    Args:
        name: Name or path of a configuration.
        load_batch: Gives the batch for the section `data` of the training configuration.
        potential: File of a trained potential, in place of the configured networks and the main job.
        num_threads, runs: Instead of the configuration's.
        say: Called with a few words before every step.

    Returns:
        The result: rows of times, and ``errors``, rows of errors by knots.

    Raises:
        ConfigError: The configuration or the file cannot be used.
    """
    path = find_config(name)
    fields = read_fields(str(path), read_config(path), FIELDS, {})
    check_known("network", fields["networks"], KNOWN, str(path))
    if not all(isinstance(options, dict) for options in (*fields["networks"].values(), *fields["goals"].values())):
        raise ConfigError(f"{path}: networks and goals must be mappings of mappings, got others. Indent the arguments.")
    makers = {kind: made(kind, options) for kind, options in fields["networks"].items()}
    if potential is not None:
        makers = {Path(potential).stem: loaded(potential)}
    times = runs or fields["runs"]
    rows: list[Record] = []
    errors: list[Record] = []
    with threads(num_threads or fields["threads"]), keep_random_state(CPU):
        head = describe(CPU)
        for key, make in makers.items():
            say(f"{key}: errors")
            errors += errors_by_knots(key, make, fields["tried"], min(fields["atoms"], 64))
            rows += measure_potential(subject(key, make, fields), times, say)
        if potential is None:
            rows += measure_main(fields, path, load_batch, times, say)
    notes = [
        f"{OURS}, float32, a cluster of {fields['atoms']} atoms. Ratio: of the first row of each block to this. A row "
        f"is timed if energies are within {LIMITS['energy']:g} eV per atom, forces within {LIMITS['forces']:g} eV/A of "
        f"those without tables, and gradients of all weights within {LIMITS['gradients']:g} of the largest. Shares of "
        "the time: generated kernels, matrix products, all else."
    ]
    goals = [] if potential is not None else judged(rows, fields["goals"], str(path))
    return {"kind": "tables", **head, "rows": rows, "errors": errors, "goals": goals, "notes": notes}
