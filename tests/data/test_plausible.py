"""Each mistake is found when it is made, and right data are left alone."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.units import Bohr, GPa, Hartree, kcal, mol

from eqlayers.data.neighbors import structure_edges
from eqlayers.data.plausible import check_parts, check_physics, check_reach
from eqlayers.data.structures import StructureArrays
from eqlayers.errors import DataError
from tests.mistakes.sets import computed, trajectory, without_stress

KCAL = kcal / mol


def physics(structures: StructureArrays, cutoff: float = 5.0) -> list[str]:
    return check_reach(structures, structure_edges(structures, cutoff)) + check_physics(structures)


@pytest.fixture(scope="module")
def ethanol() -> StructureArrays:
    return trajectory("ethanol_md").take(np.arange(200))


def metals(lengths: Iterable[float], rattle: float, repeat: tuple[int, int, int] = (1, 1, 1)) -> StructureArrays:
    """Copper of some lattice constants with displaced atoms, by EMT."""

    def cells() -> Iterator[Atoms]:
        for row, a in enumerate(lengths):
            atoms = bulk("Cu", a=a, cubic=True) * repeat
            atoms.rattle(rattle, seed=row)
            yield atoms

    return computed("Cu", cells(), EMT())


@pytest.fixture(scope="module")
def copper() -> StructureArrays:
    """Fifteen volumes, without forces."""
    made = metals(np.linspace(3.3, 4.0, 15), 0.02)
    return replace(made, forces=np.full_like(made.forces, np.nan))


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
    right = without_stress(metals(3.4 + 0.02 * np.arange(30), 0.15, (2, 2, 1)))
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
    rattled = metals(3.61 * (0.95 + 0.1 * np.arange(40) / 40), 0.02, (2, 1, 1))
    assert physics(rattled) == []
    with pytest.raises(DataError, match=r"signs of ASE, got others: .* The fix: negate the stress"):
        physics(replace(rattled, stress=-rattled.stress))
    (said,) = physics(replace(rattled, stress=rattled.stress / GPa))
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
