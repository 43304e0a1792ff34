"""Training steps of the network of molecules with layers of e3nn, of this package, and with tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..results import Record
from ..step import Batch, LoadBatch, difference, networks, read_training, training_step
from .entrants import EXACT, LIMITS, LIVE, NATIVE, PEER, TABLES, TRAINING, Entrant
from .timing import WRONG, Series, new_row, timed_rows

MAIN = "main job"
#: Name of a row -> class; the first is the reference.
ROWS = {"e3nn's layers": PEER, NATIVE: EXACT, LIVE: TABLES}


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
    for (name, row_class), net in zip(ROWS.items(), chosen, strict=True):
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
