"""Cases of a potential: slopes by differences with the bound of their error, and copies that are moved."""

import math

import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from eqlayers.models import Potential
from eqlayers.testing import ToyNetwork
from eqlayers.testing.equivariance import random_orthogonal
from eqlayers.testing.networks import example_structures
from eqlayers.testing.potential_case import EYE, STEPS, Case, slope_of, worst_of


def test_slopes_are_within_the_bound_of_their_error() -> None:
    steps = 1e-2 * STEPS
    for function, slope in (
        (lambda x: 2 * x**4 - x**3 + 5 * x, 5.0),
        (lambda x: torch.sin(3 * x), 3.0),
        (lambda x: torch.exp(2 * x), 2.0),
    ):
        value, bound = slope_of(function(steps), 1e-2)
        # differences of fourth order, and the rounding of numbers near 1 by steps of 0.01
        assert abs(float(value) - slope) <= bound + 1e-13 < 1e-4
    rows = torch.stack([torch.sin(steps), torch.cos(steps)], 1)
    assert slope_of(rows, 1e-2)[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-8)


def test_the_bound_grows_where_a_third_derivative_jumps() -> None:
    """An edge crosses the cutoff within the steps; the error of a smooth function would hide it."""
    steps = 1e-2 * STEPS
    value, bound = slope_of(torch.sin(steps) + 50 * (steps - 0.015).clamp(min=0) ** 3, 1e-2)
    assert abs(float(value) - 1.0) <= bound
    assert bound > 1e-4 > slope_of(torch.sin(steps), 1e-2)[1]


def test_the_worst_direction_has_the_largest_deviation_or_none() -> None:
    assert worst_of([(1.0, 5.0), (3.0, 2.0)]) == (3.0, 5.0)
    deviation, bound = worst_of([(1.0, 5.0), (math.nan, 2.0), (3.0, 2.0)])
    assert math.isnan(deviation)
    assert bound == 5.0


def test_moved_copies_differ_by_rounding_alone_and_other_places_by_more() -> None:
    potential = Potential(ToyNetwork(2, cutoff=3.5), [1, 8], {1: -13.6, 8: -2041.3}, {1: 0.4, 8: 2.0}).double().eval()
    for atoms in example_structures([1, 8], 3.5):
        case = Case.of(potential, atoms, torch.Generator().manual_seed(0))
        pos, turn = case.batch.pos.detach(), random_orthogonal(1)
        both = case.moved(torch.stack([pos, pos + 0.7]))
        calls = {
            "turned": (case.moved((pos @ turn.T)[None], case.batch.cell @ turn.T), turn),
            "two copies as one": (both._replace(batch=0 * both.batch, num_graphs=1, cell=case.batch.cell), EYE),
            "mirrored": (case.moved(-pos[None], -case.batch.cell), -EYE),
        }
        for name, (other, matrix) in calls.items():
            rows = case.difference(other, matrix)
            assert [part for part, _, _ in rows] == ["energy", "forces"]
            assert all(deviation <= bound for _, (deviation, bound), _ in rows), name
        (_, (deviation, bound), _), _ = case.difference(case.moved(1.001 * pos[None], 1.001 * case.batch.cell), EYE)
        assert deviation > 1e3 * bound  # of energies: symmetry leaves the crystal without forces
