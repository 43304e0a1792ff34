"""Errors of a test by element and group, beside errors of predictions that see no geometry."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eqlayers.data import StructureArrays, StructureDataset, structure_edges
from eqlayers.data.structures import Label
from eqlayers.models import Potential
from eqlayers.testing import ToyNetwork
from eqlayers.train.predictions import Baseline, Composition, Errors, Predictions, Row, lone_row, table
from eqlayers.train.steps import LABELS
from tests.each import each

LABEL = Label("gap in air", "N", (), "eV", "meV", "meV")


def part_of(**labels: Any) -> StructureDataset:
    """Structures of 2 H, 1 O, H + O, and 2 O, the third of which is in no part."""
    pos = np.zeros((7, 3)) + 3 * np.arange(7)[:, None]
    structures = StructureArrays.of("a test", [2, 1, 2, 2], [1, 1, 8, 1, 8, 8, 8], pos, **labels)
    return StructureDataset(structures, structure_edges(structures, 5.0), np.array([0, 1, 3]))


def test_errors_are_per_atom_by_element_and_without_the_atoms_that_have_no_label() -> None:
    """Two structures, of one oxygen and of two hydrogens, the last of which has no forces."""
    values = {
        "z": np.array([8.0, 1, 1]),
        "atoms": np.array([1.0, 2]),
        "group": np.array([0.0, 1]),
        "energy_true": np.array([-1.0, -4.0]),
        "energy_error": np.array([0.002, -0.006]),
        "forces_true": np.array([[0.3, 0, 0], [0, 0.6, 0], [np.nan] * 3]),
        "forces_error": np.array([[0.0, 0, 0.003], [0.009, 0, 0], [np.nan] * 3]),
    }
    data = SimpleNamespace(train_set=part_of(energy=[-3.8, -1.2, np.nan, -2.4]))
    labels = {name: LABELS[name] for name in ("energy", "forces")}
    whole, of_groups = Predictions(labels, values, ("warm", ""), data).rows()
    rows = {row.name: (row.errors, row.baselines[0].errors) for row in whole}
    assert list(rows) == ["energy", "energy per atom", "forces", "forces on H", "forces on O"]
    energy, baseline = rows["energy"]
    assert (energy.mae, energy.largest, energy.rmse) == pytest.approx((4, 6, 20**0.5))
    assert baseline.mae == pytest.approx(200), "0.2 eV by either composition"
    assert [errors.mae for errors in rows["energy per atom"]] == pytest.approx([2.5, 150])
    assert [rows[name][0].mae for name in list(rows)[2:]] == pytest.approx([2, 3, 1])
    assert rows["forces"][1].mae == pytest.approx(150)
    names = {row.name: (row.errors.mae, row.baselines[0].errors.mae) for row in of_groups}
    assert list(names) == ["energy of warm", "energy of others", "forces of warm", "forces of others"]
    assert names["energy of warm"] == pytest.approx((2, 200)), "the fit is of the whole training part"
    assert names["forces of warm"] == pytest.approx((1, 100))
    assert names["forces of others"] == pytest.approx((3, 200)), "of its own atoms"


def test_the_baseline_is_fitted_to_the_training_part() -> None:
    """Energies of 2 and 3 eV an atom, which are exact; the last structure has no energy, and the test part others."""
    fit = Composition.of(part_of(energy=[4, 3, 9, np.nan]), "energy", False)
    assert fit(np.array([8, 1, 1, 8, 6]), np.array([2, 2, 1])) == pytest.approx([5, 5, 0])


@each("extensive", [True, False])
def test_a_property_has_the_mean_and_a_fit_beside(extensive: bool) -> None:
    """1 + 2 of the atoms of H: exact with a constant, as for a property that does not grow with the molecule."""
    data = SimpleNamespace(train_set=part_of(y=[5.0, 1.0, np.nan, 1.0]), target=SimpleNamespace(extensive=extensive))
    values = {"z": np.array([1.0, 8, 8]), "atoms": np.array([2.0, 1]), "group": np.zeros(2)}
    values |= {"y_true": np.array([3.0, 1.0]), "y_error": np.array([0.5, -0.5]), "idx": np.array([0, 1])}
    ((row,), groups) = Predictions({"y": LABEL}, values, ("",), data).rows()
    mean, fit = row.baselines
    assert (mean.key, fit.key, groups) == ("mean", "composition", [])
    assert mean.errors.mae == pytest.approx(1e3 * (2 / 3 + 4 / 3) / 2)
    shifts = (2.5, 0.6) if extensive else (2.0, 0.0)
    constant = 0.0 if extensive else 1.0
    by_hand = np.abs([3.0 - shifts[0] - shifts[1] - constant, 1.0 - shifts[1] - constant]).mean()
    assert fit.errors.mae == pytest.approx(1e3 * by_hand)


def test_lone_atoms_have_a_row() -> None:
    structures = StructureArrays.of("a test", [1, 1], [29, 79], np.zeros((2, 3)), energy=[3.4, -2.4])
    lone = StructureDataset(structures, structure_edges(structures, 5.0))
    train = StructureArrays.of("a test", [1, 1], [29, 79], np.zeros((2, 3)), energy=[3.0, -2.4])
    potential = Potential(ToyNetwork(2, cutoff=5.0), [29, 79], {29: 3.5, 79: -2.5}).train()
    part = StructureDataset(train, structure_edges(train, 5.0))
    row = lone_row(potential, SimpleNamespace(train_set=part, lone_set=lone, eval_size=lambda part: 1))
    assert row.name == "energy of lone atoms"
    assert (row.errors.mae, row.errors.largest, row.baselines[0].errors.mae) == pytest.approx((100, 100, 200))
    assert potential.training


@each("best", [2.0, 0.0])
def test_other_predictors_are_as_many_times_worse(best: float) -> None:
    """Each has a line; a single one has a column."""
    baselines = [Baseline("mean", "mean of the training part", Errors(5.0, 6.0, 7.0)), Baseline("fit", "a fit", best)]
    baselines[1] = Baseline("composition", "a fit", Errors(1.0, 1.0, 1.0))
    row = Row(LABEL, " of x y", Errors(best, 3.0, 4.0), baselines)
    assert [cells[-1] for cells in table([row]).rows] == ["1", *(("2.50", "0.50") if best else ("-", "-"))]
    assert table([row._replace(baselines=baselines[:1])]).rows[0][1:] == ("meV", str(int(best)), "3", "4", "5")
    metrics = row.metrics()
    assert metrics["test_gap_in_air_of_x_y_mae_meV"] == best
    assert metrics["baseline_mean_of_x_y_rmse_meV"] == 6.0
    assert metrics["mae_ratio_to_mean_of_x_y"] == best / 5.0
    assert row._replace(baselines=baselines[:1]).metrics().keys() == {
        "test_gap_in_air_of_x_y_mae_meV",
        "test_gap_in_air_of_x_y_rmse_meV",
        "baseline_mean_of_x_y_mae_meV",
    }
