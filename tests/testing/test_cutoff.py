"""Jumps at the cutoff are measured in value, slope and curvature of each property."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("ase")
pytest.importorskip("vesin")

from eqlayers.models import Potential
from eqlayers.testing import ToyNetwork, check_potential
from eqlayers.testing.potentials import cutoff_rows
from tests.each import each


class Tensors(ToyNetwork):
    """Dipoles and polarizabilities of pairs, which fade with a power of the distance to the cutoff."""

    def __init__(self, power: int, properties: tuple[str, ...]) -> None:
        super().__init__(2, cutoff=3.5)
        self.power, self.properties = power, properties

    def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
        fade = ((self.cutoff - edges.lengths).clamp(min=0) ** self.power) * (edges.lengths < self.cutoff)
        made = {"energy": super().forward(kind, edges, graph)[:, None]}
        weight = fade * (1 + kind[graph.edge_index[0]])
        made["dipole"] = pooled_rows(edges.vectors * weight[:, None], kind, graph)
        trace = pooled_rows(fade[:, None], kind, graph)
        made["polarizability"] = torch.cat([trace, 0 * made["dipole"], 0 * trace, 0 * trace], 1)
        columns = [made[name][:, :1] for name in self.properties if name != "dipole"]
        columns += [made[name] for name in self.properties if name == "dipole"]
        return torch.cat(columns + [made[name][:, 1:] for name in self.properties if name == "polarizability"], 1)


def pooled_rows(values: Tensor, kind: Tensor, graph: Any) -> Tensor:
    return values.new_zeros(len(kind), values.shape[1]).index_add(0, graph.edge_index[1], values)


ALL = ("energy", "dipole", "polarizability")


@each("power, properties", [(0, ALL), (1, ALL), (2, ALL), (3, ALL), (1, ("dipole",)), (2, ("polarizability",))])
def test_tensors_fade_at_the_cutoff(power: int, properties: tuple[str, ...]) -> None:
    failed = [row.name for row in check_potential(Potential(Tensors(power, properties), [1, 8])).failures]
    part = ("", "slope of the ", "curvature of the ")[power : power + 1]
    first = [f"{prefix}{name} at the cutoff" for name in properties if name != "energy" for prefix in part]
    assert set(first) <= set(failed)
    assert all("at the cutoff" in name or "Born" in name for name in failed)
    assert power < 3 or not failed


class Fading(torch.nn.Module):
    """Each edge adds a power of the distance to the cutoff to its receiver."""

    irreps_sh = "0e"

    def __init__(self, power: int, cutoff: float = 3.0) -> None:
        super().__init__()
        self.power, self.cutoff = power, cutoff

    def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
        fade = 0.25 * (self.cutoff - edges.lengths) ** self.power
        return fade.new_zeros(len(kind)).index_add(0, graph.edge_index[1], fade)


@each("power", [0, 1, 2, 3])
def test_jumps_have_the_size_that_the_formula_says(power: int) -> None:
    """Two atoms see each other, so that an edge counts twice; energies are scaled by 2 eV."""
    potential = Potential(Fading(power), [1, 8], {1: -13.6, 8: -2041.3}, {1: 2.0, 8: 2.0}).double().eval()
    rows = {name: (jump, bound) for name, (jump, bound), _ in cutoff_rows(potential, torch.Generator(), 1e-12)}
    assert list(rows) == ["energy at the cutoff", "slope at the cutoff", "curvature at the cutoff"]
    wanted = [2 * 2.0 * 0.25 * (1, 1, 2)[order] * (order == power) for order in range(3)]
    for (jump, bound), size in zip(rows.values(), wanted, strict=True):
        assert jump == pytest.approx(size, abs=bound)
        assert bound < 1e-6
    assert [unit for _, _, unit in cutoff_rows(potential, torch.Generator(), 1e-12)] == ["eV", "eV/A", "eV/A^2"]
