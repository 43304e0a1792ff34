"""The command `eqlayers bench networks`: whole networks in their packages and in all variants of this one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ... import models
from ...core.checks import check_flag
from ...core.errors import ConfigError
from ...integrations import from_mace, from_nequip
from ..config import DEVICE, Field, Known, check_known, find_config, read_config, read_fields
from ..measure import describe, find_device, keep_random_state, refusal, release, threads
from ..results import Record, Say, goal, nothing, quiet
from ..step import Batch, LoadBatch, difference, networks, read_training, training_step
from .atoms import Sample, crystal, repeats, rounded
from .check import SAMPLES, bounds, wrong_in_float64
from .entrants import (
    COMPILED,
    EAGER,
    EXACT,
    FORCES,
    LIMITS,
    LIVE,
    MODES,
    NATIVE,
    PEER,
    SYMMETRIX,
    TABLES,
    TRAINING,
    Entrant,
    Tables,
    makers,
    of_models,
)
from .entrants import PACKAGE as SYMMETRIX_XL
from .packages import PACKAGES, Subject, absent
from .timing import WRONG, Series, measure, new_row, timed_rows

MAIN = "main job"
#: Row of the main job -> class; the first is the reference.
MAIN_ROWS = {"e3nn's layers": PEER, NATIVE: EXACT, LIVE: TABLES}
CLASSES = ("MACE", "NequIP", "TFN", "Equiformer")
FIELDS: dict[str, Field] = {
    "device": DEVICE,
    "model": "text",
    **dict.fromkeys(("threads", "sizes"), "counts"),
    **dict.fromkeys(("runs", "knots", "batch_size", "judged_atoms", "judged_threads"), "count"),
    "tolerance": "number",
    "peers": Known("texts", "peer", (EAGER, COMPILED, SYMMETRIX)),
    "networks": Known("mappings", "network", (*PACKAGES, *CLASSES)),
    "goals": "mappings",
}
OURS_ALONE = "ours"
#: Names that the command takes: packages, and 'ours' for networks of this one.
NAMES = (*PACKAGES, OURS_ALONE)
#: Package -> conversion of its networks to potentials of this package.
CONVERSIONS = {"mace-torch": from_mace, "nequip": from_nequip}
#: Quantity of a goal -> description, and classes of rows among which the fastest is judged.
JUDGED = {
    "exact": ("exact", (EXACT,)),
    "tables": ("with tables", (TABLES,)),
    "ratio": ("fastest", (EXACT, TABLES)),
    "memory": ("fastest", (EXACT, TABLES)),
    "other": (f"fastest beside {SYMMETRIX_XL}", (EXACT, TABLES)),  # a package that runs the networks of the first
}


def subject_of(
    name: str,
    options: Mapping[str, Any],
    atoms: int,
    *,
    scale: float = 1.0,
    shift: float = 0.0,
    change: Callable[[Sample], Sample] | None = None,
) -> Subject:
    """A network by name on a crystal of ``atoms`` atoms, optionally modified by ``change``."""
    rest = dict(options)
    sample = crystal(atoms, float(rest.pop("cutoff", 5.0)))
    sample = sample if change is None else change(sample)
    try:
        if name in CLASSES:
            inspect.signature(getattr(models, name)).bind(list(sample.species), **rest)
            return of_models(name, rest, sample=sample, scale=scale, shift=shift)
        subject = PACKAGES[name](**rest, sample=sample, scale=scale, shift=shift)
        return replace(subject, native=CONVERSIONS.get(subject.peer))
    except ModuleNotFoundError as error:
        raise absent(f"bench networks {name} needs", name, error) from error
    except TypeError as error:
        raise ConfigError(f"networks: {name} must have options that it knows, got {rest}: {error}. Correct.") from error


def units_of(name: str, options: Mapping[str, Any], atoms: int, device: torch.device) -> dict[str, float]:
    """Scale and shift of atomic energies for which forces are 1 eV/Angstrom (root mean square) and energies small.

    Forces of a network with random weights are about 0.01 eV/Angstrom, too small for absolute bounds.
    """
    subject = subject_of(name, options, atoms, scale=1.0)
    energy, forces = subject.evaluate(subject.make(torch.float32).to(device), False)
    size = float(forces.detach().square().sum(-1).mean().sqrt())
    scale = float(f"{1 / size:.3g}") if size > 0 else 1.0
    numbers = torch.tensor([-1.0 - n for n in range(len(subject.sample.species))])
    free = float(energy.detach().sum()) / atoms - float(numbers[subject.sample.batch[0].species].mean())
    return {"scale": scale, "shift": float(f"{-scale * free:.4g}")}


def measure_network(
    name: str, options: Mapping[str, Any], fields: Mapping[str, Any], series: Series, done: Callable[[Record], None]
) -> str:
    """Measure all sizes of one network in ascending order; return a note on scales and bounds."""
    sizes = sorted(fields["sizes"])
    series.say(f"{name}: scale, and bounds of rounding")
    units = units_of(name, options, sizes[0], series.device)
    near = [subject_of(name, options, sizes[0], **units, change=partial(rounded, seed=seed)) for seed in range(SAMPLES)]
    first = subject_of(name, options, sizes[0], scale=units["scale"], shift=units["shift"])
    known = bounds(first, near, series.device)
    tables = Tables(fields["knots"], fields["tolerance"])
    series.say(f"{name}: comparing in float64")
    series.wrong = wrong_in_float64(first, makers(first, ()), tables, known, series.device)
    about = f"{first.name}, cutoff {first.sample.cutoff:g} A, {first.sample.mean_neighbors:.0f} edges an atom"
    for size in sizes:
        subject = subject_of(name, options, size, scale=units["scale"], shift=units["shift"])
        for row in measure(series, subject, known, tables, fields["peers"], fields["modes"]):
            done(row)
        release(series.device)
    errors = ", ".join(f"{part} {value:.1e}" for part, value in known.errors.items())
    return (
        f"{name}: {about}. Energies of atoms are multiplied by {units['scale']:g} and shifted by {units['shift']:g} "
        "eV in all rows: forces are then 1 eV/A, root mean square; a network with random weights has next to none. "
        f"The bounds are ten times what roundings change there: {errors}."
    )


def judged(rows: Sequence[Record], goals: Mapping[str, Any], fields: Mapping[str, Any]) -> list[Record]:
    """Goals of a configuration with their measured values, for the rows of measured networks.

    The value of a goal is the time of the fastest row of another package over the time of this package's fastest row
    (for a network of this package: of its first row over the fastest), or this package's memory over the other's.
    ``goals`` maps networks to modes, such as 'training step', to quantities (keys of ``JUDGED``) to limits.
    """
    met = []
    for name, modes in goals.items():
        of_network = [row for row in rows if row["network"] == name]
        for mode, limits in modes.items():
            here = [row for row in of_network if row["what"] == mode and row["threads"] == fields["judged_threads"]]
            if name != MAIN:
                here = [row for row in here if row["atoms"] == fields["judged_atoms"]]
            for quantity, limit in limits.items() if of_network else ():
                met.append(_judge(here, name, mode, quantity, float(limit)))
    return met


def _judge(here: Sequence[Record], name: str, mode: str, quantity: str, limit: float) -> Record:
    def seconds(row: Record) -> float:
        return float(row["seconds"]["median"])

    words, classes = JUDGED[quantity]
    timed = [row for row in here if row["seconds"]]
    peers = [row for row in timed if row["kind"] == PEER]
    peers = [row for row in peers if row["implementation"].startswith(SYMMETRIX_XL) == (quantity == "other")]
    peer = min(peers, key=seconds, default=None)
    mine = min((row for row in timed if row["kind"] in classes), key=seconds, default=None)
    measured, who = None, ""
    if peer is not None and mine is not None:
        who = f": {mine['implementation']}"
        measured = seconds(peer) / seconds(mine)
        if quantity == "memory":
            sizes = [row["memory_bytes"] for row in (mine, peer)]
            measured = sizes[0] / sizes[1] if all(sizes) else None
    quantity = "memory" if quantity == "memory" else "ratio"
    return goal(quantity, limit, measured, where=f"{name}, {mode}, {words}{who}")


# -- the main job: training steps of the network of molecules ----------------------------------------------------------


class MainJob(NamedTuple):
    """Networks of the rows, their errors with respect to the first in float64, and a batch."""

    entrants: list[Entrant]
    errors: list[float]
    batch: Batch


def read_main(path: Path, fields: Mapping[str, Any], load_batch: LoadBatch) -> MainJob:
    """Build the networks of a training configuration, with a batch of its molecules."""
    training = read_training(path)
    batch = load_batch({**training["data"], "batch_size": fields["batch_size"]})
    nets = networks(training["options"], batch, ["ir_mul"], None)
    live = networks({**training["options"], "knots": fields["knots"]}, batch, ["ir_mul"], None)["ir_mul"]
    live.load_state_dict(nets["ir_mul"].state_dict())
    chosen = [nets["e3nn"], nets["ir_mul"], live]
    errors = [difference(net, nets["e3nn"], batch) for net in chosen]

    def evaluate(network: torch.nn.Module, training: bool) -> Any:
        raise NotImplementedError("the main job has steps alone")

    entrants = []
    for (name, row_class), net in zip(MAIN_ROWS.items(), chosen, strict=True):
        step = training_step(net.float(), batch, training["rate"], training["clip"])
        entrants.append(Entrant(name, row_class, net, evaluate, step=step))
    return MainJob(entrants, errors, batch)


def measure_main(job: MainJob, series: Series) -> Iterator[Record]:
    """Yield a row for each network; networks with too large errors are not timed."""
    atoms = len(job.batch.z)
    head = {"network": MAIN, "atoms": atoms, "edges": job.batch.edge_index.shape[1], "what": TRAINING}
    right, wrong = [], []
    for entrant, error in zip(job.entrants, job.errors, strict=True):
        errors = {"gradients": error}
        series.checked[entrant.name, TRAINING] = (atoms, errors, error <= LIMITS["gradients"])
        if error <= LIMITS["gradients"]:
            right.append(entrant)
        else:
            row = new_row(head, entrant.name, entrant.kind, series.threads[0]) | {
                "errors": errors,
                "compared_at": atoms,
            }
            wrong.append(row | {"status": "wrong", "reason": WRONG})
    yield from timed_rows(series, head, right, job.entrants[0].name)
    yield from wrong


# -- the command -------------------------------------------------------------------------------------------------------


def read_network_settings(config: str, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """Path and fields of a configuration, with ``changes`` applied."""
    path = find_config(config)
    where, content = str(path), read_config(path)
    read_fields(where, content, FIELDS)
    fields = read_fields(where, content | {key: value for key, value in changes.items() if value is not None}, FIELDS)
    check_known("network", fields["goals"], (*fields["networks"], MAIN), where)
    limits: dict[str, tuple[Field, Any]] = dict.fromkeys(MODES, (Known("numbers", "goal", JUDGED), {}))
    fields["goals"] = {key: read_fields(f"{where}, {key}", modes, {}, limits) for key, modes in fields["goals"].items()}
    for size in fields["sizes"]:
        repeats(size)
    return path, fields


def chosen_networks(name: str, fields: Mapping[str, Any]) -> list[str]:
    """Keys of a configuration's networks that a name of the command selects."""
    check_known("name", [name], NAMES, "bench networks")
    return [key for key in fields["networks"] if (key in CLASSES if name == OURS_ALONE else key == name)]


