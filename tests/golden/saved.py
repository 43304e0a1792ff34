"""Saves each layer of the catalogue and each network with the numbers that it gives; `test_saved.py` loads them.

Run `python -m tests.golden.saved` to write `saved.pt.xz` anew, which only a new layer or a new format asks for.
"""

from __future__ import annotations

import io
import lzma
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from e3nn.nn.models.v2106.gate_points_message_passing import MessagePassing
from torch import Tensor, nn

from eqlayers.integrations import accelerate
from eqlayers.models import (
    MACE,
    TFN,
    Equiformer,
    MoleculeNetwork,
    NequIP,
    Potential,
    Structures,
    load_potential,
    save_potential,
)
from tests.catalogue.cases import Case, results
from tests.catalogue.test_layers import CASES as ALL

#: Rows of repeated irreps have the kernels and the files of other rows.
CASES = [case for case in ALL if case.family != "Repeated irreps"]
STORED = Path(__file__).with_suffix(".pt.xz")
SPECIES = [1, 6, 8]
SMALL = {"hidden": "4x0e + 4x1o", "lmax": 2, "cutoff": 4.0, "radial_hidden": (8,)}
NETWORKS = {
    "MACE": lambda: MACE(SPECIES, correlation=2, **SMALL),
    "NequIP": lambda: NequIP(SPECIES, layers=2, **SMALL),
    "TFN": lambda: TFN(SPECIES, layers=2, **SMALL),
    "Equiformer": lambda: Equiformer(SPECIES, "4x0e + 4x1o", heads=2, layers=2, cutoff=4.0, radial_hidden=(8,)),
}


def structure() -> Structures:
    """Water and a carbon atom, float64, in angstrom."""
    positions = torch.tensor([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0], [1.2, 1.4, 1.1]], dtype=torch.float64)
    pairs = torch.tensor([[i, j] for i in range(4) for j in range(4) if i != j]).T.contiguous()
    return Structures(torch.tensor([8, 1, 1, 6]), positions, pairs)


def of_layer(case: Case, layer: nn.Module) -> list[Tensor]:
    """The results of the layer for its example arguments; a seed fixes the random numbers of dropout."""
    torch.manual_seed(11)
    return [value.detach() for value in results(layer(**case.arguments()))]


def of_potential(potential: Potential) -> list[Tensor]:
    predictions = potential(structure())
    return [predictions["energy"].detach(), predictions["forces"].detach()]


def of_molecule(network: MoleculeNetwork) -> list[Tensor]:
    atoms = structure()
    return [network(atoms.z, atoms.pos, atoms.edge_index).detach()]


def e3nn_network() -> nn.Module:
    torch.manual_seed(5)
    irreps = ["2x0e + 1x1o", "2x0e + 1x0o + 1x1o", "2x0e + 1x1o"]
    return MessagePassing(irreps, "1x0e", "0e + 1o", fc_neurons=[3, 4], num_neighbors=4.0).double()


def of_network(network: nn.Module) -> list[Tensor]:
    torch.manual_seed(12)
    nodes, attributes = torch.randn(5, 5, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)
    src, dst = torch.tensor([[i, j] for i in range(5) for j in range(5) if i != j]).T.contiguous()
    edges, lengths = torch.randn(20, 4, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    return [network(nodes, attributes, src, dst, edges, lengths).detach()]


def pickled(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpickled(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=False)


def file_of(potential: Potential) -> bytes:
    with TemporaryDirectory() as folder:
        save_potential(potential, path := Path(folder, "potential.pt"))
        return path.read_bytes()


def from_file(content: bytes) -> Potential:
    with TemporaryDirectory() as folder:
        (path := Path(folder, "potential.pt")).write_bytes(content)
        return load_potential(path)


def saved() -> dict[str, tuple[bytes, list[str], list[Tensor]]]:
    """By name: the file, the keys of the state dict, and numbers."""
    rows = {}
    for case in CASES:
        layer = case.layer()
        rows[f"layer {case.name}"] = pickled(layer), list(layer.state_dict()), of_layer(case, layer)
    for name, make in NETWORKS.items():
        torch.manual_seed(3)
        potential = Potential(make(), SPECIES, {1: -13.6, 6: -1030.0, 8: -2042.0}, 0.7).double()
        rows[f"potential {name}"] = file_of(potential), list(potential.state_dict()), of_potential(potential)
        rows[f"whole {name}"] = pickled(potential), list(potential.state_dict()), of_potential(potential)
    torch.manual_seed(4)
    network = MoleculeNetwork(SPECIES, "4x0e + 4x1o", layers=2, cutoff=4.0, radial_hidden=(8,)).double()
    rows["molecule MoleculeNetwork"] = pickled(network), list(network.state_dict()), of_molecule(network)
    fast = accelerate(e3nn_network(), inplace=False).model
    rows["accelerated"] = pickled(fast), list(fast.state_dict()), of_network(fast)
    return rows


def stored() -> dict[str, tuple[bytes, list[str], list[Tensor]]]:
    """The rows that an earlier commit wrote: for each name the file, the keys and the numbers."""
    return torch.load(io.BytesIO(lzma.decompress(STORED.read_bytes())), weights_only=True)


if __name__ == "__main__":
    STORED.write_bytes(lzma.compress(pickled(saved()), preset=9))
