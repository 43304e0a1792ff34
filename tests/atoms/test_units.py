"""Units against numbers of the field, their dimensions, and texts that are none."""

import pytest

from eqlayers.atoms.units import DEFAULT_UNITS, read_units, unit_size
from eqlayers.errors import ConfigError
from tests.each import each


@each("quantity, unit", DEFAULT_UNITS.items())
def test_the_own_units_are_1(quantity, unit):
    assert unit_size(quantity, unit) == 1.0


@each(
    "quantity, unit, expected",
    [
        ("energy", "Hartree", 27.211386),
        ("energy", "kcal/mol", 0.0433641),
        ("energy", "kJ / mol", 0.01036427),
        ("energy", "Ry", 13.605693),
        ("forces", "Hartree/Bohr", 51.422067),
        ("forces", "kcal/mol/A", 0.0433641),
        ("forces", "kJ/mol/nm", 0.001036427),
        ("stress", "GPa", 0.00624151),
        ("stress", "kbar", 0.000624151),
        ("stress", "Ha/bohr^3", 183.631535),
        ("virial", "meV", 0.001),
        ("dipole", "Debye", 0.20819434),
        ("dipole", "e*a0", 0.52917721),
        ("pos", "nm", 10.0),
    ],
)
def test_sizes(quantity, unit, expected):
    assert unit_size(quantity, unit) == pytest.approx(expected, rel=1e-6)  # digits of the numbers above


@each("quantity, unit", [
    ("forces", "eV"), ("stress", "eV/Angstrom^2"), ("energy", "mol"), ("energy", "kcal"), ("energy", "kJ"),
    ("energy", "J"), ("energy", "eV/mol"), ("forces", "kcal/Angstrom"), ("energy", "kcal/mol/mol"),
])  # fmt: skip
def test_another_quantity(quantity, unit):
    with pytest.raises(ConfigError, match=rf"units of {quantity} must be of the kind .*, got '.*', which measures"):
        unit_size(quantity, unit)


@each("unit", ["", "foo", "eV//Angstrom", "eV Angstrom", "(eV)", "eV^", "1/eV"])
def test_no_units(unit):
    with pytest.raises(ConfigError, match=r"units of energy must be made of eV, .*, got .*\. Use these names"):
        unit_size("energy", unit)


def test_mappings():
    assert read_units(None) == {}
    assert read_units({"energy": "Ha"}) == {"energy": "Ha"}
    with pytest.raises(ConfigError, match=r"units must .*got 'eV'"):
        read_units("eV")
    with pytest.raises(ConfigError, match=r"units must be one of pos, energy, .*, got 'charge'"):
        read_units({"charge": "e"})
    with pytest.raises(ConfigError, match=r"units of energy must .*got 3"):
        read_units({"energy": 3})
    assert read_units({"groups": {}}) == {}
    groups = {"groups": {"metal": {"energy": "eV"}}}
    assert read_units({"energy": "kcal/mol", **groups}) == {"energy": "kcal/mol", **groups}