def run_networks(
    name: str,
    config: str = "networks",
    *,
    load_batch: LoadBatch,
    peers: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    device: str | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    memory_kept: bool = False,
    inference: bool = False,
    say: Say = quiet,
    keep: Callable[[Record], None] = nothing,
) -> Record:
    """Compare and time whole networks."""
    path, fields = read_network_settings(config, peers=peers, sizes=sizes, device=device, runs=runs)
    target = find_device(fields["device"], path.stem)
    fields["modes"] = (FORCES,) if check_flag("inference", inference) else MODES
    counts = [num_threads] if num_threads else fields["threads"]
    with threads(counts[0]), keep_random_state(target):
        result: Record = {"kind": "networks", "suite": name, **describe(target), "memory_kept": memory_kept}
        result |= {"rows": [], "goals": [], "notes": []}

        def done(row: Record) -> None:
            result["rows"].append(row)
            result["goals"] = judged(result["rows"], fields["goals"], fields)
            keep(result)

        job = None
        if name == OURS_ALONE and target.type == "cpu" and not inference:  # first, as its files may be missing
            say(f"{MAIN}: data")
            job = read_main(path.parent / fields["model"], fields, load_batch)
        for key in chosen_networks(name, fields):
            series = Series(key, target, fields["runs"], counts, say)
            result["notes"].append(measure_network(key, fields["networks"][key], fields, series, done))
        if job is not None:
            for row in measure_main(job, Series(MAIN, target, fields["runs"], counts, say)):
                done(row)
    result["notes"] = [_about(fields, target, memory_kept), *result["notes"]]
    return result


def _about(fields: Mapping[str, Any], device: torch.device, memory_kept: bool) -> str:
    limits = f"{LIMITS['energy']:g} eV per atom, {LIMITS['forces']:g} eV/A and {LIMITS['gradients']:g} of the largest"
    judged_at = f"{fields['judged_atoms']} atoms, threads: {fields['judged_threads']}"
    unmeasured = refusal(device)
    return (
        "float32, periodic wurtzite AlN, each coordinate moved by 0.05 A. Times are medians with the 20 % and 80 % "
        "quantiles; the neighbour list is made before. Ratio: of the first row of each block to this. Before, energies "
        "and forces of all rows, and gradients of all weights for training steps, were compared with the first: within "
        f"rounding, in float64 as well, or with tables within {limits} gradient beyond that. Goals: the fastest row of "
        f"a kind beside the fastest peer, {judged_at}. Parts: operators one by one; host is what is left. Memory kept "
        f"by the process when freed: {'yes' if memory_kept else 'no'}."
        + (f" Peak memory was not measured: {unmeasured}." if unmeasured else "")
    )
