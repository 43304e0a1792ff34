"""Files of structures: names, units, virials, missing labels, archives, and files that are broken."""

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian, FixedLine, FixedPlane, FixScaled
from ase.io import write
from ase.units import Hartree, kcal, mol

from eqlayers.data.embedded import TRAJECTORY_UNITS, embedded_trajectory
from eqlayers.data.readers import read_structures
from eqlayers.errors import ConfigError, DataError

CELL = np.array([[4.0, 0, 0], [1.0, 5.0, 0], [0, 0.5, 6.0]])
VOLUME = 120.0


def frames(num: int = 3, **info) -> list[Atoms]:
    """Water in a cell, with labels under the names that are given."""
    rng = np.random.default_rng(0)
    made = []
    for row in range(num):
        atoms = Atoms("OH2", positions=rng.normal(size=(3, 3)), cell=CELL, pbc=True)
        for name, value in info.items():
            (atoms.arrays if "forc" in name else atoms.info)[name] = value(row)
        made.append(atoms)
    return made


def saved(tmp_path, made, name="set.xyz"):
    write(tmp_path / name, made)
    return tmp_path / name


def bare(atoms: Atoms) -> Atoms:
    """With its labels as results, as a trajectory keeps them, constraints applied or not."""
    other = atoms.copy()
    forces = other.arrays.pop("REF_forces")
    other.calc = SinglePointCalculator(other, energy=other.info.pop("REF_energy"), forces=forces)
    return other


def force(row: int) -> np.ndarray:
    return np.arange(9.0).reshape(3, 3) + row


def symmetric(row: int) -> np.ndarray:
    return np.array([[1.0, 0.1, 0.2], [0.1, 2.0, 0.3], [0.2, 0.3, 3.0]]) + row


@pytest.mark.parametrize(
    ("energy", "forces"), [("REF_energy", "REF_forces"), ("TotEnergy", "force"), ("dft_energy", "dft_forces")]
)
def test_usual_names(tmp_path, energy, forces):
    made = frames(**{energy: lambda row: -10.0 * row, forces: force, "config_type": lambda row: "ab"[row % 2]})
    arrays, report = read_structures(saved(tmp_path, made))
    assert arrays.energy.tolist() == [0.0, -10.0, -20.0]
    assert np.array_equal(arrays.forces, np.concatenate([force(row) for row in range(3)]))
    assert arrays.labels == ("energy", "forces")
    assert arrays.config_type.tolist() == ["a", "b", "a"]
    assert arrays.pbc.all()
    assert arrays.cell == pytest.approx(np.stack([CELL] * 3))
    assert arrays.pos == pytest.approx(np.concatenate([atoms.positions for atoms in made]), abs=1e-8)
    assert any(line.startswith(f"energy: {energy!r} in eV (taken for granted") for line in report)


def test_calculators(tmp_path):
    made = frames()
    for row, atoms in enumerate(made):
        atoms.calc = SinglePointCalculator(
            atoms, energy=row + 0.5, forces=force(row), stress=symmetric(row), dipole=[0.0, row, 1.0]
        )
    for name in ("set.xyz", "set.traj"):
        arrays, _ = read_structures(saved(tmp_path, made, name))
        assert arrays.energy.tolist() == [0.5, 1.5, 2.5]
        assert arrays.stress == pytest.approx(np.stack([symmetric(row) for row in range(3)]))
        assert arrays.dipole[:, 1].tolist() == [0, 1, 2]
        assert arrays.labels == ("energy", "forces", "stress", "dipole")


def test_what_calculators_leave_is_read(tmp_path):
    made = frames()
    for row, atoms in enumerate(made):
        results = {"energy": -3.0 * row, "free_energy": -3.0 * row, "energies": -row * np.ones(3), "forces": force(row)}
        atoms.calc = SinglePointCalculator(atoms, **results)
    arrays, report = read_structures(saved(tmp_path, made))
    assert arrays.energy.tolist() == [0.0, -3.0, -6.0]
    assert report[-1] == "not used: energies of atoms, free_energy"


@pytest.mark.parametrize("way", ["constraint", "move_mask"])
def test_forces_of_fixed_atoms_are_left_out(tmp_path, way):
    """ASE writes 0 for them; numbers other than 0 are kept, and zeros of atoms that move."""
    made = frames(2, REF_energy=lambda row: 1.0 * row, REF_forces=force)
    made[0].arrays["REF_forces"][:2] = 0.0
    made[1].arrays["REF_forces"][0] = 0.0
    if way == "constraint":
        made[0].set_constraint(FixAtoms([1, 2]))
        write(tmp_path / "set.traj", [bare(atoms) for atoms in made])
        arrays, report = read_structures(tmp_path / "set.traj")
    else:
        made[0].set_constraint(FixAtoms([1, 2]))
        write(tmp_path / "set.xyz", made, columns=["symbols", "positions", "REF_forces", "move_mask"])
        arrays, report = read_structures(tmp_path / "set.xyz")
    assert np.isnan(arrays.forces).all(axis=1).tolist() == [False, True, False, False, False, False]
    assert arrays.forces[2].tolist() == [6.0, 7.0, 8.0]
    held = "forces: left out of 1 atoms that are held, of which forces are 0 along that direction: "
    assert [line.removeprefix(held) for line in report if line.startswith(held)] == [
        "row 0" if way == "constraint" else "frame 0, line 1"
    ]


