"""Blocks of MACE: messages over their numbers of neighbours, what goes past them, and read-outs of several irreps."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3

from eqlayers import Graph
from eqlayers.errors import ConfigError
from eqlayers.models.mace_blocks import INTERACTIONS, MACEInteraction, MACEProduct, Readout, Style
from eqlayers.nn import EdgeVectors, NormalizedActivation

HIDDEN, HARMONICS, MESSAGE = (o3.Irreps(text) for text in ("2x0e", "0e+1o", "2x0e+2x1o"))


def messages(style: Style, neighbors: int, **options: float) -> torch.Tensor:
    """The message to an atom from some neighbours that lie alike."""
    torch.manual_seed(0)
    mean = {"mean_neighbors": 4.0} | options
    block = MACEInteraction(style, HIDDEN, HARMONICS, MESSAGE, MESSAGE, 2, 3, (4,), **mean).double()
    basis = torch.tensor([[0.5, -0.3, 0.8]]).double().expand(neighbors, -1)
    harmonics = torch.tensor([[1.0, 0.6, 0.0, 0.8]]).double().expand(neighbors, -1)
    length, vectors = torch.ones(neighbors).double(), harmonics[:, 1:]
    edges = EdgeVectors(vectors, length, vectors, harmonics)
    graph = Graph(torch.stack([torch.arange(neighbors) + 1, torch.zeros(neighbors).long()]), neighbors + 1)
    x = torch.tensor([[0.0, 0.0], *[[1.0, -2.0]] * neighbors]).double()
    species = torch.zeros(neighbors + 1).long()
    message, skip = block(x, species, edges, basis, graph)
    assert (skip is None) is not style.residual
    return message[0].detach()


def test_messages_are_divided_by_the_mean_number_of_neighbours() -> None:
    style = INTERACTIONS["RealAgnosticResidualInteractionBlock"]
    one = messages(style, 1)
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(messages(style, 3), 3 * one)
    torch.testing.assert_close(messages(style, 1, mean_neighbors=2.0), 2 * one)
    with pytest.raises(ConfigError, match=r"mean_neighbors must .*got 0"):
        messages(style, 1, mean_neighbors=0)


def test_messages_are_divided_by_a_density_that_counts_near_neighbours() -> None:
    """By 1 and n times the weight of one neighbour, which two numbers of neighbours tell."""
    style = INTERACTIONS["RealAgnosticDensityInteractionBlock"]
    one, two, five = (messages(style, n) for n in (1, 2, 5))
    ratio = float(two[0] / one[0])  # 2 (1 + t) / (1 + 2 t)
    weight = (2 - ratio) / (2 * ratio - 2)
    assert 0 < weight < 1
    torch.testing.assert_close(two, ratio * one)
    torch.testing.assert_close(five, 5 * (1 + weight) / (1 + 5 * weight) * one)


def test_products_are_mixed_and_added_to_what_went_past() -> None:
    block = MACEProduct(MESSAGE, HIDDEN, 2, 2, True).double()
    species = torch.tensor([0, 1, 1])
    message, skip = torch.randn(3, 2, 4).double(), torch.randn(3, 2).double()
    message = message.flatten(1)
    alone = block(message, None, species)
    torch.testing.assert_close(block(message, skip, species), alone + skip)
    torch.testing.assert_close(block(message, skip, species)[1:], block(message[1:], skip[1:], species[1:]))


def test_scalars_are_read_through_a_hidden_layer_and_tensors_are_not() -> None:
    torch.manual_seed(1)
    block = Readout(o3.Irreps("2x0e+1x1o"), o3.Irreps("0e+1o"), o3.Irreps("3x0e")).double()
    x = torch.randn(4, 5).double()
    first, second = (one.weight.detach() for one in block.maps)
    hidden = NormalizedActivation("silu")(x[:, :2] @ first.view(2, 3) / 2**0.5)
    scalars = hidden @ second.view(3, 1) / 3**0.5
    vectors = x[:, 2:] * block.tensors.weight.detach()  # type: ignore[union-attr]
    torch.testing.assert_close(block(x).detach(), torch.cat([scalars, vectors], 1))
    assert Readout(o3.Irreps("2x0e+1x1o"), o3.Irreps("1o")).double()(x).shape == (4, 3), "no scalars at all"
