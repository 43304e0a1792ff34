"""Energies and forces of ethanol by networks of other packages, trained as `configs/ethanol.yaml` trains ours.

The same frames, batches, loss, optimizer, schedule, averaged weights and threads; the time of training is given. It is
run in an environment of its own: `nox -s peers` (see noxfile.py), which writes ethanol.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.utils.data.dataloader
from rich.progress import track
from torch import Tensor, nn

from eqlayers.data import StructureDataModule
from eqlayers.train.averaging import ema_decay


class PaiNN(nn.Module):
    """Of schnetpack."""

    def __init__(self, cutoff: float, width: int) -> None:
        super().__init__()
        loader: Any = torch.utils.data.dataloader
        if not hasattr(loader, "T_co"):  # schnetpack 2.0 imports this name, which torch has dropped
            loader.T_co = TypeVar("T_co", covariant=True)
        import schnetpack.nn
        from schnetpack.atomistic import Atomwise
        from schnetpack.representation import PaiNN as Representation

        basis = schnetpack.nn.BesselRBF(n_rbf=20, cutoff=cutoff)
        self.body = Representation(width, 3, basis, schnetpack.nn.CosineCutoff(cutoff))
        self.head = Atomwise(n_in=width, output_key="energy")

    def forward(self, batch: Any, pos: Tensor) -> Tensor:
        """``[G]``."""
        src, dst = batch.edge_index
        found = {"_atomic_numbers": batch.z, "_idx_i": dst, "_idx_j": src, "_Rij": pos[src] - pos[dst]}
        found["_idx_m"], found["_n_atoms"] = batch.batch, torch.bincount(batch.batch)
        energy: Tensor = self.head(self.body(found))["energy"]
        return energy


class SchNet(nn.Module):
    """Of torch-geometric."""

    def __init__(self, cutoff: float, width: int) -> None:
        super().__init__()
        from torch_geometric.nn import SchNet as Network

        self.edges: Tensor | None = None
        self.net = Network(width, width, 3, cutoff=cutoff, interaction_graph=self.graph)

    def graph(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        """The edges of the batch, in place of a search that needs another package."""
        assert self.edges is not None
        src, dst = self.edges
        return self.edges, (pos[src] - pos[dst]).norm(dim=1)

    def forward(self, batch: Any, pos: Tensor) -> Tensor:
        """``[G]``."""
        self.edges = batch.edge_index
        energy: Tensor = self.net(batch.z, pos, batch.batch).squeeze(-1)
        return energy


NETWORKS = {"painn": (PaiNN, "schnetpack", 64, 4e-3), "schnet": (SchNet, "torch-geometric", 64, 2e-3)}


def predicted(net: nn.Module, batch: Any, statistics: Any, create_graph: bool) -> tuple[Tensor, Tensor]:
    """Energies ``[G]`` and forces ``[A, 3]``, with the shifts and the scale that our potential has."""
    pos = batch.pos.detach().requires_grad_()
    with torch.enable_grad():
        energy = net(batch, pos) * statistics.scale
        (slope,) = torch.autograd.grad(energy.sum(), pos, create_graph=create_graph)
    shifts = torch.zeros(len(batch.z), dtype=torch.float64)
    for z, shift in statistics.shifts.items():
        shifts[batch.z == z] = shift
    base = torch.zeros(batch.num_graphs, dtype=torch.float64).index_add(0, batch.batch, shifts)
    return energy.double() + base, -slope


def errors(net: nn.Module, loader: Any, statistics: Any) -> dict[str, float]:
    """Mean absolute errors in meV and meV/Angstrom."""
    found = [(batch, *predicted(net, batch, statistics, False)) for batch in loader]
    energy = torch.cat([(e.detach() - batch.energy).abs() for batch, e, _ in found])
    forces = torch.cat([(f - batch.forces).abs().flatten() for batch, _, f in found])
    return {"energy_mae_meV": 1e3 * float(energy.mean()), "forces_mae_meV_A": 1e3 * float(forces.mean())}


def train(name: str, seconds: float, width: int, rate: float, data: StructureDataModule) -> dict[str, Any]:
    """Train for so long; the schedule follows the time."""
    torch.manual_seed(2026)
    net = NETWORKS[name][0](data.cutoff, width)
    average = NETWORKS[name][0](data.cutoff, width)
    average.load_state_dict(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0)
    scale, step, start = data.statistics.scale, 0, time.perf_counter()
    loader = data.train_dataloader()
    while (spent := time.perf_counter() - start) < seconds:
        for batch in loader:
            spent = time.perf_counter() - start
            if spent >= seconds:
                break
            factor = min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * spent / seconds))
            optimizer.param_groups[0]["lr"] = rate * factor
            energy, forces = predicted(net, batch, data.statistics, True)
            atoms = torch.bincount(batch.batch)
            loss = ((forces - batch.forces).norm(dim=1) / scale).mean()
            loss = loss + ((energy - batch.energy).abs() / (atoms * scale)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            optimizer.step()
            with torch.no_grad():
                pairs = zip(average.parameters(), net.parameters(), strict=True)
                for mean, current in pairs:
                    mean.lerp_(current, 1 - ema_decay(step, 0.99))
            step += 1
    facts = {"package": NETWORKS[name][1], "width": width, "learning_rate": rate, "seconds": seconds, "steps": step}
    facts["parameters"] = sum(p.numel() for p in net.parameters())
    return facts | errors(average, data.test_dataloader(), data.statistics)


def main() -> None:
    """Train what is asked for and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=330.0, help="of training, each")
    parser.add_argument("--only", choices=NETWORKS, action="append", help="all by default")
    parser.add_argument("--width", type=int, help="of the features; 64 by default")
    parser.add_argument("--rate", type=float, help="highest learning rate")
    parser.add_argument("--cutoff", type=float, default=5.0, help="Angstrom")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = StructureDataModule("ethanol_md", split="time", cutoff=args.cutoff, batch_size=8, eval_batch_size=100)
    data.setup()
    found = {}
    for name in track(args.only or list(NETWORKS), description="networks"):
        _, _, width, rate = NETWORKS[name]
        found[name] = train(name, args.seconds, args.width or width, args.rate or rate, data)
        print(name, json.dumps(found[name]), flush=True)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
