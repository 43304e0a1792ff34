"""Dynamics at constant energy by a network, exact and with tables: whether tables conserve the energy as it does.

    python docs/benchmarks/studies/dynamics.py mace --sizes 16 --steps 10000 --json mace.json

The result is a result of `eqlayers bench networks`, with the drift of the energy beside it. ASE is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator, all_changes
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE
from study import Study, main
from torch import Tensor

from eqlayers.bench.cli import add_options, count
from eqlayers.bench.measure import find_device, keep_random_state, threads
from eqlayers.bench.networks.atoms import Sample
from eqlayers.bench.networks.entrants import (
    EXACT,
    FORCES,
    OWN,
    Entrant,
    Maker,
    Tables,
    ase_atoms,
    enter,
    evaluate_potential,
)
from eqlayers.bench.networks.packages import Subject
from eqlayers.bench.networks.run import (
    NAMES,
    chosen_networks,
    read_network_settings,
    run_networks,
    subject_of,
    units_of,
)
from eqlayers.bench.report import LAYOUTS, Cell, same, table_of
from eqlayers.bench.results import Record, Say, Table, quiet
from eqlayers.bench.step import LoadBatch
from eqlayers.cli.main import molecules
from eqlayers.core.memory import keep_memory
from eqlayers.simulate.dynamics import DynamicsSettings, give_velocities

TIMESTEP = 0.5  # fs
TEMPERATURE = 300.0  # K, of the velocities at the start
#: Before, positions are relaxed until forces (eV/A) are below a bound, or for so many steps: a network with random
#: weights pulls its atoms to elsewhere, and hot atoms that collide show the error of the timestep, not of tables.
RELAXED, RELAXATION = 0.02, 1000
SAID = 500  # steps between two words of progress

#: The network on these positions ``[A, 3]`` Angstrom, or on those that it starts from.
SubjectAt = Callable[[Tensor | None], Subject]


class _Calculator(Calculator):
    """Energy and forces of an entrant; every call finds the edges anew."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 as ASE has it

    def __init__(self, entrant: Entrant, subject_at: SubjectAt) -> None:
        super().__init__()
        self._entrant, self._at = entrant, subject_at

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        """See ASE."""
        super().calculate(atoms, properties, system_changes)
        assert self.atoms is not None
        subject = self._at(torch.from_numpy(self.atoms.get_positions()))
        evaluate = evaluate_potential(subject.sample) if self._entrant.of_package else subject.evaluate
        energy, forces = (t.detach().double().cpu() for t in evaluate(self._entrant.network, False))
        self.results = {"energy": float(energy.sum()), "forces": forces.numpy()}


def drift(times: np.ndarray, energies: np.ndarray) -> tuple[float, float]:
    """Slope of the line through energies, and their root mean square distance from it, by least squares.

    Example:
        >>> slope, spread = drift(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 1.4, 1.4, 1.8]))
        >>> round(slope, 6), round(spread, 6)
        (0.24, 0.089443)
    """
    slope, start = np.polyfit(times, energies, 1)
    return float(slope), float(np.sqrt(np.mean((energies - start - slope * times) ** 2)))


def compared(subject: Subject) -> dict[str, Maker]:
    """The rows that are run: the first that is exact, and all with tables."""
    ours = {name: maker for name, maker in OWN.items() if FORCES in maker.modes and (subject.peer or maker.of_package)}
    exact = next(name for name, maker in ours.items() if maker.kind == EXACT)
    return {name: maker for name, maker in ours.items() if maker.kind != EXACT or name == exact}


def at_constant_energy(
    name: str, subject_at: SubjectAt, steps: int, tables: Tables, device: torch.device, say: Say
) -> Iterator[Record]:
    """Run all rows of a network from one state of one structure, for some steps of half a femtosecond.

    Returns:
        For each row ``drift`` in meV per atom and ps, ``spread`` in meV per atom around it, and the mean temperature in
        K; of a row that cannot be made, None of them and the reason.

    Source:
        Swope et al. 1982, doi:10.1063/1.442716: velocity Verlet, which is ASE's.
    """
    subject = subject_at(None)
    head = {"network": name, "atoms": subject.sample.num_atoms, "steps": steps}
    start: Tensor | None = None  # of the first row, for all
    for row, maker in compared(subject).items():
        entrant = enter(row, maker, subject, tables, device)
        measured: Mapping[str, Any] = dict.fromkeys(("drift", "spread", "temperature"))
        if isinstance(entrant, Entrant):
            entrant.prepare(False)
            atoms = ase_atoms(subject_at(start).sample)
            atoms.calc = _Calculator(entrant, subject_at)
            if start is None:
                say(f"{name}: relaxing")
                FIRE(atoms, logfile=None).run(fmax=RELAXED, steps=RELAXATION)
                start = torch.from_numpy(atoms.get_positions())
            measured = _run(atoms, steps, f"{name}, {row}", say)
        reason = entrant if isinstance(entrant, str) else ""
        yield {**head, "implementation": row, "kind": maker.kind, **measured, "reason": reason}


