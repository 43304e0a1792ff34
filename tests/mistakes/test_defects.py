"""Mistakes of some frames, of order, and of labels that were not computed; and right sets that look unusual."""

from dataclasses import replace

import numpy as np
import pytest

from eqlayers.data.plausible import check_parts, check_physics, check_shifts
from eqlayers.data.structures import StructureArrays
from tests.each import each

from .defects import DEFECTS, Defect, bad_rows, base, method, rows_times
from .mistakes import said_of
from .right import RIGHT, scan, with_all_electrons
from .sets import POOLS, shuffled, stored

#: Fields of the table that no check tells: 12 elements in 40 structures, and forces that no pair potential explains.
MISSED = {
    ("energies over number of atoms", "crystals"),
    ("energies over number of atoms", "alloys"),
    *((name, "crystals") for name in ("three of another method", "half of another method", "shear reversed")),
    *((name, "crystals") for name in ("three forces in Hartree/Bohr", "half of forces in Hartree/Bohr")),
    *((name, "crystals") for name in ("three gradients", "half gradients", "shear in VASP's order")),
    ("half gradients", "alloys"),
    ("half gradients", "aspirin"),
}


ALL = [(defect, name) for defect in DEFECTS for name in defect.sets if (defect.name, name) not in MISSED]
#: Each defect in one of its sets.
SOME = [
    cases[turn % len(cases)]
    for turn, defect in enumerate(DEFECTS)
    if (cases := [case for case in ALL if case[0] is defect])
]


def name_of(case: tuple[Defect, str]) -> str:
    return f"{case[0].name}, {case[1]}"


def find(defect: Defect, name: str) -> None:
    assert any(defect.said in sentence for sentence in said_of(defect.made(base(name))))


@each("case", SOME, ids=name_of)
def test_a_defect_is_found_and_named(case: tuple[Defect, str]) -> None:
    find(*case)


@pytest.mark.slow
@each("case", [case for case in ALL if case not in SOME], ids=name_of)
def test_a_defect_is_found_in_other_sets(case: tuple[Defect, str]) -> None:
    find(*case)


def only_remarks(name: str, size: int) -> None:
    said = said_of(RIGHT[name](size, 0))
    assert [sentence for sentence in said if not sentence.startswith("remark: force components")] == []


@each("name", RIGHT)
def test_right_sets_get_no_word_but_a_remark(name: str) -> None:
    """Large forces, energies of all electrons, forces that are 0 by symmetry, scans in random order."""
    only_remarks(name, 12)


@pytest.mark.slow
@each("name, size", [(name, size) for name in RIGHT for size in (6, 40)])
def test_right_sets_of_other_sizes(name: str, size: int) -> None:
    only_remarks(name, size)


@each("name, size, seed", [("crystals", 10, 25), ("minima", 30, 24)])
def test_draws_of_right_sets_that_look_wrong_by_chance(name: str, size: int, seed: int) -> None:
    """Cells that another order of axes explains better, and the only molecule of an element."""
    assert said_of(POOLS[name](size, seed)) == []


@each("number", [3, None])
def test_energies_of_alloys_of_seven_elements(number: int | None) -> None:
    """40 energies tell 7 energies of atoms, if the others are off by more than bonds give."""
    right = base("alloys")
    (said,) = [line for line in said_of(method(20.0, number)(right)) if "are far from" in line]
    assert f"{number or 20} of 40 energies" in said


def test_the_rows_are_named() -> None:
    right = base("ethanol")
    (said,) = check_physics(rows_times("energy", 0.5, 3)(right))
    rows = ", ".join(str(right.idx[row]) for row in bad_rows(right, 3))
    assert "3 of 40 energies are far from the others of their composition" in said
    assert f"ethanol_md.npz rows {rows}." in said


def test_another_method_in_another_file() -> None:
    """Structures of one of two files whose energies are off by 100 eV an atom."""
    new, old = (replace(base("molecules", 40, seed), file=np.full(40, name)) for seed, name in ((0, "a"), (1, "b")))
    old = replace(old, energy=old.energy - 100.0 * old.n_atoms, source="b")
    (said,) = [line for line in check_physics(StructureArrays.joined([new, old])) if "far from" in line]
    assert "Look for another method" in said
    assert said.count(" rows ") == 1


def test_energies_of_atoms_of_another_method() -> None:
    molecules = shuffled(stored("molecules"), 40)
    atoms = {number: -13.6 * number for number in molecules.species}
    (said,) = check_shifts(molecules, dict.fromkeys(molecules.species, -45000.0))
    assert "energies less the energies of free atoms (e0s) are +4.4" in said
    counts = molecules.counts(molecules.species)
    fitted = np.linalg.lstsq(counts, molecules.energy, rcond=None)[0]
    assert check_shifts(molecules, dict(zip(molecules.species, fitted, strict=True))) == []
    whole = with_all_electrons(molecules)
    assert len(check_shifts(whole, atoms)) == 1
    bound = {number: fitted[place] + 6.0 for place, number in enumerate(molecules.species)}
    assert check_shifts(molecules, bound) == [], "6 eV an atom are bonds"


def test_copies_and_missing_labels_are_named_by_file_and_row() -> None:
    right = replace(base("molecules", 40), file=np.repeat(["a.xyz", "b.xyz"], 20), idx=np.tile(np.arange(20), 2))
    again = right.take(np.r_[np.arange(40), 3, 25])
    rows = {"train": np.arange(30), "val": np.arange(30, 40), "test": np.array([40, 41])}
    (said,) = check_parts(again, rows)
    assert "2 of 2 test structures are in the training part as well" in said
    assert "a.xyz row 3; b.xyz row 5 as a.xyz row 3; b.xyz row 5" in said
    (said,) = check_parts(again, {"train": np.r_[np.arange(40), 40], "val": [], "test": []})
    assert "a.xyz row 3. Remove them" in said
    energy, forces = right.energy.copy(), right.forces.copy()
    energy[[2, 22]], forces[right.atoms(5)] = np.nan, np.nan
    said = check_parts(replace(right, energy=energy, forces=forces), {"train": np.arange(40), "val": [], "test": []})
    assert [line.split(": ")[1] for line in said] == ["a.xyz row 2; b.xyz row 2", "a.xyz row 5"]


def test_forces_that_are_0_by_symmetry_explain_nothing() -> None:
    """Noise of 1e-5 eV/Angstrom beside a stress of 0.1 eV/Angstrom^3."""
    assert 0 < np.abs(scan("MgO").forces).max() < 1e-3
    assert said_of(scan("MgO")) == []
