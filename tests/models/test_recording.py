"""Structures that are padded for a recording: edges without a pair of atoms join the two ghost atoms."""

from __future__ import annotations

import torch

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


def test_fewer_edges_leave_none_of_the_edges_before() -> None:
    padded, later = with_ghosts(crystal(50), 5.0), crystal(20)
    assert len(padded.z) == 3 + GHOSTS
    assert padded.edge_index.shape[1] > 50
    fill(padded, later)
    torch.testing.assert_close(padded.edge_index[:, :20], later.edge_index)
    torch.testing.assert_close(padded.shifts[:20], later.shifts)
    assert padded.edge_index[:, 20:].unique(dim=1).tolist() == [[3], [4]]
    assert not padded.shifts[20:].any()
    assert float((padded.pos[4] - padded.pos[3]).norm()) == 4.5
