"""The report of a tested potential: errors by element and group, the worst structures, parity by what tells apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from eqlayers.data import StructureArrays, StructureDataset, structure_edges
from eqlayers.models import Potential
from eqlayers.testing import ToyNetwork
from eqlayers.train import potential_report
from eqlayers.train.potential_report import parity, shares

pytestmark = pytest.mark.pictures


def test_structures_with_the_largest_errors_come_first() -> None:
    """Two structures of one and two atoms, in rows 7 and 5 of their file."""
    errors = {"energy_error": np.array([-0.001, 0.004]), "forces_error": np.array([[3.0, 4, 0], [0, 0, 1], [0, 2, 0]])}
    tested = potential_report.Tested(
        {"z": np.array([6, 1, 8]), "atoms": np.array([1, 2]), "group": np.zeros(2), "idx": np.array([7, 5]), **errors},
        ("",),
    )
    by_energy, by_force = potential_report.largest_errors(tested).blocks
    assert by_energy.rows == [("5", "HO", "2", "2000"), ("7", "C", "-1", "5000")]
    assert by_force.rows == [("7", "C", "-1", "5000"), ("5", "HO", "2", "2000")]


def test_no_energies_of_atoms_where_none_are_predicted() -> None:
    tested = potential_report.Tested({"z": np.array([1]), "energies": np.empty(0)}, ("",))
    assert potential_report.atomic_energies(tested, {1: 0.0}).blocks == []


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
    module = SimpleNamespace(judged=("energy", "forces"))
    fit = potential_report.Composition((1, 8), np.array([-1.9, -1.2]))
    rows = {row.name: row for row in potential_report._rows(module, values, fit)}
    assert list(rows) == ["energy", "energy per atom", "forces", "forces on H", "forces on O"]
    assert (rows["energy"].mae, rows["energy"].largest) == (pytest.approx(4), pytest.approx(6))
    assert rows["energy per atom"].mae == pytest.approx(2.5)
    assert rows["energy"].rmse == pytest.approx(20**0.5)
    assert rows["energy"].baseline == pytest.approx(200), "0.2 eV by either composition"
    assert rows["energy per atom"].baseline == pytest.approx(150)
    assert (rows["forces"].mae, rows["forces on H"].mae, rows["forces on O"].mae) == pytest.approx((2, 3, 1))
    assert rows["forces"].baseline == pytest.approx(150)
    (energy, forces) = potential_report._rows(module, values, fit, 0, " of warm")
    assert energy.baseline == pytest.approx(200), "a group of one structure has the baseline of the whole"
    assert (energy.name, forces.name, forces.mae) == ("energy of warm", "forces of warm", pytest.approx(1))


def test_the_baseline_is_fitted_to_the_training_part() -> None:
    """Energies of 2 and 3 eV an atom, which are exact; the last structure has no energy, and the test part others."""
    pos = np.zeros((7, 3)) + 3 * np.arange(7)[:, None]
    structures = StructureArrays.of("a test", [2, 1, 2, 2], [1, 1, 8, 1, 8, 8, 8], pos, energy=[4, 3, 9, np.nan])
    part = StructureDataset(structures, structure_edges(structures, 5.0), np.array([0, 1, 3]))
    fit = potential_report.Composition.of(part)
    assert fit(np.array([8.0, 1, 1, 8, 6]), np.array([2.0, 2, 1])) == pytest.approx([5, 5, 0])


def test_lone_atoms_have_a_row() -> None:
    structures = StructureArrays.of("a test", [1, 1], [29, 79], np.zeros((2, 3)), energy=[3.4, -2.4])
    lone = StructureDataset(structures, structure_edges(structures, 5.0))
    potential = Potential(ToyNetwork(2, cutoff=5.0), [29, 79], {29: 3.5, 79: -2.5}).train()
    fit = potential_report.Composition((29, 79), np.array([3.0, -2.4]))
    (row,) = potential_report._lone_rows(potential, SimpleNamespace(lone_set=lone, eval_size=lambda part: 1), fit)
    assert row[:2] == ("energy of lone atoms", "meV")
    assert (row.mae, row.largest, row.baseline) == pytest.approx((100, 100, 200))
    assert potential.training


def test_forces_have_a_picture_by_element_and_one_by_group() -> None:
    values = {"z": np.array([8.0, 1]), "atoms": np.array([1.0, 1]), "group": np.array([0.0, 1])}
    values |= {"forces_true": np.ones((2, 3)), "forces_error": np.zeros((2, 3))}
    values |= {"energy_true": np.array([1.0, np.nan]), "energy_error": np.array([0.5, np.nan])}
    tested = potential_report.Tested(values, ("warm", ""))
    legends = [
        [text.get_text() for text in figure.axes[0].get_legend().get_texts()] for figure in parity(tested, "forces", "")
    ]
    assert legends == [["H", "O"], ["no config_type", "warm"]]
    (figure,) = parity(tested, "energy", "")
    assert np.asarray(figure.axes[0].collections[0].get_offsets()).tolist() == [[1.0, 1.5]]
    assert parity(tested._replace(values={**values, "energy_true": np.full(2, np.nan)}), "energy", "") == []
    assert shares(np.array([8, 1, 1, 1])) == "H 75%, O 25%"