@pytest.mark.parametrize(
    "constraint",
    [
        FixCartesian([1], (True, False, False)), FixedLine(1, (1, 1, 0)), FixedPlane([1], (1, 2, 3)),
        FixScaled([1], (True, True, False)),
    ],
    ids=lambda constraint: type(constraint).__name__,
)  # fmt: skip
def test_forces_of_partly_held_atoms_are_left_out(tmp_path, constraint):
    """Programs write forces without the part along which an atom is held; with that part they are labels."""
    made = frames(2, REF_energy=lambda row: 1.0 * row, REF_forces=force)
    for atoms in made:
        atoms.set_cell([[5, 0, 1], [0, 6, 0], [1, 0, 7]])
        atoms.set_constraint(constraint)
    constraint.adjust_forces(made[0], made[0].arrays["REF_forces"])
    write(tmp_path / "set.traj", [bare(atoms) for atoms in made])
    arrays, report = read_structures(tmp_path / "set.traj")
    assert np.isnan(arrays.forces).all(axis=1).tolist() == [False, True, False, False, False, False]
    held = "forces: left out of 1 atoms that are held, of which forces are 0 along that direction: "
    assert [line.removeprefix(held) for line in report if line.startswith(held)] == ["row 0"]


def test_forces_that_are_nan_are_left_out(tmp_path):
    made = frames(3, REF_energy=lambda row: 1.0 * row, REF_forces=force)
    made[1].arrays["REF_forces"][2, 1] = np.nan
    made[2].arrays["REF_forces"][:] = np.nan
    arrays, report = read_structures(saved(tmp_path, made))
    assert np.flatnonzero(np.isnan(arrays.forces).any(axis=1)).tolist() == [5, 6, 7, 8]
    assert "forces: left out of 1 atoms of which forces are NaN: frame 1, line 6" in report
    made[0].arrays["REF_forces"][0, 0] = np.inf
    with pytest.raises(DataError, match="finite forces"):
        read_structures(saved(tmp_path, made))


def test_given_names_and_units(tmp_path):
    made = frames(energy=lambda row: 99.0, mine=float, my_forces=force, cell_stress=symmetric)
    file = saved(tmp_path, made)
    keys = {"energy": "mine", "forces": "my_forces", "stress": "cell_stress"}
    units = {"energy": "Hartree", "forces": "Hartree/Bohr", "stress": "GPa"}
    arrays, report = read_structures(file, keys, units)
    assert arrays.energy == pytest.approx(Hartree * np.arange(3))
    assert arrays.forces[0, 1] == pytest.approx(51.422067, rel=1e-6)
    assert arrays.stress[0, 0, 0] == pytest.approx(0.00624151, rel=1e-5)
    assert "energy: 'mine' in Hartree, of 3 structures" in report
    assert any(line.startswith("not used: ") and "energy" in line for line in report)
    without, _ = read_structures(file, {"energy": None, "forces": "my_forces"})
    assert without.labels == ("forces",)


def test_broken_files(tmp_path):
    file = saved(tmp_path, frames(energy=float, forces=force))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 3 // 5])
    with pytest.raises(DataError, match=r"can be read, got frame 1, line 10: could not assign tuple of length 2"):
        read_structures(file)
    broken = saved(tmp_path, frames(energy=float), "set.traj")
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(DataError, match=r"must be whole and of a format that ASE reads, got .* Make or fetch it again"):
        read_structures(broken)
    file.write_bytes(whole[:-4])  # a number that lost its last digits can be read
    with pytest.warns(UserWarning, match="does not end with a line break: the last number may be cut off"):
        read_structures(file)
    file.write_bytes(b"")
    with pytest.raises(DataError, match="must hold structures, got an empty file"):
        read_structures(file)
    with pytest.raises(DataError, match=r"path must .*got '.*nothing.xyz', which is none"):
        read_structures(tmp_path / "nothing.xyz")
    (tmp_path / "set.unknown").write_text("some text\n")
    with pytest.raises(DataError, match="of a format that ASE reads"):
        read_structures(tmp_path / "set.unknown")


