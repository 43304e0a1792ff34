"""Functions of lengths that the benchmark has beside ours agree with ours."""

import numpy as np
import pytest
import torch

from eqlayers import Graph, nn
from eqlayers.bench.layers.radial import (
    CUTOFF,
    NUMBER,
    RADIAL,
    PlainTransform,
    PlainZBL,
    chebyshev,
    polynomial,
)
from tests.bench.layers.test_pair import agree

PAIR = Graph(torch.tensor([[0, 1], [1, 0]]), 2, 2)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layer", RADIAL)
def test_both_have_the_numbers_of_the_definition(layer: str) -> None:
    agree(layer)


def test_chebyshev_polynomials_are_cosines_of_multiples() -> None:
    r = torch.linspace(0.1, CUTOFF - 0.1, 40, dtype=torch.float64)
    angles = np.arange(NUMBER) * np.arccos(1 - 2 * r.numpy()[:, None] / CUTOFF)
    np.testing.assert_allclose(chebyshev(r).numpy(), np.cos(angles) * polynomial(r).numpy()[:, None], atol=1e-12)


def test_the_plain_transform_at_the_mean_radius() -> None:
    """Where the length is the mean of both radii, both powers are one."""
    layer = PlainTransform()
    r = (0.5 * layer.radii[:2].sum()).repeat(2)
    torch.testing.assert_close(layer(r, torch.tensor([0, 1]), PAIR), torch.full_like(r, 1 / (1 + 1.0805 / 2)))


def test_close_atoms_repel_as_screened_charges() -> None:
    """The energy of carbon and oxygen by the universal potential, half for each, times the envelope."""
    r, z = 0.4, torch.tensor([6, 8])
    reach = float(nn.ZBL().radii[z].sum())
    length = 0.4543 * 0.529 / (6**0.3 + 8**0.3)
    terms = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4028), (0.02817, 0.2016))
    screened = sum(a * np.exp(-b * r / length) for a, b in terms)
    u, p = r / reach, 6
    envelope = 1 - (p + 1) * (p + 2) / 2 * u**p + p * (p + 2) * u ** (p + 1) - p * (p + 1) / 2 * u ** (p + 2)
    energies = PlainZBL()(torch.full((2,), r, dtype=torch.float64), z, PAIR)
    assert energies.tolist() == pytest.approx([0.5 * 14.3996 * 48 / r * screened * envelope] * 2, rel=1e-6)
