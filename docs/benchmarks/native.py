"""Energies and forces by Python, by a compiled potential, and by a native program: `python docs/benchmarks/native.py`.

It prints the tables of `docs/howto/deploy.md`: microseconds an atom, the least of many calls, which the ways make in
turns. Vectors of edges are part of the time of Python, and not of a program's. `--threads` is for the column before the
last; all else runs on one. `--large 8x7x7` is for one call of that many times 256 atoms: processor time, the workspace,
and what the process has more than before at its peak, inputs and results included.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from ase.build import bulk

from eqlayers import deploy
from eqlayers.models import MACE, NequIP, Potential, Structures
from eqlayers.models.structures import NeighborLists, collate
from eqlayers.native import NativePotential

SPECIES = [7, 13]
MACE_OF = {"hidden": "128x0e + 128x1o", "lmax": 3, "correlation": 3, "layers": 2, "cutoff": 5.0}
SMALL_OF = {"hidden": "16x0e + 16x1o", "lmax": 2, "correlation": 3, "layers": 2, "cutoff": 5.0}
NEQUIP_OF = {"hidden": "32x0e + 32x1o + 32x2e", "lmax": 2, "layers": 4, "cutoff": 4.0}
CASES: dict[str, Callable[[], torch.nn.Module]] = {
    "MACE 128x0e + 128x1o, lmax 3, live tables": lambda: MACE(SPECIES, knots=64, **MACE_OF),
    "MACE, the same without tables": lambda: MACE(SPECIES, **MACE_OF),
    "NequIP 32x0e + 32x1o + 32x2e, 4 layers": lambda: NequIP(SPECIES, **NEQUIP_OF),
    "NequIP, the same with live tables": lambda: NequIP(SPECIES, knots=64, **NEQUIP_OF),
    "MACE 16x0e + 16x1o, lmax 2, live tables": lambda: MACE(SPECIES, knots=64, **SMALL_OF),
}
SIZES = {16: (2, 2, 1), 256: (4, 4, 4), 4096: (16, 8, 8)}
#: Atoms up to which Python and compiled potentials are timed.
BY_PYTHON = 256


def least(ways: dict[str, Callable[[], object]], seconds: float = 3.0) -> dict[str, float]:
    """The least time of a call in seconds, of each way."""
    times = dict.fromkeys(ways, float("inf"))
    for call in ways.values():
        call()
    end = time.perf_counter() + seconds * len(ways)
    while time.perf_counter() < end:
        for name, call in ways.items():
            began = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - began)
    return times


def structure_of(potential: Potential, atoms: int) -> Structures:
    """Wurtzite AlN, rattled."""
    crystal = bulk("AlN", "wurtzite", a=3.11, c=4.98) * SIZES[atoms]
    crystal.rattle(0.05, seed=1)
    return collate(potential, [crystal], [NeighborLists(potential.cutoff)(crystal)])


def times_of(name: str, atoms: int, threads: int, folder: str) -> dict[str, float]:
    """Microseconds an atom of each way, and kilobytes an atom of a program's workspace."""
    torch.manual_seed(0)
    potential = Potential(CASES[name](), SPECIES).float().eval()
    native = NativePotential(deploy(potential, f"{folder}/program.so").path)
    batch = structure_of(potential, atoms)
    src, dst = batch.edge_index
    assert batch.shifts is not None
    assert batch.cell is not None
    vectors = (batch.pos[dst] - batch.pos[src] + batch.shifts.float() @ batch.cell[0].float()).contiguous()

    def run() -> object:
        return native.evaluate(batch.z, vectors, batch.edge_index)

    ways: dict[str, Callable[[], object]] = {"native": run}
    if atoms <= BY_PYTHON:
        compiled = Potential(potential.network, SPECIES).float().eval()
        compiled.compile()
        ways = {
            "Python": lambda: potential(batch, ("energy", "forces")),
            "compiled": lambda: compiled(batch, ("energy", "forces")),
            **ways,
        }
    times = {way: seconds / atoms * 1e6 for way, seconds in least(ways).items()}
    torch.set_num_threads(threads)
    times["threads"] = least({"": run})[""] / atoms * 1e6
    torch.set_num_threads(1)
    run()
    workspace = native._workspace().handle
    times["kB"] = native._library.eqlayers_workspace_bytes(workspace) / atoms / 1e3
    return times


def repeated(potential: Potential, times: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Atomic numbers, vectors and ends of edges of a structure of 256 atoms, repeated along its cell."""
    batch = structure_of(potential, 256)
    src, dst = batch.edge_index
    assert batch.shifts is not None
    assert batch.cell is not None
    vectors = batch.pos[dst] - batch.pos[src] + batch.shifts.float() @ batch.cell[0].float()
    cells = np.indices(times).reshape(3, -1)
    ends = torch.empty(2, cells.shape[1], len(src), dtype=torch.int64)
    for number, cell in enumerate(cells.T):
        senders = (cell - batch.shifts.long().numpy()) % times
        ends[0, number] = src + 256 * torch.from_numpy(np.ravel_multi_index(tuple(senders.T), times))
        ends[1, number] = dst + 256 * number
    return batch.z.repeat(cells.shape[1]), vectors.repeat(cells.shape[1], 1), ends.reshape(2, -1)


def print_large(name: str, times: list[int]) -> None:
    """Print microseconds and kilobytes an atom of a large structure."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    potential = Potential(CASES[name](), SPECIES).float().eval()
    with tempfile.TemporaryDirectory() as folder:
        native = NativePotential(deploy(potential, f"{folder}/program.so").path)
    native.evaluate(*repeated(potential, [1, 1, 1]))
    del native._workspaces.last
    gc.collect()
    with open("/proc/self/status") as status:
        before = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    structure = repeated(potential, times)
    native.evaluate(*structure)
    began, atoms = time.thread_time(), len(structure[0])
    native.evaluate(*structure)
    seconds = time.thread_time() - began
    size = native._library.eqlayers_workspace_bytes(native._workspace().handle) / atoms / 1e3
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1.024 / atoms
    print(f"| {name} | {atoms:,} | {seconds / atoms * 1e6:.1f} | {size:.1f} | {peak:.1f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", nargs="+", help="how often a structure of 256 atoms is repeated, as 8x7x7")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.large:
        print("| | atoms | us an atom | kB an atom of the workspace | of the process |\n|---|--:|--:|--:|--:|")
        for name in CASES:
            for times in options.large:  # in processes that begin without memory
                process = multiprocessing.get_context("spawn").Process(
                    target=print_large, args=(name, [int(number) for number in times.split("x")])
                )
                process.start()
                process.join()
        return
    from rich.console import Console  # which benchmarks that read CASES need not have

    torch.set_num_threads(1)
    console = Console(stderr=True)
    print(f"| | atoms | by Python | compiled | native | on {options.threads} threads | kB an atom |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            for atoms in SIZES:
                with console.status(f"{name}, {atoms} atoms"):
                    times = times_of(name, atoms, options.threads, folder)
                shown = [
                    f"{times[way]:.0f}" if way in times else ""
                    for way in ("Python", "compiled", "native", "threads", "kB")
                ]
                print(f"| {name if atoms == min(SIZES) else ''} | {atoms:,} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
