"""Structures that are padded for a recording: edges without a pair of atoms join the two ghost atoms."""

from __future__ import annotations

import torch

from eqlayers.models import TFN, Potential
from eqlayers.models.recording import GHOSTS, fill, with_ghosts
from eqlayers.models.structures import Structures


def crystal(edges: int) -> Structures:
    """Three atoms in a cell, with so many edges across its faces."""
    index = torch.arange(edges)
    return Structures(
        torch.tensor([8, 13, 8]),
        torch.rand(3, 3, dtype=torch.float64),
        torch.stack([index % 3, (index + 1) % 3]),
        torch.zeros(3, dtype=torch.int64),
        1,
        cell=4.0 * torch.eye(3, dtype=torch.float64)[None],
        shifts=torch.ones(edges, 3, dtype=torch.float64),
    )


NONE = Structures(
    torch.empty(0, dtype=torch.int64),
    torch.empty(0, 3, dtype=torch.float64),
    torch.empty(2, 0, dtype=torch.int64),
    torch.empty(0, dtype=torch.int64),
    0,
    cell=torch.empty(0, 3, 3, dtype=torch.float64),
    shifts=torch.empty(0, 3, dtype=torch.float64),
)


def test_fewer_edges_leave_none_of_the_edges_before() -> None:
    padded, later = with_ghosts(crystal(50), 5.0, 29), crystal(20)
    assert len(padded.z) == 3 + GHOSTS
    assert padded.edge_index.shape[1] > 50
    fill(padded, later)
    torch.testing.assert_close(padded.edge_index[:, :20], later.edge_index)
    torch.testing.assert_close(padded.shifts[:20], later.shifts)
    assert padded.edge_index[:, 20:].unique(dim=1).tolist() == [[3], [4]]
    assert not padded.shifts[20:].any()
    assert float((padded.pos[4] - padded.pos[3]).norm()) == 4.5


def test_structures_with_ghosts_have_the_energies_of_those_without() -> None:
    """One of them, lone atoms, and none: beside the lone atoms that are subtracted the ghosts change nothing."""
    network = TFN([8, 13], hidden="2x0e + 2x1o", lmax=1, layers=1, radial_hidden=[4], cutoff=5.0)
    potential = Potential(network, [8, 13], {8: -3.0, 13: 2.0}).double().eval()
    assert potential.added == 2
    for structures in (crystal(20), crystal(0), NONE):
        asked = ("energy", "energies", "forces", "stress")
        wanted, results = potential(structures, asked), potential(with_ghosts(structures, 5.0, 8), asked)
        for name, value in wanted.items():
            torch.testing.assert_close(results[name][: len(value)], value, rtol=0, atol=1e-12)