def _run(atoms: Atoms, steps: int, about: str, say: Say) -> dict[str, float]:
    give_velocities(atoms, DynamicsSettings(temperature=TEMPERATURE))
    energies, temperatures = [], []
    for step, _ in enumerate(VelocityVerlet(atoms, TIMESTEP * units.fs).irun(steps)):
        energies.append(atoms.get_total_energy())
        temperatures.append(atoms.get_temperature())
        if step % SAID == 0:
            say(f"{about}: step {step} of {steps}, {temperatures[-1]:.0f} K")
    times = TIMESTEP / 1000 * np.arange(len(energies))
    slope, spread = drift(times, 1000 * np.array(energies) / len(atoms))
    return {"drift": slope, "spread": spread, "temperature": float(np.mean(temperatures))}


def run_dynamics(name: str, fields: Mapping[str, Any], device: torch.device, steps: int, say: Say) -> Iterator[Record]:
    """Dynamics at constant energy of one configured network, of the smallest size."""
    options, size = fields["networks"][name], min(fields["sizes"])
    units = units_of(name, options, size, device)
    neighbors = subject_of(name, options, size).sample.mean_neighbors

    def subject_at(positions: Tensor | None) -> Subject:
        def moved(sample: Sample) -> Sample:
            (one,) = sample.batch
            pos = one.pos if positions is None else positions
            return replace(sample, batch=[replace(one, pos=pos)], neighbors=neighbors)

        return subject_of(name, options, size, **units, change=moved)

    tables = Tables(fields["knots"], fields["tolerance"])
    yield from at_constant_energy(name, subject_at, steps, tables, device, say)


def measure(
    network: str,
    config: str = "networks",
    *,
    steps: int = 10_000,
    sizes: Sequence[int] | None = None,
    device: str | None = None,
    num_threads: int | None = None,
    runs: int | None = None,
    load_batch: LoadBatch = molecules,
    say: Say = quiet,
) -> Record:
    """A result of whole networks, and dynamics of each."""
    changes: dict[str, Any] = {"sizes": sizes, "device": device, "runs": runs}
    kept = keep_memory().kept
    result = run_networks(
        network, config, load_batch=load_batch, num_threads=num_threads, memory_kept=kept, say=say, **changes
    )
    path, fields = read_network_settings(config, **changes)
    target = find_device(fields["device"], path.stem)
    with threads(num_threads or fields["threads"][0]), keep_random_state(target):
        rows = [
            row for key in chosen_networks(network, fields) for row in run_dynamics(key, fields, target, steps, say)
        ]
    return result | {"dynamics": rows}


COLUMNS: dict[str, Cell] = {
    **same("network", "implementation", ">atoms", ">steps"),
    ">drift": "drift: number",
    ">around it": "spread: number",
    ">K": "temperature: number",
    "status": lambda row: row["reason"] or "ok",
}
NOTE = "Total energy, steps of 0.5 fs from one state. Drift: meV per atom and ps. Around it: meV per atom, RMS."


def _further(result: Record) -> list[Table]:
    known = LAYOUTS["networks"].further(result)
    return [*known, table_of("dynamics at constant energy", COLUMNS, result["dynamics"], NOTE)]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("network", choices=NAMES, help="its package must be installed; ours needs none")
    about = "name of a file of configs/bench, or a path; networks by default"
    parser.add_argument("--config", default="networks", help=about)
    parser.add_argument("--steps", default=10_000, type=count, help="of half a femtosecond; 10000 by default")
    add_options(parser, "sizes", "threads", "runs", "device")


LAYOUT = LAYOUTS["networks"]._replace(further=_further)
ABOUT = "The drift of the energy of whole networks, exact and with tables, beside their times."
STUDY = Study(__file__, ABOUT, "networks", LAYOUT, measure, _options)
if __name__ == "__main__":
    main(STUDY)
