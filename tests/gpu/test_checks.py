"""Checks of potentials on the device of the potential."""

import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase.build import molecule

from eqlayers.models import NequIP, Potential
from eqlayers.testing import check_potential


def test_a_potential_is_checked_where_it_is(device: torch.device) -> None:
    torch.manual_seed(0)
    network = NequIP([1, 8], "2x0e + 2x1o", lmax=1, layers=1, cutoff=4.0, num_basis=2, radial_hidden=(4,))
    found = check_potential(Potential(network, [1, 8]).to(device), [molecule("H2O")])
    assert found.ok, str(found)
