"""Labels of files of structures: names, units, virials that become stress, values that are missing or no labels."""

from pathlib import Path

import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

from eqlayers.data.readers import read_structures
from eqlayers.errors import ConfigError, DataError
from tests.data.test_readers import VOLUME, force, frames, saved, symmetric


@pytest.mark.parametrize("shape", [(3, 3), (9,)])
def test_virials_become_stress(tmp_path, shape):
    made = frames(energy=float, virial=lambda row: symmetric(row).reshape(shape))
    arrays, report = read_structures(saved(tmp_path, made))
    assert arrays.stress == pytest.approx(-np.stack([symmetric(row) for row in range(3)]) / VOLUME)
    assert "stress: -virial / volume, of 3 structures" in report


def test_stress_and_virials_complete_each_other(tmp_path):
    made = frames(REF_stress=symmetric, REF_virial=lambda row: -VOLUME * symmetric(row))
    del made[0].info["REF_stress"], made[1].info["REF_virial"]
    arrays, report = read_structures(saved(tmp_path, made))
    assert arrays.stress == pytest.approx(np.stack([symmetric(row) for row in range(3)]))
    assert "stress: -virial / volume, of 1 structures" in report


def test_stress_and_virials_that_differ_are_refused(tmp_path):
    made = frames(REF_stress=symmetric, REF_virial=lambda row: (-VOLUME if row else VOLUME) * symmetric(row))
    message = r"got a mean stress of 2 and -2 eV/Angstrom\^3 in frame 0, line 1, and others in 1 structures"
    with pytest.raises(DataError, match=r"stress and virial of .* must agree, stress = -virial / volume, " + message):
        read_structures(saved(tmp_path, made))
    left, _ = read_structures(saved(tmp_path, made), {"virial": None})
    assert left.stress[0] == pytest.approx(symmetric(0))


def test_stress_without_periods_comes_with_its_cell(tmp_path):
    made = frames(REF_stress=symmetric)
    for atoms in made:
        atoms.pbc = False
    arrays, _ = read_structures(saved(tmp_path, made))
    assert not arrays.pbc.any()
    assert arrays.has_cells


def test_zeros_without_a_cell_are_no_stress(tmp_path):
    made = frames(REF_stress=lambda row: row * symmetric(row), REF_virial=lambda row: -row * VOLUME * symmetric(row))
    made[0].set_cell(None)
    made[0].pbc = False
    arrays, report = read_structures(saved(tmp_path, made))
    assert np.isnan(arrays.stress[:, 0, 0]).tolist() == [True, False, False]
    for name in ("stress", "virial"):
        assert f"{name}: left out of 1 structures without a cell, where it is 0" in report
    made[0].info["REF_stress"] = np.eye(3)
    with pytest.raises(DataError, match=r"a cell with a volume for stress; 1 of 3 structures .* frame 0, line 1;"):
        read_structures(saved(tmp_path, made))


@pytest.mark.parametrize(
    "matrix",
    [[[2, 0.01, 0], [0, 2, 0.01], [0, 0, 2]], [[2, 0, 0], [0, 2, 0], [1, 0.5, 2]], [[2, 0, 1], [0, 2, 0], [0.5, 0, 2]]],
)
def test_half_a_matrix_is_refused(tmp_path, matrix):
    made = frames(energy=float, polarizability=lambda row: np.array(matrix, dtype=float))
    with pytest.raises(DataError, match=r"'polarizability' in frame 0, line 1 of .* must"):
        read_structures(saved(tmp_path, made))


def test_six_numbers_of_a_polarizability_have_no_usual_order(tmp_path):
    path = saved(tmp_path, frames(energy=float, polarizability=lambda row: np.arange(6.0)))
    with pytest.raises(
        DataError, match=r"'polarizability' in frame 0, line 1 of .* must be numbers \[3, 3\], got array"
    ):
        read_structures(path)


def test_noise_of_matrices_is_averaged(tmp_path):
    matrix = np.array([[2, 0.1, 0], [0.11, 2, 0], [0, 0, 2]])
    arrays, _ = read_structures(saved(tmp_path, frames(polarizability=lambda row: matrix)))
    assert arrays.polarizability[0] == pytest.approx(0.5 * (matrix + matrix.T))


