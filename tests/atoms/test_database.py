"""Databases of ASE as schnetpack keeps them: labels beside the structures, units in the metadata, rows one by one."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ase")

from ase import Atoms
from ase.db import connect
from ase.units import Bohr, Hartree, kcal, mol

from eqlayers.atoms.database import database_structures, database_units, size_of_unit
from eqlayers.atoms.structure_files import AtomsFrame, structures_of
from eqlayers.data.readers import read_structures
from eqlayers.errors import ConfigError
from tests.each import each


def test_a_database_of_schnetpack(tmp_path: Path) -> None:
    """Labels lie beside the structures, as batches of one, with their units in the metadata."""
    with connect(tmp_path / "own.db") as database:
        database.metadata = {
            "_property_unit_dict": {"energy": "kcal/mol", "forces": "kcal/mol/Ang", "charge": "e"},
            "_distance_unit": "Bohr",
            "atomrefs": {},
        }
        for shift in (0.0, 0.1):
            atoms = Atoms("OH2", positions=[[0, 0, shift], [0, 1.8, 0], [1.7, 0, 0]])
            data = {"energy": np.array([-10.0 - shift]), "forces": np.full((3, 3), shift), "charge": np.array([0.0])}
            database.write(atoms, data=data | {"dipole_moment": np.ones((1, 3))})
    structures, report = read_structures(tmp_path / "own.db")
    assert structures.energy.ravel().tolist() == pytest.approx([-10.0 * kcal / mol, -10.1 * kcal / mol])
    assert structures.forces.reshape(2, 3, 3)[1] == pytest.approx(np.full((3, 3), 0.1 * kcal / mol))
    assert structures.pos.reshape(2, 3, 3)[0, 1, 1] == pytest.approx(1.8 * Bohr)
    assert "energy: 'energy' in kcal/mol, of 2 structures" in report
    other, _ = read_structures(tmp_path / "own.db", keys={"dipole": "dipole_moment"}, units={"energy": "eV"})
    assert other.energy.ravel().tolist() == pytest.approx([-10.0, -10.1])
    assert other.dipole.reshape(2, 3) == pytest.approx(np.ones((2, 3)))
    with connect(tmp_path / "own.db") as database:
        database.metadata = {"_property_unit_dict": {"energy": "energies"}}
    with pytest.raises(ConfigError, match=r"units in the metadata of .*own.db must be known ones: .*got 'energies'"):
        read_structures(tmp_path / "own.db")
    assert read_structures(tmp_path / "own.db", units={"energy": "eV"})[0].energy.ravel()[0] == pytest.approx(-10.0)


def test_units_of_a_database_belong_to_names(tmp_path: Path) -> None:
    """And nothing that is not read keeps a database from being read."""
    with connect(tmp_path / "own.db") as database:
        database.metadata = {"_property_unit_dict": {"energy": "Hartree", "REF_energy": "kcal/mol", "charge": "1"}}
        for atoms in (Atoms("OH2", positions=[[0, 0, 0], [0, 1.8, 0], [1.7, 0, 0]]), Atoms("O")):
            count = len(atoms)
            data = {"REF_energy": np.array([-10.0]), "forces": np.ones((1, count, 3)), "history": [[1], [1, 2]]}
            database.write(atoms, data=data | {"dipole": np.ones((1, 3))})
    arrays, report = read_structures(tmp_path / "own.db")
    assert arrays.energy.ravel().tolist() == pytest.approx([-10.0 * kcal / mol] * 2)
    assert arrays.forces.shape == (4, 3)
    assert "energy: 'REF_energy' in kcal/mol, of 2 structures" in report
    with connect(tmp_path / "own.db") as database:
        database.metadata = {"_property_unit_dict": None}
    assert read_structures(tmp_path / "own.db")[0].energy.ravel()[0] == pytest.approx(-10.0)


SLICES = [slice(None), slice(1, 3), slice(3, None), slice(None, None, 2), slice(None, None, -1), slice(4, 4)]


@each("which", [2, -1, *SLICES])
def test_rows_are_chosen_as_of_a_list(which: int | slice, tmp_path: Path) -> None:
    with connect(tmp_path / "own.db") as database:
        for number in range(4):
            database.write(Atoms("H"), number=number, data={"forces": np.full((1, 1, 3), number)})
    wanted = [0, 1, 2, 3][which]
    found = [one for one in structures_of(tmp_path / "own.db", which) if isinstance(one, AtomsFrame)]
    assert [int(one.atoms.info["number"]) for one in found] == (wanted if isinstance(wanted, list) else [wanted])
    assert [one.frame for one in found] == (wanted if isinstance(wanted, list) else [which])
    assert all(one.atoms.info["forces"].shape == (1, 3) for one in found)
    (tmp_path / "own.db").unlink()


def test_what_is_no_database_has_no_units_and_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("no database")
    for name in ("none.db", "empty.db", "text.db"):
        assert database_units(tmp_path / name) == {}
    with pytest.raises(OSError, match="no database, but an empty file"):
        list(database_structures(tmp_path / "empty.db"))
    assert not (tmp_path / "none.db").exists()
    assert size_of_unit(tmp_path / "own.db", "energy", "Hartree") == Hartree
    with pytest.raises(ConfigError, match=r"units in the metadata of .*own\.db must"):
        size_of_unit(tmp_path / "own.db", "energy", "Bohr")
