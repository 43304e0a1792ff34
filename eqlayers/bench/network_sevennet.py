"""SevenNet's network, with atoms for it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .atoms import SIZES, Place, clusters
from .implementation import default_dtype
from .subject import Subject, kind_of, quiet_warnings, representable


class _OneHot(torch.nn.Module):
    """One-hot species in the dtype of the vectors, where SevenNet's are float32 whatever the network is."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run a batch, which is changed."""
        data = self.theirs(data)
        for key in (self.theirs.key_output, self.theirs.key_additional_output):
            data[key] = data[key].to(data["edge_vec"].dtype)
        return data


def sevennet(
    *,
    layers: int = 5,
    channels: int = 128,
    lmax: int = 2,
    sizes: Sequence[int] = SIZES,
    place: Place | None = None,
    scale: float = 0.5,
    shift: float = 0.0,
) -> Subject:
    """SevenNet's network, on clusters of some sizes or on other atoms; see `network_subjects.nequip`."""
    from sevenn._const import DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG
    from sevenn.model_build import build_E3_equivariant_model

    atoms = clusters(sizes) if place is None else place
    species = list(atoms.species)

    def build() -> torch.nn.Module:
        torch.manual_seed(1)
        options: dict[str, Any] = copy.deepcopy(DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG) | {
            "cutoff": atoms.cutoff,
            "channel": channels,
            "lmax": lmax,
            "num_convolution_layer": layers,
            "is_parity": False,
            "conv_denominator": [atoms.mean_neighbors**0.5] * layers,
            "_type_map": {z: number for number, z in enumerate(species)},
            "_number_of_species": len(species),
            "chemical_species": list(atoms.species.values()),
            "scale": scale,
            "shift": [shift - 1.0 - number for number in range(len(species))],
        }
        network: Any = build_E3_equivariant_model(options)
        network.replace_module("onehot_idx_to_onehot", _OneHot(network.onehot_idx_to_onehot))
        return representable(network)

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            return build().to(dtype)

    @lru_cache(maxsize=2)
    def load(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        found = atoms.structures(dtype, device)
        assert found.batch is not None
        receiver, sender = found.edge_index.flip(0)  # of SevenNet's rows, vectors lead from the first to the second
        vectors = found.pos[sender] - found.pos[receiver]
        if found.shifts is not None and found.cell is not None:
            vectors = vectors - torch.einsum("ei,eij->ej", found.shifts, found.cell[found.batch[receiver]])
        volume = vectors.new_ones(found.num_graphs) if found.cell is None else torch.linalg.det(found.cell)
        return {
            "x": found.z,
            "atomic_numbers": found.z,
            "pos": found.pos,
            "edge_index": torch.stack([receiver, sender]),
            "edge_vec": vectors,
            "batch": found.batch,
            "num_atoms": torch.bincount(found.batch),
            "cell_volume": volume,
        }

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        dtype, device = kind_of(network)
        given = load(dtype, device)
        with default_dtype(dtype):
            out = network(given | {"edge_vec": given["edge_vec"].clone()})
        return out["inferred_total_energy"], out["inferred_force"]

    about = f"SevenNet, {layers} layers, {channels} channels, l <= {lmax}"
    return Subject(about, atoms, make, evaluate, "sevenn")
