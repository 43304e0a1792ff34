"""Checks of potentials on the device of the potential."""

from __future__ import annotations

import pytest
import torch

from eqlayers.models import NequIP, Potential
from eqlayers.testing import check_potential


@pytest.mark.slow
def test_a_potential_is_checked_where_it_is(device: torch.device) -> None:
    torch.manual_seed(0)
    network = NequIP([1, 8], "4x0e + 4x1o", lmax=1, layers=2, cutoff=4.0, num_basis=4, radial_hidden=(8,))
    found = check_potential(Potential(network, [1, 8]).to(device))
    assert found.ok, str(found)
