"""Every mistake in every kind of structures, with its cause; the way out works; and no word on right structures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms

from eqlayers.data.readers import read_structures
from eqlayers.data.structures import StructureArrays

from .mistakes import MISTAKES, Mistake, in_units, said_of
from .page import MISSED, NAMED, OTHER, found
from .sets import alloys, argon, copper, in_order, minima, shuffled, stored, trajectory

#: Few structures of each kind, so that the tests are short; docs/howto/data_mistakes.md has more of them.
FEW = {
    "in order": lambda: trajectory("ethanol_md").take(np.arange(30)),
    "ethanol_md": lambda: shuffled(trajectory("ethanol_md"), 60),
    "ethanol_nm": lambda: shuffled(trajectory("ethanol_nm"), 40),
    "aspirin_nm": lambda: shuffled(trajectory("aspirin_nm"), 40),
    "molecules": lambda: stored("molecules"),
    "crystals": lambda: stored("crystals"),
    "copper": lambda: shuffled(copper(), 30),
    "argon": lambda: shuffled(argon(), 30),
}


def cases() -> list[Any]:
    """Each mistake in each set that can have it; all but one set for each mistake, in turn, are slow."""
    chosen = []
    for turn, mistake in enumerate(MISTAKES):
        names = [name for name in FEW if mistake.can_be_in(periodic=name in ("crystals", "copper", "argon"))]
        for place, name in enumerate(names):
            marks = [] if place == turn % len(names) else [pytest.mark.slow]
            chosen.append(pytest.param(mistake, name, id=f"{mistake.name}-{name}", marks=marks))
    return chosen


@pytest.mark.parametrize("name", FEW)
def test_right_structures_get_no_word(name: str) -> None:
    assert said_of(FEW[name]()) == []


@pytest.mark.parametrize(("mistake", "name"), cases())
def test_a_mistake_is_found(mistake: Mistake, name: str) -> None:
    assert found(mistake, FEW[name]()) in (NAMED, OTHER)


def test_few_frames_get_a_wide_range() -> None:
    """Ten frames whose energies change by 0.55 of the work, by chance."""
    assert said_of(in_order(10, 9)) == []


def test_ten_frames_in_order_tell_the_unit_of_energies() -> None:
    """Hydrogens move by 0.25 Angstrom and more in 5 fs."""
    unlike = in_units(("energy", "Hartree"))
    assert [found(unlike, in_order(10, seed)) for seed in (0, 1, 2)] == [NAMED] * 3


@pytest.mark.slow
def test_alloys_of_as_many_compositions_as_cells() -> None:
    fields = {mistake.name: found(mistake, shuffled(alloys(), 200)) for mistake in MISTAKES}
    assert [name for name, field in fields.items() if field == MISSED] == []


def test_the_words() -> None:
    (said,) = said_of(in_units(("energy", "kcal/mol")).made(stored("molecules")))
    assert said == (
        "energies are 23.5 times the energies of a pair potential fitted to the forces of 99 structures. "
        "The likely cause: energies are in kcal/mol. The fix: set data.units: {energy: kcal/mol}."
    )


def test_forces_and_stress_in_one_wrong_unit_are_told_from_stress_alone() -> None:
    right = stored("crystals")
    (said,) = said_of(replace(right, energy=right.energy / 27.211386, forces=right.forces / 51.422067))
    assert "The likely cause: energies are in Hartree and forces are in Hartree/Bohr." in said


def test_what_no_unit_explains() -> None:
    right = stored("molecules")
    said = said_of(replace(right, energy=1e9 * right.energy, forces=right.forces))[-1]
    assert "No unit or sign explains this. Look at the labels" in said


def test_energies_with_all_electrons() -> None:
    """Energies in Hartree of the first molecules of QM9 (B3LYP), at rest: no force and no trajectory tells."""
    rows = {"CH4": -40.47893, "NH3": -56.525887, "H2O": -76.404702, "C2H2": -77.308427, "HCN": -93.411888}
    molecules = [Atoms(formula, positions=np.outer(range(len(Atoms(formula))), [1.1, 0, 0])) for formula in rows]
    hartrees = StructureArrays.of(
        "QM9",
        [len(atoms) for atoms in molecules],
        np.concatenate([atoms.numbers for atoms in molecules]),
        np.concatenate([atoms.positions for atoms in molecules]),
        energy=list(rows.values()),
    )
    (said,) = said_of(hartrees)
    assert "times the energies of free atoms with all electrons. The likely cause: energies are in Hartree." in said
    assert said_of(replace(hartrees, energy=27.211386 * hartrees.energy)) == []
    assert said_of(minima().take(np.arange(300))) == []  # valence electrons alone


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        ({"energy": 23.060548}, {"units": {"energy": "kcal/mol"}}),
        ({"stress": 160.21766}, {"units": {"stress": "GPa"}}),
        ({"virial": -1.0}, {"keys": {"virial": "stress", "stress": None}}),
        ({"stress under virial": 1.0}, {"keys": {"stress": "virial", "virial": None}}),
    ],
    ids=["energy in kcal/mol", "stress in GPa", "virial under stress", "stress under virial"],
)
def test_the_fix_mends_the_mistake(wrong: dict[str, float], options: dict[str, Any], tmp_path: Path) -> None:
    (name, factor), right = wrong.popitem(), stored("crystals")
    ends, frames = np.cumsum(right.n_atoms), []
    for row, end in enumerate(ends.tolist()):
        atoms = slice(end - right.n_atoms[row], end)
        frame = Atoms(right.z[atoms], right.pos[atoms], cell=right.cell[row], pbc=True)
        energy, stress, volume = right.energy[row], right.stress[row], frame.get_volume()
        frame.info["REF_energy"] = energy * (factor if name == "energy" else 1.0)
        key = "virial" if name == "stress under virial" else "stress"
        frame.info[key] = stress * {"virial": factor * volume, "energy": 1.0}.get(name, factor)
        frame.arrays["REF_forces"] = right.forces[atoms]
        frames.append(frame)
    ase.io.write(tmp_path / "wrong.xyz", frames)
    structures, _ = read_structures(tmp_path / "wrong.xyz")
    (said,) = said_of(structures)
    assert f"data.{next(iter(options))}" in said
    structures, _ = read_structures(tmp_path / "wrong.xyz", **options)
    assert said_of(structures) == []


def bare(pos: list[list[float]], **labels: Any) -> StructureArrays:
    """One structure of copper."""
    return StructureArrays.of("bare", [len(pos)], [29] * len(pos), pos, **labels)


@pytest.mark.parametrize(
    "structures",
    [
        bare([[0.0, 0, 0]], energy=[0.0]),
        bare([[0.0, 0, 0]], energy=[-3.0], forces=np.zeros((1, 3))),
        bare([[0.0, 0, 0], [2.5, 0, 0]], forces=np.zeros((2, 3))),
        bare([[0.0, 0, 0], [2.5, 0, 0]], energy=[1.0], forces=[[-1.0, 0, 0], [1.0, 0, 0]]),
        bare([[0.0, 0, 0], [90.0, 0, 0]], energy=[1.0], forces=[[-1.0, 0, 0], [1.0, 0, 0]]),
        bare([[0.0, 0, 0], [2.5, 0, 0], [0, 2.5, 0]], forces=[[1.0, 0, 0], [-1.0, 0, 0], [np.nan] * 3]),
        bare([[0.0, 0, 0], [0.0, 0, 0]], energy=[1.0], forces=np.zeros((2, 3))),
        bare([[0.0, 0, 0], [1.8, 0, 0]], cell=np.eye(3)[None] * 3.6, pbc=[[1, 1, 1]], stress=np.zeros((1, 3, 3))),
    ],
    ids=["atom", "atom with forces", "at rest", "dimer", "far", "held", "one place", "stress alone"],
)
def test_too_little_to_tell(structures: StructureArrays) -> None:
    assert said_of(structures) == []
