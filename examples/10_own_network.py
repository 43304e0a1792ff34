"""A network of your own as a potential: what it is given, trained on forces, checked, compiled.

    python examples/10_own_network.py

A network gives a number for each atom; `Potential` adds shifts and scales and differentiates. The guide is
docs/howto/own_network.md. Half a minute on one core.
"""

import torch
from e3nn import o3
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch_geometric.data import Batch

from eqlayers.data import StructureDataModule
from eqlayers.models import Potential, Structures
from eqlayers.nn import Interaction, Linear
from eqlayers.testing import check_potential
from eqlayers.train import EMA, PotentialModule, quiet_lightning

SPECIES, STEPS = (1, 6, 8), 600


class Network(torch.nn.Module):
    """Two steps of message passing with scalars and vectors, and a linear read-out."""

    def __init__(self, species: tuple[int, ...], width: int = 32, cutoff: float = 4.0) -> None:
        super().__init__()
        self.species, self.cutoff = species, cutoff  # atomic numbers; Angstrom
        self.irreps_sh = o3.Irreps("0e + 1o + 2e")  # harmonics that it wants of every edge
        self.options = {"species": list(species), "width": width, "cutoff": cutoff}  # files of the potential keep them
        scalars, features = f"{width}x0e", f"{width}x0e + {width}x1o"
        self.embedding = torch.nn.Embedding(len(species), width)
        self.first = Interaction(scalars, self.irreps_sh, features, cutoff=cutoff, gate="silu")
        self.second = Interaction(features, self.irreps_sh, scalars, cutoff=cutoff, gate="silu")
        self.read = Linear(scalars, "0e", layout="ir_mul")

    def forward(self, atom_types, edges, graph):
        """``[A]``, the number of each atom: species from 0, lengths and harmonics of edges, their ends."""
        x = self.first(self.embedding(atom_types), edges.harmonics, edges.lengths, graph)
        x = self.second(x, edges.harmonics, edges.lengths, graph)
        return self.read(x).squeeze(-1)


def compiled(potential: Potential):
    """Energy in eV and forces in eV/Angstrom as one graph for any number of atoms; `torch.func` keeps forces inside."""

    def energy_and_forces(structures):
        def energy(pos):
            return potential.atomic_energies(structures._replace(pos=pos)).sum()

        found, pull = torch.func.vjp(energy, structures.pos)
        return found, -pull(torch.ones_like(found))[0]

    return torch.compile(energy_and_forces, fullgraph=True, dynamic=True)


def main() -> None:
    seed_everything(2026)
    torch.set_num_threads(1)
    data = StructureDataModule("ethanol_md", split="time", cutoff=4.0)
    module = PotentialModule(Network(SPECIES), learning_rate=0.01)
    options = {"accelerator": "cpu", "logger": CSVLogger("runs", "example_10"), "enable_checkpointing": False}
    options |= {"inference_mode": False, "gradient_clip_val": 10.0}  # validation needs gradients as well: forces
    trainer = Trainer(max_steps=STEPS, callbacks=[EMA(decay=0.99)], **options)
    trainer.fit(module, datamodule=data)
    (result,) = trainer.test(module, datamodule=data, verbose=False)
    print(f"test MAE of the forces: {result['test/forces_mae_meV_A']:.0f} meV/A")

    potential = module.potential.double().eval()
    report = check_potential(potential)
    print(report)
    run, differences = compiled(potential), []
    for count in (2, 3):  # frames at once: other numbers of atoms and edges
        batch = Batch.from_data_list([data.test_set[number] for number in range(count)])
        structures = Structures.of(batch)._replace(pos=batch.pos.double(), cell=None, shifts=None)
        expected = potential(structures)
        for found, wanted in zip(run(structures), (expected["energy"].sum(), expected["forces"]), strict=True):
            differences.append(float((found.detach() - wanted).abs().max()))
    difference = max(differences)
    print(f"compiled: energies and forces differ by at most {difference:.1e} eV and eV/A")
    if not report.ok or difference > 1e-9:
        raise SystemExit("check failed: expected a potential, and the same numbers from the compiled one")
    print("check passed: forces are slopes, and torch.compile gives the same numbers")


if __name__ == "__main__":
    with quiet_lightning():
        main()
