"""Models of mace-torch as potentials and back: energies, atoms, forces and stress to rounding, of every architecture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3
from mace import data, modules, tools
from mace.tools import torch_geometric

from eqlayers.errors import ConfigError
from eqlayers.integrations import accelerate, from_mace, to_mace
from eqlayers.models import MACE, Potential, Structures
from eqlayers.nn import ZBL

CUTOFF = 4.0
SPECIES = (1, 6, 8)
PLAIN, RESIDUAL = "RealAgnosticInteractionBlock", "RealAgnosticResidualInteractionBlock"
DENSITY, BOTH = "RealAgnosticDensityInteractionBlock", "RealAgnosticDensityResidualInteractionBlock"


def make(dtype: torch.dtype = torch.float64, cls: str = "ScaleShiftMACE", **options: Any) -> Any:
    """A small model of mace-torch with random weights; read-outs of random sizes, as those of trained ones."""
    species = options.pop("species", SPECIES)
    first, rest = options.pop("interactions", (RESIDUAL, RESIDUAL))
    heads = options.get("heads") or ["Default"]
    known: dict[str, Any] = {
        "r_max": CUTOFF,
        "num_bessel": 5,
        "num_polynomial_cutoff": 5,
        "max_ell": 2,
        "interaction_cls": modules.interaction_classes[rest],
        "interaction_cls_first": modules.interaction_classes[first],
        "num_interactions": 2,
        "num_elements": len(species),
        "hidden_irreps": o3.Irreps(options.pop("hidden", "4x0e + 4x1o")),
        "MLP_irreps": o3.Irreps("6x0e"),
        "atomic_energies": -np.arange(1.0, 1 + len(species) * len(heads)).reshape(len(heads), -1).squeeze(0)
        if len(heads) == 1
        else -np.arange(1.0, 1 + len(species) * len(heads)).reshape(len(heads), -1),
        "avg_num_neighbors": 3.7,
        "atomic_numbers": list(species),
        "correlation": 2,
        "gate": torch.nn.functional.silu,
        "radial_MLP": [7, 9],
    }
    if cls == "ScaleShiftMACE":
        known |= {"atomic_inter_scale": [0.7, 1.3][: len(heads)], "atomic_inter_shift": [0.2, -0.4][: len(heads)]}
        if len(heads) == 1:
            known |= {"atomic_inter_scale": 0.7, "atomic_inter_shift": 0.2}
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on how MACE's constructor copies and annotates
            return getattr(modules, cls)(**{**known, **options}).eval()
    finally:
        torch.set_default_dtype(before)


def batch_of(species: tuple[int, ...] = SPECIES, periodic: bool = True, dtype: torch.dtype = torch.float64) -> Any:
    """A structure of seven atoms, one of four and one atom alone, as MACE wants them."""
    rng = np.random.default_rng(5)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        items = []
        for atoms in (7, 4, 1):
            grid = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)[:atoms]
            cell = {"cell": np.diag([3.7, 3.9, 4.2]) + 0.1 * rng.random((3, 3)), "pbc": (True, True, True)}
            items.append(
                data.AtomicData.from_config(
                    data.Configuration(
                        atomic_numbers=np.array(species)[rng.integers(0, len(species), atoms)],
                        positions=1.4 * grid + 0.4 * rng.random((atoms, 3)),
                        properties={},
                        property_weights={},
                        **(cell if periodic else {}),
                    ),
                    z_table=tools.AtomicNumberTable(list(species)),
                    cutoff=CUTOFF,
                )
            )
    finally:
        torch.set_default_dtype(before)
    return next(iter(torch_geometric.dataloader.DataLoader(items, batch_size=len(items), shuffle=False)))


def structures_of(batch: Any, species: tuple[int, ...] = SPECIES, periodic: bool = True) -> Structures:
    z = torch.tensor(species)[batch.node_attrs.argmax(1)]
    cell = {"cell": batch.cell.view(-1, 3, 3), "shifts": batch.unit_shifts} if periodic else {}
    return Structures(z, batch.positions.detach(), batch.edge_index, batch.batch, batch.num_graphs, **cell)


def of_mace(model: Any, batch: Any, head: int = 0, periodic: bool = True) -> dict[str, torch.Tensor]:
    given = {key: value.clone() for key, value in batch.to_dict().items() if isinstance(value, torch.Tensor)}
    given["head"] = torch.full((batch.num_graphs,), head)
    found = model(given, compute_stress=periodic)
    names = {"energy": "energy", "energies": "node_energy", "forces": "forces"} | ({"stress": "stress"} if periodic else {})
    return {name: found[theirs].detach().double() for name, theirs in names.items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], scale: float = 1e4) -> None:
    """Within ``scale`` roundings of float64 of the largest entry: sums over edges, channels and paths of 1e3 terms."""
    for name, value in expected.items():
        size = max(float(value.abs().max()), 1.0)
        error = float((found[name].double() - value).abs().max())
        assert error <= scale * torch.finfo(torch.float64).eps * size, (name, error)
    assert float(expected["forces"].abs().max()) > 1e-3


def compare(model: Any, potential: Potential, species: tuple[int, ...] = SPECIES, head: int = 0) -> None:
    for periodic in (True, False):
        batch = batch_of(species, periodic)
        found = potential(
            structures_of(batch, species, periodic),
            ("energy", "energies", "forces", *(["stress"] if periodic else [])),
        )
        assert_same(found, of_mace(model, batch, head, periodic))


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain first": {"interactions": (PLAIN, RESIDUAL)},
    "plain": {"interactions": (PLAIN, PLAIN)},
    "residual": {},
    "density": {"interactions": (DENSITY, BOTH)},
    "density only": {"interactions": (DENSITY, DENSITY)},
    "density residual": {"interactions": (BOTH, BOTH)},
    "correlation 1": {"correlation": 1},
    "correlation 3": {"correlation": 3},
    "correlation of layers": {"correlation": [3, 1]},
    "scalars": {"hidden": "4x0e"},
    "l = 2": {"hidden": "4x0e + 4x1o + 4x2e", "max_ell": 3},
    "both parities": {"hidden": "3x0e + 3x0o + 3x1o + 3x1e"},
    "one species": {"species": (6,)},
    "one layer": {"num_interactions": 1},
    "three layers": {"num_interactions": 3},
    "repulsion": {"pair_repulsion": True},
    "foundation": {"pair_repulsion": True, "distance_transform": "Agnesi", "interactions": (DENSITY, BOTH)},
    "tanh": {"gate": torch.tanh},
    "narrow": {"radial_MLP": [], "max_ell": 1, "num_polynomial_cutoff": 6},
}


@pytest.mark.parametrize("cls", ["MACE", "ScaleShiftMACE"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_there_and_back(name: str, cls: str) -> None:
    options = ARCHITECTURES[name]
    species = options.get("species", SPECIES)
    model = make(cls=cls, **options)
    potential = from_mace(model)
    assert potential.dtype == torch.float64
    compare(model, potential, species)
    back = to_mace(potential)
    compare(back, potential, species)
    assert isinstance(back, modules.ScaleShiftMACE)
