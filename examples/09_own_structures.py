"""From a file of your own structures to molecular dynamics: fit, check, simulate, look.

    python examples/09_own_structures.py              # with 600 frames of ethanol, which it writes to such a file first
    python examples/09_own_structures.py my.xyz       # any file that ASE reads, with energies and forces

The commands `eqlayers fit`, `eqlayers check` and `eqlayers md` do the same. A minute or two on one core; the dynamics
are ASE's, at constant energy from the last structure of the file.
"""

import sys
from pathlib import Path
from tempfile import mkdtemp

import ase.io
import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.velocitydistribution import Stationary
from ase.md.verlet import VelocityVerlet
from lightning.pytorch import Trainer, seed_everything
from matplotlib.figure import Figure

from eqlayers.cli.main import main as eqlayers
from eqlayers.data import StructureDataModule
from eqlayers.data.embedded import embedded_trajectory
from eqlayers.integrations.ase import Calculator
from eqlayers.models import MACE
from eqlayers.train import EMA, PotentialModule, checkpoint_path, quiet_lightning, trainer_options

RUN = Path("runs/example_09")
STEPS = {"fit": 1500, "dynamics": 2000}


def ethanol() -> str:
    """A file as users have them: structures with energy (eV) and forces (eV/Angstrom)."""
    frames = []
    with np.load(embedded_trajectory("ethanol_md")) as file:
        for pos, energy, forces in zip(*(file[key][::3][:600] for key in "REF"), strict=True):
            frames.append(Atoms(file["z"], pos))
            frames[-1].calc = SinglePointCalculator(frames[-1], energy=energy, forces=forces)
    path = f"{mkdtemp()}/ethanol.xyz"
    ase.io.write(path, frames)
    return path


def main() -> None:
    seed_everything(2026)
    torch.set_num_threads(1)
    source = sys.argv[1] if len(sys.argv) > 1 else ethanol()
    structures = ase.io.read(source, ":")
    species = sorted({int(z) for atoms in structures for z in atoms.numbers})

    # 1. Fit. The data say which labels and units were found; the test leaves RUN/potential.pt, metrics.json, pictures.
    data = StructureDataModule(source, cutoff=4.0)
    network = MACE(species, hidden="32x0e + 32x1o", lmax=2, radial_hidden=(32,), cutoff=4.0)
    module = PotentialModule(network, learning_rate=0.02)
    options = trainer_options(RUN)
    options["callbacks"].append(EMA(decay=0.99))
    options |= {"inference_mode": False, "accelerator": "cpu", "gradient_clip_val": 10.0, "log_every_n_steps": 10}
    trainer = Trainer(max_steps=STEPS["fit"], check_val_every_n_epoch=None, val_check_interval=250, **options)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, ckpt_path=str(checkpoint_path(RUN)), verbose=False)

    # 2. Check: are the forces the slope of the energy, is it smooth at the cutoff, and more.
    if eqlayers(["check", f"{RUN}/potential.pt"]):
        raise SystemExit("check failed: a property does not hold")

    # 3. Molecular dynamics at constant energy.
    atoms = structures[-1].copy()
    atoms.calc = Calculator(RUN / "potential.pt")
    spreads = np.sqrt(atoms.get_masses() * units.kB * 300)[:, None]  # of momenta at 300 K
    atoms.set_momenta(spreads * np.random.default_rng(1).normal(size=(len(atoms), 3)))
    Stationary(atoms)
    dynamics, rows = VelocityVerlet(atoms, 0.5 * units.fs, trajectory=str(RUN / "md.traj")), []
    dynamics.attach(lambda: rows.append([atoms.get_potential_energy(), atoms.get_kinetic_energy()]), interval=5)
    dynamics.run(STEPS["dynamics"])

    # 4. A picture.
    energies = 1000 * (np.array(rows) - [rows[0][0], 0.0]) / len(atoms)  # meV per atom
    energies, times = np.column_stack([energies, energies.sum(1)]), 0.5e-3 * 5 * np.arange(len(rows))
    figure = Figure(figsize=(6, 3.6), dpi=160, layout="constrained")
    axis = figure.subplots()
    for name, values in zip(("potential, from its start", "kinetic", "total"), energies.T, strict=True):
        axis.plot(times, values, linewidth=1.0, label=name)
    axis.set(xlabel="time (ps)", ylabel="energy (meV/atom)")
    axis.set_title(f"{atoms.get_chemical_formula()} at constant energy, a time step of 0.5 fs", fontsize=9)
    axis.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    figure.savefig(RUN / "md.png")
    spread, exchanged = energies[:, 2].std(), energies[:, 1].std()
    print(f"total energy: {spread:.2f} meV/atom about its mean, kinetic {exchanged:.2f}; picture: {RUN}/md.png")
    if not spread < 0.1 * exchanged:
        raise SystemExit("check failed: expected a total energy that varies by a tenth of the kinetic one at most")
    print("check passed: the total energy is conserved")


if __name__ == "__main__":
    with quiet_lightning():
        main()
