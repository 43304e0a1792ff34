"""Linear maps and products that the benchmark has beside ours agree with ours."""

import numpy as np
import pytest
import torch

from eqlayers.bench.layers.pair import features
from eqlayers.bench.layers.products import PRODUCTS, SPECIES, TheirSpecies, plain_cross, scalars
from tests.bench.layers.test_pair import agree


@pytest.mark.thinned(3)
@pytest.mark.parametrize("layer", PRODUCTS)
def test_both_have_the_numbers_of_the_definition(layer: str) -> None:
    agree(layer)


def test_weights_of_a_species_are_a_matrix_over_the_root_of_its_width() -> None:
    layer, kind = TheirSpecies("3x0e+2x1o").double(), torch.tensor([4, 0, 4])
    x = features("3x0e+2x1o", 3)
    rows = []
    for row, species in zip(x, kind, strict=True):
        scalar, vector = layer.weight[species].split([9, 4])
        first = row[:3] @ scalar.view(3, 3) / 3**0.5
        second = vector.view(2, 2).T @ row[3:].view(2, 3) / 2**0.5
        rows.append(torch.cat([first, second.flatten()]))
    torch.testing.assert_close(layer(x, kind), torch.stack(rows))
    assert layer.weight.shape == (SPECIES, 13)


def test_the_plain_formula_is_a_gated_cross_product() -> None:
    s, a, b = scalars("2x1e", 4), features("2x1e", 4), features("2x1e", 4)
    cross = np.cross(a.view(4, 2, 3).numpy(), b.view(4, 2, 3).numpy())
    gates = (s / (1 + torch.exp(-s))).numpy()
    np.testing.assert_allclose(plain_cross(s, a, b).view(4, 2, 3).numpy(), gates[..., None] * cross, rtol=1e-12)
