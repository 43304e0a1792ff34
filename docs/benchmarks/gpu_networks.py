"""Energies and forces on a GPU: launched one by one, recorded as a CUDA graph, and by mace-torch where it is installed.

    PYTHONPATH=.:kernels python docs/benchmarks/gpu_networks.py --csv networks.csv

`mace` is a model of mace-torch, converted by `from_mace`; its rows "cuequivariance" are mace-torch after its own
conversion to cuEquivariance. `MACE` and `NequIP` are classes of this package and need no other.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from eqlayers.bench.networks.entrants import PEER, Entrant
from eqlayers.bench.networks.run import subject_of
from eqlayers.models import Recorded, compress

OPTIONS = {
    "mace": {"cutoff": 6.0, "hidden": "128x0e + 128x1o", "lmax": 3, "correlation": 3},
    "MACE": {"cutoff": 6.0, "hidden": "128x0e + 128x1o", "lmax": 3, "layers": 2, "correlation": 3},
    "NequIP": {"cutoff": 5.0, "hidden": "32x0e + 32x1o + 32x2e", "lmax": 2, "layers": 4},
}
OUTPUTS = ("energy", "forces")
SCALE = 150.0  # of energies, so that forces are some eV/A
TOLERANCE = 3e-5  # of tables of the radial networks
RUNS = 20


def milliseconds(call: Callable[[], Any]) -> float:
    """The median of some calls, each until the device has ended it."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


def calls(network: str, atoms: int) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Each way to compute energies and forces, with the number of edges."""
    subject = subject_of(network, OPTIONS[network], atoms, scale=SCALE)
    given = subject.place.structures(torch.float32, "cuda")
    edges = given.edge_index.shape[1]
    made = subject.make(torch.float32).to("cuda")
    if subject.peer:
        Entrant("", PEER, made, subject.evaluate).prepare(False)
        yield "mace-torch", edges, lambda: subject.evaluate(made, False)
        from mace.cli.convert_e3nn_cueq import run as converted

        other = converted(subject.make(torch.float32).to("cuda"), device="cuda")
        Entrant("", PEER, other, subject.evaluate).prepare(False)
        yield "mace-torch, cuequivariance", edges, lambda: subject.evaluate(other, False)
    assert subject.native is not None
    potential = subject.native(subject.make(torch.float32)).to("cuda").eval().requires_grad_(False)
    yield "eqlayers", edges, lambda: potential(given, OUTPUTS)
    recorded = Recorded(potential)
    yield "eqlayers, recorded", edges, lambda: recorded(given, OUTPUTS)
    tables = subject.native(subject.make(torch.float32)).eval().requires_grad_(False)
    compress(tables, TOLERANCE)
    replayed = Recorded(tables.to("cuda"))
    yield "eqlayers, tables, recorded", edges, lambda: replayed(given, OUTPUTS)


def main() -> None:
    """Print the rows, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="MACE,NequIP", help="with commas, among mace, MACE, NequIP")
    parser.add_argument("--sizes", default="8,64,512,4096", help="numbers of atoms with commas, multiples of 4")
    parser.add_argument("--csv", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows = []
    for network in options.networks.split(","):
        for atoms in map(int, options.sizes.split(",")):
            for name, edges, call in calls(network, atoms):
                took = milliseconds(call)
                rows.append({"network": network, "atoms": atoms, "edges": edges, "row": name, "ms": took})
                print(f"{network:8}{atoms:6} atoms {edges:8} edges  {name:30}{took:9.3f} ms", flush=True)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["network", "atoms", "edges", "row", "ms"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
