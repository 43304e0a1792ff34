"""Energies, forces and training steps on a GPU: launched one by one, recorded as a CUDA graph, and by mace-torch.

    PYTHONPATH=.:kernels python docs/benchmarks/gpu_networks.py --csv networks.csv

`mace` is a model of mace-torch, converted by `from_mace`; its rows "cuequivariance" are mace-torch after its own
conversion to cuEquivariance. `MACE` and `NequIP` are classes of this package and need no other.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eqlayers.bench.networks.entrants import LIVE, OWN, PEER, Entrant, Tables, evaluate_potential
from eqlayers.bench.networks.packages import Subject
from eqlayers.bench.networks.run import subject_of
from eqlayers.bench.networks.timing import training_step
from eqlayers.core.files.read_write import atomic_write
from eqlayers.models import compress

OPTIONS = {
    "mace": {"cutoff": 6.0, "hidden": "128x0e + 128x1o", "lmax": 3, "correlation": 3},
    "MACE": {"cutoff": 6.0, "hidden": "128x0e + 128x1o", "lmax": 3, "layers": 2, "correlation": 3},
    "NequIP": {"cutoff": 5.0, "hidden": "32x0e + 32x1o + 32x2e", "lmax": 2, "layers": 4},
}
OUTPUTS = ("energy", "forces")
SCALE = 150.0  # of energies, so that forces are some eV/A
TABLES = Tables(256, 3e-5)  # of the radial networks: knots in training, tolerance after it
RUNS = 20
CALLS_BEFORE = 3

Call = Callable[[], Any]


def measured(call: Call) -> tuple[float, float]:
    """Milliseconds of a call until the device has ended it, the median of some, and MiB that it takes at its peak."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(CALLS_BEFORE):
        call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds), (torch.cuda.max_memory_allocated() - before) / 2**20


def calls(subject: Subject) -> Iterator[tuple[str, Call]]:
    """Each way to compute energies and forces."""
    structures = subject.sample.structures(torch.float32, "cuda")
    for name, network in peers(subject):
        Entrant("", PEER, network, subject.evaluate).prepare(False)
        yield name, partial(subject.evaluate, network, False)
    assert subject.native is not None
    potential = subject.native(subject.make(torch.float32)).to("cuda").eval().requires_grad_(False)
    yield "eqlayers", lambda: potential(structures, OUTPUTS)
    potential.compile()
    yield "eqlayers, recorded", lambda: potential(structures, OUTPUTS)
    tables = subject.native(subject.make(torch.float32)).eval().requires_grad_(False)
    compress(tables, TABLES.tolerance)
    tables.to("cuda").compile()
    yield "eqlayers, tables, recorded", lambda: tables(structures, OUTPUTS)


def steps(subject: Subject) -> Iterator[tuple[str, Call]]:
    """Each way to make a training step: energies and forces, a loss of forces, gradients and the optimizer."""
    for name, network in peers(subject):
        yield name, prepared(Entrant("", PEER, network, subject.evaluate))
    assert subject.native is not None
    evaluate = evaluate_potential(subject.sample)
    for name, potential in (
        ("eqlayers", subject.native(subject.make(torch.float32))),
        ("eqlayers, live tables", OWN[LIVE].make(subject, TABLES, torch.float32)),
    ):
        potential.to("cuda")
        yield name, prepared(Entrant("", PEER, potential, evaluate, True))
        potential.compile()
        yield f"{name}, recorded", prepared(Entrant("", PEER, potential, evaluate, True))


def prepared(entrant: Entrant) -> Call:
    """A training step of an entrant."""
    entrant.prepare(True)
    return training_step(entrant)


def peers(subject: Subject) -> Iterator[tuple[str, torch.nn.Module]]:
    """The network as its own package runs it, where it is of another."""
    if not subject.peer:
        return
    yield "mace-torch", subject.make(torch.float32).to("cuda")
    from mace.cli.convert_e3nn_cueq import run as converted

    yield "mace-torch, cuequivariance", converted(subject.make(torch.float32).to("cuda"), device="cuda")


MODES = {"forces": calls, "training": steps}


def main() -> None:
    """Print the rows, and write them after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="MACE,NequIP", help="with commas, among mace, MACE, NequIP")
    parser.add_argument("--sizes", default="8,64,512,4096", help="numbers of atoms with commas, multiples of 4")
    parser.add_argument("--modes", default="forces,training", help="with commas, among forces, training")
    parser.add_argument("--csv", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for mode in options.modes.split(","):
        for network in options.networks.split(","):
            for atoms in map(int, options.sizes.split(",")):
                subject = subject_of(network, OPTIONS[network], atoms, scale=SCALE)
                edges = subject.sample.num_edges
                for name, call in MODES[mode](subject):
                    ms, peak = measured(call)
                    row = {"mode": mode, "network": network, "atoms": atoms, "edges": edges, "row": name}
                    rows.append(row | {"ms": round(ms, 3), "peak_MiB": round(peak)})
                    text = f"{mode:9}{network:8}{atoms:6} atoms {edges:8} edges  {name:30}{ms:9.3f} ms{peak:8.0f} MiB"
                    print(text, flush=True)
                    if options.csv:
                        write(rows, options.csv)


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """The rows as CSV, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


if __name__ == "__main__":
    main()
