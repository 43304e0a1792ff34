"""Run a trained potential at constant energy, plot the drift, and set its errors beside errors of other packages.

    eqlayers fit -c configs/ethanol.yaml
    python examples/07_dynamics.py runs/ethanol

Ten thousand steps of 0.5 fs from a frame of the test part, whose atoms get velocities of 500 K. The energy of a smooth
potential is conserved: what it drifts by is the error of the integrator, and noise of a jump at the cutoff would heat.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from ase import Atoms, units
from ase.io import read
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from eqlayers.integrations.ase import Calculator
from eqlayers.simulate import DynamicsSettings, run_dynamics

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "examples" / "peers" / "equal_time.json"
SETTINGS = DynamicsSettings(ensemble="nve", steps=10_000, timestep=0.5, temperature=500.0, interval=10, seed=1)


def test_frame() -> Atoms:
    """The first frame of the last fifth of the trajectory, which no training has seen."""
    with np.load(ROOT / "examples" / "data" / "ethanol_md.npz") as file:
        return Atoms(file["z"], file["R"][len(file["R"]) * 4 // 5])


def dynamics(run: Path) -> np.ndarray:
    """Time in ps and total energy per atom in meV of every frame, ``[frames, 2]``; the trajectory stays in the run."""
    trajectory = run / "nve.traj"
    trajectory.unlink(missing_ok=True)  # of an earlier training of the same name
    calculator = Calculator(run / "potential.pt")
    outcome = run_dynamics(test_frame(), calculator, SETTINGS, trajectory, run / "nve.log")
    if outcome.stopped:
        raise SystemExit("interrupted: no drift to report")
    frames = read(trajectory, ":")
    energies = [1000 * frame.get_total_energy() / len(frame) for frame in frames]
    times = SETTINGS.interval * SETTINGS.timestep / 1000 * np.arange(len(frames))
    return np.column_stack([times, energies])


def drift(rows: np.ndarray) -> tuple[float, float]:
    """Slope in meV per atom and ps, and the root mean square about the line in meV per atom."""
    slope, start = np.polyfit(rows[:, 0], rows[:, 1], 1)
    return float(slope), float(np.std(rows[:, 1] - slope * rows[:, 0] - start))


def picture(rows: np.ndarray, path: Path, caption: str) -> None:
    """Total energy per atom against time."""
    figure = Figure(figsize=(5.6, 3.4), dpi=160, layout="constrained")
    axis = figure.subplots()
    axis.plot(rows[:, 0], rows[:, 1] - rows[0, 1], linewidth=0.8, color="#1f5fa8")
    axis.set(xlabel="time (ps)", ylabel="total energy, change (meV/atom)")
    axis.set_title(caption, fontsize=9)
    axis.grid(alpha=0.25)
    figure.savefig(path)


def table(metrics: dict) -> Table:
    """Errors on the test part beside errors of networks that `nox -s peers` trained for the same time."""
    shown = Table(title="ethanol, test errors (MAE)", title_justify="left")
    shown.add_column("network")
    for heading in ("energy, meV", "forces, meV/A", "training, s", "parameters"):
        shown.add_column(heading, justify="right")
    rows = {"eqlayers " + metrics["network"]: metrics | {"seconds": metrics["train_time_s"]}}
    keys = ("test_energy_mae_meV", "test_forces_mae_meV_A", "seconds", "num_parameters")
    for name, row in rows.items():
        shown.add_row(name, *(f"{row[key]:,.4g}" if key != "num_parameters" else f"{row[key]:,}" for key in keys))
    recorded = json.loads(PEERS.read_text())["points"] if PEERS.exists() else []
    as_long = 0.5 * metrics["train_time_s"]
    whole = [row for row in recorded if row["set"] == "ethanol_md" and row["frames"] is None and not row["failed"]]
    for row in sorted((row for row in whole if row["seconds"] >= as_long), key=lambda row: row["test"]["forces"]):
        numbers = (row["test"]["energy"], row["test"]["forces"], row["seconds"])
        name = f"{row['model']}, {row['about']} (recorded)"
        shown.add_row(name, *(f"{x:,.4g}" for x in numbers), f"{row['parameters']:,}")
    return shown


def main() -> None:
    torch.set_num_threads(1)  # as in the training: nine atoms leave nothing to share, and a second thread only waits
    run = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/ethanol")
    if not (run / "potential.pt").exists():
        raise SystemExit(f"{run} has no potential.pt; train one first: eqlayers fit -c configs/ethanol.yaml")
    rows = dynamics(run)
    slope, noise = drift(rows)
    steps, kelvin = SETTINGS.steps, slope / 1000 / (1.5 * units.kB)
    caption = f"NVE, {steps:,} steps of {SETTINGS.timestep} fs: {slope:+.3f} meV/atom/ps, {noise:.3f} meV/atom about it"
    picture(rows, run / "nve.png", caption)
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "nve.json").write_text(
        json.dumps({"drift_meV_atom_ps": slope, "rms_meV_atom": noise, "steps": steps}) + "\n"
    )
    Console().print(table(metrics))
    print(f"{caption}; the drift is {kelvin:+.3f} K/ps\npicture: {run}/nve.png, trajectory: {run}/nve.traj")
    if not abs(slope) < 1.0 or not noise < 5.0:
        raise SystemExit("check failed: the total energy must drift by less than 1 meV per atom and ps")
    print("check passed: the total energy drifts by less than 1 meV per atom and ps")


if __name__ == "__main__":
    main()
