"""Each mistake is found when it is made, and right data are left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.units import Bohr, GPa, Hartree, kcal, mol

from eqlayers.data.embedded import TRAJECTORIES, TRAJECTORY_UNITS, embedded_trajectory
from eqlayers.data.neighbors import structure_edges
from eqlayers.data.plausible import check_parts, check_physics, check_reach
from eqlayers.data.readers import read_structures
from eqlayers.data.structures import StructureArrays
from eqlayers.errors import DataError

KCAL = kcal / mol


def physics(structures: StructureArrays, cutoff: float = 5.0) -> list[str]:
    return check_reach(structures, structure_edges(structures, cutoff)) + check_physics(structures)


@pytest.fixture(scope="module")
def ethanol() -> StructureArrays:
    whole, _ = read_structures(embedded_trajectory("ethanol_md"), units=TRAJECTORY_UNITS)
    return whole.take(np.arange(200))


@pytest.fixture(scope="module")
def copper() -> StructureArrays:
    """Fifteen volumes with displaced atoms, by EMT."""
    frames = []
    for a in np.linspace(3.3, 4.0, 15):
        atoms = bulk("Cu", a=a, cubic=True)
        atoms.rattle(0.02, seed=int(100 * a))
        atoms.calc = EMT()
        frames.append((atoms.get_potential_energy(), atoms.get_stress(voigt=False), atoms.positions, atoms.cell.array))
    energy, stress, pos, cell = zip(*frames, strict=True)
    labels = {"energy": energy, "stress": stress}
    return StructureArrays.of("Cu", [4] * 15, [29] * 60, np.concatenate(pos), cell=cell, pbc=np.ones((15, 3)), **labels)


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_right_data_are_left_alone(name):
    structures, _ = read_structures(embedded_trajectory(name), units=TRAJECTORY_UNITS)
    assert physics(structures) == []


def test_right_stress_is_left_alone(copper):
    assert physics(copper) == []


@pytest.mark.parametrize(
    ("energy", "forces", "pos", "told"),
    [
        (1 / Hartree, 1, 1, "set data.units: {energy: Hartree}."),
        (1 / KCAL, 1, 1, "set data.units: {energy: kcal/mol}."),
        (1, Bohr / Hartree, 1, "set data.units: {forces: Hartree/Bohr}."),
        (1 / Hartree, Bohr / Hartree, 1, "set data.units: {energy: Hartree, forces: Hartree/Bohr}."),
        (1, 1, 1 / Bohr, "set data.units: {pos: Bohr}."),
        (1 / KCAL, 1 / KCAL, 1, "set data.units: {energy: kcal/mol, forces: kcal/mol/Angstrom}."),
        (1, 1 / KCAL, 1, "set data.units: {forces: kcal/mol/Angstrom}."),
    ],
)
def test_units(ethanol, energy, forces, pos, told):
    wrong = replace(ethanol, energy=ethanol.energy * energy, forces=ethanol.forces * forces, pos=ethanol.pos * pos)
    (said,) = physics(wrong)
    assert said.endswith(f"The fix: {told}")


def test_a_factor_that_energies_and_forces_share_is_seen_by_the_size_of_forces():
    """Without stress and bonds of nonmetals no ratio of two labels tells."""
    factors = []
    for number in range(30):
        atoms = bulk("Cu", a=3.4 + 0.02 * number, cubic=True) * (2, 2, 1)
        atoms.rattle(0.15, seed=number)
        atoms.calc = EMT()
        factors.append((atoms.get_potential_energy(), atoms.get_forces(), atoms.positions, atoms.cell.array))
    energy, forces, pos, cell = zip(*factors, strict=True)
    labels = {"energy": energy, "forces": np.concatenate(forces)}
    right = StructureArrays.of(
        "Cu", [16] * 30, [29] * 480, np.concatenate(pos), cell=cell, pbc=np.ones((30, 3)), **labels
    )
    assert check_physics(right) == []
    (said,) = check_physics(replace(right, energy=1e3 * right.energy, forces=1e3 * right.forces))[-1:]
    assert "force components have a root mean square of" in said


def test_signs(ethanol, copper):
    with pytest.raises(DataError, match=r"signs of ASE, got others: .* -0\.9\d+ times .* The fix: negate the forces"):
        physics(replace(ethanol, forces=-ethanol.forces))
    with pytest.raises(DataError, match=r"signs of ASE, got others: .* of the stress .* The fix: negate the stress"):
        physics(replace(copper, stress=-copper.stress))


def test_stress_is_judged_beside_what_forces_do():
    """Forty volumes near to each other: displacements change the energy more than a step of the volume does."""
    made = []
    for row in range(40):
        atoms = bulk("Cu", a=3.61 * (0.95 + 0.1 * row / 40), cubic=True) * (2, 1, 1)
        atoms.rattle(0.02, seed=row)
        atoms.calc = EMT()
        labels = (atoms.get_potential_energy(), atoms.get_stress(voigt=False), atoms.get_forces())
        made.append((*labels, atoms.positions, atoms.cell.array))
    energy, stress, forces, pos, cell = map(np.array, zip(*made, strict=True))
    labels = {
        "energy": energy,
        "stress": stress,
        "forces": forces.reshape(-1, 3),
        "cell": cell,
        "pbc": np.ones((40, 3)),
    }
    rattled = StructureArrays.of("Cu", [8] * 40, [29] * 320, pos.reshape(-1, 3), **labels)
    assert physics(rattled) == []
    with pytest.raises(DataError, match=r"signs of ASE, got others: .* The fix: negate the stress"):
        physics(replace(rattled, stress=-rattled.stress))
    (said,) = physics(replace(rattled, stress=rattled.stress / GPa))
    assert said.endswith("The fix: set data.units: {stress: GPa}.")


def test_units_of_stress(copper):
    (said,) = physics(replace(copper, stress=copper.stress / GPa))
    assert said.endswith("The fix: set data.units: {stress: GPa}.")


def test_net_forces(ethanol, copper):
    (said,) = [line for line in physics(replace(ethanol, forces=ethanol.forces + 0.1)) if "add up" in line]
    assert "the forces of structures without periods do not add up to 0" in said
    shifted = replace(copper, forces=np.ones((60, 3)))
    assert not any("add up" in line for line in physics(shifted))  # an outer field may hold a crystal


def test_unrelated_energies_are_not_judged(ethanol):
    mixed = replace(ethanol, energy=np.random.default_rng(0).permutation(ethanol.energy))
    assert physics(mixed) == []


def test_atoms_out_of_reach(ethanol):
    (said,) = physics(ethanol, cutoff=1.2)[:1]
    assert "have no neighbour within 1.2 Angstrom" in said
    apart = StructureArrays.of("x", [1, 2, 3], [1] * 6, np.outer([0, 0, 1, 0, 1, 9], [1.0, 0, 0]), idx=[5, 6, 7])
    (said,) = physics(apart, 3.0)
    assert said.startswith("1 atoms in 1 structures, x row 7, have no neighbour")


def test_copies(ethanol):
    rows = {"train": np.arange(100), "val": np.arange(100, 150), "test": np.arange(150, 200)}
    assert check_parts(ethanol, rows) == []
    said = check_parts(ethanol, rows | {"train": np.r_[np.arange(98), 3, 4]})
    assert said == [line for line in said if line.startswith("2 of 100 training structures are copies")]
    said = check_parts(ethanol, rows | {"test": np.arange(95, 145)})
    assert [line[:60] for line in said] == ["5 of 50 test structures are in the training part as well, to"]
    near = ethanol.pos.copy()
    near[:9] = np.round(near[9:18], 4) + 1e-7  # the first is the second but for rounding
    near[9:18] = np.round(near[9:18], 4)
    assert len(check_parts(replace(ethanol, pos=near), rows)) == 1


def test_another_cell_is_no_copy():
    cells = {"cell": [np.eye(3) * 3, np.eye(3) * 4], "pbc": np.ones((2, 3))}
    pair = StructureArrays.of("x", [1, 1], [1, 1], np.zeros((2, 3)), energy=[1, 2], **cells)
    assert check_parts(pair, {"train": np.arange(2), "val": [], "test": []}) == []


def test_unknown_species():
    water = StructureArrays.of("x", [1, 1, 1], [1, 8, 6], np.zeros((3, 3)), energy=np.ones(3))
    said = check_parts(water, {"train": np.array([0]), "val": np.array([0]), "test": np.array([1, 2])})
    assert any("species C, O are in the test part but in none of the 1 training structures" in s for s in said)
    assert not any("are in the val part but" in s for s in said)


def test_nothing_to_learn():
    bare = StructureArrays.of("x", [1], [1], np.zeros((1, 3)), stress=np.zeros((1, 3, 3)))
    with pytest.raises(
        DataError, match=r"forces, dipoles or polarizabilities, got labels \['stress'\]. Name them with keys="
    ):
        check_parts(bare, {"train": np.array([0]), "val": np.array([], int), "test": np.array([], int)})