def test_two_energies_are_said(tmp_path):
    """Energies extrapolated to no smearing are not those whose slopes the forces are."""
    made = frames(2, REF_forces=force)
    for row, atoms in enumerate(made):
        atoms.calc = SinglePointCalculator(atoms, energy=-3.0 * row, free_energy=-3.0 * row - 0.03 * row)
    arrays, report = read_structures(saved(tmp_path, made))
    assert arrays.energy.tolist() == [0.0, -3.0]
    assert any(line.startswith("energy: differs from 'free_energy' by up to 0.01 per atom") for line in report)
    arrays, report = read_structures(saved(tmp_path, made), keys={"energy": "free_energy"})
    assert arrays.energy.tolist() == pytest.approx([0.0, -3.03])
    assert not any("differs from" in line for line in report)
    for atoms in made:
        atoms.calc = SinglePointCalculator(atoms, free_energy=-5.0)
    alone, report = read_structures(saved(tmp_path, made))
    assert alone.energy.tolist() == [-5.0, -5.0]
    assert not any("differs from" in line for line in report)


def test_virials_need_a_cell(tmp_path):
    made = frames(energy=float, virial=symmetric)
    made[1].set_cell(None)
    made[1].pbc = False
    with pytest.raises(DataError, match=r"a cell with a volume for virial; 1 of 3 structures .* frame 1, line 6;"):
        read_structures(saved(tmp_path, made))


def test_missing_labels_are_nan(tmp_path):
    made = frames(4, energy=float, forces=force)
    del made[2].info["energy"], made[1].arrays["forces"]
    arrays, report = read_structures(saved(tmp_path, made))
    assert np.isnan(arrays.energy).tolist() == [False, False, True, False]
    assert np.isnan(arrays.forces).any(axis=1).reshape(4, 3).all(axis=1).tolist() == [False, True, False, False]
    assert any(line.startswith("energy:") and line.endswith("of 3 structures") for line in report)


def test_two_names_for_one_label(tmp_path):
    made = frames(REF_energy=float, TotEnergy=float)
    assert read_structures(saved(tmp_path, made))[0].energy.tolist() == [0, 1, 2]
    made[1].info["TotEnergy"] = 7.0
    with pytest.raises(
        DataError, match=r"different values under REF_energy and TotEnergy in frame 1, line 6\. Say which"
    ):
        read_structures(saved(tmp_path, made))
    assert read_structures(tmp_path / "set.xyz", {"energy": "TotEnergy"})[0].energy[1] == 7.0


def test_what_labels_must_be(tmp_path):
    with pytest.raises(DataError, match="expected finite energy; 1 of 3 structures do not have that, frame 1, line 6"):
        read_structures(saved(tmp_path, frames(REF_energy=lambda row: np.nan if row == 1 else 1.0)))
    with pytest.raises(
        DataError, match="frame 1, line 6; repair the values, or leave 'REF_energy' out of these structures"
    ):
        read_structures(tmp_path / "set.xyz")
    with pytest.raises(DataError, match=r"or train without energy with keys=\{'energy': None\}"):
        read_structures(saved(tmp_path, frames(energy=lambda row: np.nan)))
    file = saved(tmp_path, frames(REF_stress=lambda row: symmetric(row) + (np.nan if row == 2 else 0.0)))
    with pytest.raises(DataError, match=r"finite stress; 1 of 3 .* frame 2, line 11; repair .* leave 'REF_stress' out"):
        read_structures(file)
    with pytest.raises(DataError, match=r"'REF_energy' in frame 0, line 1 of .* must .*got 'abc'"):
        read_structures(saved(tmp_path, frames(REF_energy=lambda row: "abc")))
    with pytest.raises(DataError, match=r"'dipole' in frame 0, line 1 of .* must be numbers \[3\]"):
        read_structures(saved(tmp_path, frames(tag=float, dipole=lambda row: np.zeros(4))), {"dipole": "dipole"})
    with pytest.raises(DataError, match=r"keys of energy must be a name in .*, got 'nothing'; it has .*REF_energy"):
        read_structures(saved(tmp_path, frames(REF_energy=float)), {"energy": "nothing"})
    with pytest.raises(ConfigError, match=r"keys must be one of energy, forces, .*, got 'energies'"):
        read_structures(tmp_path / "set.xyz", {"energies": "E"})
    with pytest.raises(ConfigError, match="keys of energy must"):
        read_structures(tmp_path / "set.xyz", {"energy": 3})


def test_one_mask_under_two_names(tmp_path: Path) -> None:
    made = frames(2, REF_energy=lambda row: 1.0 * row, REF_forces=force)
    for atoms in made:
        atoms.arrays["REF_forces"][1] = np.nan
        atoms.arrays["dft_forces"] = atoms.arrays["REF_forces"].copy()
    arrays, _ = read_structures(saved(tmp_path, made))
    assert np.isnan(arrays.forces).any(axis=1).tolist() == [False, True, False] * 2