def test_units_by_group(tmp_path):
    """A config_type counts more than the periodicity, and both more than the units of all."""
    made = frames(4, energy=lambda row: 2.0, forces=force, config_type=lambda row: "ab"[row % 2])
    del made[2].info["config_type"], made[3].info["config_type"]
    made[0].pbc = made[2].pbc = False
    groups = {"b": {"energy": "Hartree"}, "periodic": {"energy": "meV", "forces": "meV/Angstrom", "pos": "nm"}}
    units = {"energy": "kcal/mol", "groups": groups}
    file = saved(tmp_path, made)
    arrays, report = read_structures(file, units=units)
    size = kcal / mol
    np.testing.assert_allclose(arrays.energy, [2 * size, 2 * Hartree, 2 * size, 2e-3])
    for row, scale in enumerate([1.0, 1e-3, 1.0, 1e-3]):
        np.testing.assert_allclose(arrays.forces[arrays.atoms(row)], scale * force(row))
        np.testing.assert_allclose(arrays.pos[arrays.atoms(row)], (1 if scale == 1 else 10) * made[row].positions)
        np.testing.assert_allclose(arrays.cell[row], (1 if scale == 1 else 10) * CELL)
    assert "units of the group b: {'energy': 'Hartree'}" in report
    with pytest.raises(ConfigError, match=r"groups of units must be config_types of .*, got metal; there are a, b"):
        read_structures(file, units={"groups": {"metal": {"energy": "eV"}}})
    for wrong in ({"b": "eV"}, "eV", {"b": {"energy": "kcal"}}, {"b": {"x": "eV"}}):
        with pytest.raises(ConfigError, match="units"):
            read_structures(file, units={"groups": wrong})


def test_other_charges_and_spins_are_said(tmp_path):
    made = frames(energy=float, charge=lambda row: row % 2, spin=lambda row: 1)
    _, report = read_structures(saved(tmp_path, made))
    assert [line for line in report if line.startswith(("charge", "spin"))] == [
        "charge: 0, 1, which no network sees: alike structures have other energies; train on one"
    ]


def archive(tmp_path, **arrays):
    np.savez(tmp_path / "set.npz", **arrays)
    return tmp_path / "set.npz"


def test_rmd17(tmp_path):
    rng = np.random.default_rng(0)
    coords, forces, energies = rng.normal(size=(5, 3, 3)), rng.normal(size=(5, 3, 3)), rng.normal(size=5)
    z = np.array([8, 1, 1], np.uint8)
    file = archive(
        tmp_path, nuclear_charges=z, coords=coords, energies=energies, forces=forces, old_indices=np.arange(5)
    )
    arrays, report = read_structures(file)
    assert arrays.energy == pytest.approx(energies * kcal / mol)
    assert arrays.forces == pytest.approx(forces.reshape(15, 3) * kcal / mol)
    assert np.array_equal(arrays.pos, coords.reshape(15, 3))
    assert arrays.z.tolist() == [8, 1, 1] * 5
    assert any("'energies' in kcal/mol (taken for granted" in line for line in report)
    assert "not used: old_indices" in report
    in_ev, _ = read_structures(file, units={"energy": "eV"})
    assert np.array_equal(in_ev.energy, energies)
    assert np.array_equal(in_ev.forces, forces.reshape(15, 3))  # the unit of forces follows the unit of energies


def test_md17_must_say_its_units(tmp_path):
    arrays = {"z": np.array([1, 1]), "R": np.zeros((2, 2, 3)) + np.arange(6).reshape(2, 3), "E": np.ones((2, 1))}
    file = archive(tmp_path, F=np.zeros((2, 2, 3)), **arrays)
    with pytest.raises(ConfigError, match=r"units of energy and forces must be given for .*, got \[\]: archives with"):
        read_structures(file)
    structures, _ = read_structures(file, units={"energy": "kcal/mol", "forces": "kcal/mol/Angstrom"})
    assert structures.energy == pytest.approx([kcal / mol] * 2)
    lattice = np.array([[4.0, 1.0, 0], [0, 5.0, 0], [0, 0, 6.0]])
    file = archive(tmp_path, F=np.ones((2, 2, 3)), e_unit="eV", r_unit="Bohr", lattice=lattice, **arrays)
    structures, _ = read_structures(file)
    assert structures.energy.tolist() == [1.0, 1.0]
    assert structures.forces[0, 0] == pytest.approx(1 / 0.52917721)
    assert structures.cell[0, 1] == pytest.approx(np.array([1.0, 5.0, 0.0]) * 0.52917721)  # columns are vectors
    assert structures.pbc.all()


def test_broken_archives(tmp_path):
    file = archive(tmp_path, energies=np.ones(3))
    with pytest.raises(DataError, match="must have the keys nuclear_charges and coords, or z and R, got energies"):
        read_structures(file)
    file = archive(tmp_path, z=np.ones(3, int), R=np.zeros((2, 4, 3)))
    with pytest.raises(DataError, match=r"z and R of .* must be \[A\] integers and \[N, A, 3\], got \[3\] of int64"):
        read_structures(file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"must be a whole npz archive, got .* Make or fetch it again"):
        read_structures(file)


@pytest.mark.parametrize(
    ("name", "num", "atoms"), [("ethanol_md", 2000, 9), ("ethanol_nm", 1000, 9), ("aspirin_nm", 500, 21)]
)
def test_embedded_sets(name, num, atoms):
    arrays, _ = read_structures(embedded_trajectory(name), units=TRAJECTORY_UNITS)
    assert arrays.n_atoms.tolist() == [atoms] * num
    assert arrays.labels == ("energy", "forces", "dipole")
    with np.load(embedded_trajectory(name)) as file:
        assert np.array_equal(arrays.energy, file["E"])
        assert arrays.dipole == pytest.approx(file["dipole"] * 0.20819434, rel=1e-6)
