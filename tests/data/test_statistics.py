"""Statistics recover what was put in, come from the training part alone, and never divide by zero."""

from __future__ import annotations

import numpy as np
import pytest

from eqlayers.data.neighbors import structure_edges
from eqlayers.data.statistics import compute_statistics
from eqlayers.data.structures import StructureArrays
from eqlayers.data.targets import TARGETS
from eqlayers.errors import DataError

ENERGY, DIPOLE = TARGETS["U0"], TARGETS["mu"]
TRUE = {1: -13.5, 6: -1029.25, 8: -2042.75}


def with_labels(small_set, noise: float = 0.0, num: int = 60):
    counts = small_set(num).counts(tuple(TRUE))
    noise_values = np.random.default_rng(0).normal(scale=1.0, size=num) * noise
    return small_set(num, y=counts @ np.array(list(TRUE.values())) + noise_values)


def statistics(molecules, train=None, target=ENERGY, **options):
    train = np.arange(len(molecules.y)) if train is None else train
    return compute_statistics(molecules, structure_edges(molecules, 3.0), train, target=target, **options)


def test_regression_recovers_exact_shifts(small_set):
    fitted = statistics(with_labels(small_set))
    assert fitted.species == (1, 6, 8)
    assert fitted.shifts == pytest.approx(TRUE, rel=1e-13)
    assert fitted.scale == 1.0  # only rounding is left


def test_scale_is_that_of_the_residual(small_set):
    molecules = with_labels(small_set, noise=0.3)
    fitted = statistics(molecules)
    residual = molecules.y - molecules.counts(fitted.species) @ np.array(list(fitted.shifts.values()))
    assert fitted.scale == pytest.approx(residual.std(), rel=1e-12)
    assert 0.2 < fitted.scale < 0.4
    assert (fitted.mean, fitted.std) == pytest.approx((molecules.y.mean(), molecules.y.std()))


def test_only_the_training_part_counts(small_set):
    molecules = with_labels(small_set, noise=0.3)
    train = np.arange(0, 60, 2)
    y = molecules.y.copy()
    y[1::2] += 1e3
    before, after = statistics(molecules, train), statistics(small_set(60, y=y), train)
    assert before == after
    assert before.num_train == 30
    assert before != statistics(molecules)


def test_mean_neighbors_is_that_of_the_atoms_of_the_training_part():
    """By hand: pairs (2 atoms, 2 edges) and triangles (3 atoms, 6 edges), and a far atom that has no neighbour."""
    pair, triangle, lonely = [[0, 0, 0], [1, 0, 0]], [[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 0, 0], [9, 0, 0]]
    sizes = [len(molecule) for molecule in (pair, triangle, lonely, triangle)]
    pos = [*pair, *triangle, *lonely, *triangle]
    molecules = StructureArrays.of("test", sizes, np.ones(sum(sizes)), pos, y=np.arange(4.0))
    by_rows = {rows: statistics(molecules, np.array(rows)).mean_neighbors for rows in ((0, 1), (1, 2), (0, 1, 2))}
    assert by_rows == {(0, 1): 8 / 5, (1, 2): 6 / 5, (0, 1, 2): 8 / 7}
    with pytest.raises(DataError, match="training part of test must have atoms within the cutoff of 3"):
        statistics(molecules, np.array([2]))
    assert statistics(molecules, np.array([1, 1, 0])).mean_neighbors == 14 / 8, "a row that is there twice counts twice"


def test_intensive_targets_have_no_shifts(small_set):
    molecules = small_set(60)
    fitted = statistics(molecules, target=DIPOLE)
    assert fitted.shifts == {1: 0.0, 6: 0.0, 8: 0.0}
    assert (fitted.scale, fitted.mean) == pytest.approx((molecules.y.std(), molecules.y.mean()))


@pytest.mark.parametrize("target", [ENERGY, DIPOLE])
def test_scale_is_never_zero(small_set, target):
    molecules = small_set(y=np.zeros(12))
    assert statistics(molecules, np.array([0]), target).scale == 1.0
    assert statistics(molecules, target=target).scale == 1.0


def test_a_species_that_training_lacks_has_no_shift(small_set):
    z = small_set().z.copy()
    z[-1] = 9
    fitted = statistics(small_set(z=z), np.arange(11))
    assert fitted.species == (1, 6, 8, 9)
    assert fitted.shifts[9] == pytest.approx(0.0, abs=1e-12)


def test_given_energies_of_atoms_replace_the_fit(small_set):
    molecules = with_labels(small_set, noise=0.3)
    fitted = statistics(molecules, e0s=TRUE | {7: 1.0})
    assert fitted.shifts == TRUE
    assert fitted.fitted == ()
