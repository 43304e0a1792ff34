"""Networks of e3nn have the same numbers in every precision; networks of other packages have tests in integrations."""

import pytest
import torch

from eqlayers.bench.networks import packages
from eqlayers.bench.networks.atoms import clusters


@pytest.mark.parametrize("name", ["gate_points_2101", "simple_network_2106"])
def test_networks_have_the_same_weights_in_every_precision(name: str) -> None:
    subject = getattr(packages, name)(channels=2, layers=1, lmax=1, sample=clusters((3,)))
    double, single = (dict(subject.make(dtype).named_parameters()) for dtype in (torch.float64, torch.float32))
    assert list(double) == list(single)
    assert all(torch.equal(double[key], single[key].double()) for key in double)
    assert all(bool(p.any()) for p in double.values()), "weights that are zero hide errors"
