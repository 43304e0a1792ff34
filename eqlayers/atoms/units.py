"""Labels in files of structures: usual names, and units, which become eV, Angstrom and elementary charges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ase import units as ase_units

from ..core.checks import check_choice, check_type
from ..core.errors import ConfigError

__all__ = ["DEFAULT_UNITS", "OPEN", "PERIODIC", "read_units", "unit_of", "unit_size"]

PERIODIC, OPEN = "periodic", "nonperiodic"  # groups of structures

#: Quantity -> unit inside the package.
DEFAULT_UNITS = {
    "pos": "Angstrom",
    "energy": "eV",
    "forces": "eV/Angstrom",
    "stress": "eV/Angstrom^3",
    "virial": "eV",
    "dipole": "e*Angstrom",
    "polarizability": "Angstrom^3",
}
#: ASE's name of the electronic free energy, whose derivatives are the forces if occupations are smeared.
FREE = "free_energy"
#: Label -> recognised names in files of structures.
KEYS: dict[str, tuple[str, ...]] = {
    "energy": ("energy", "Energy", "REF_energy", "dft_energy", "DFT_energy", "TotEnergy", "energies", "E"),
    "forces": ("forces", "force", "Forces", "REF_forces", "dft_forces", "dft_force", "DFT_forces", "F"),
    "stress": ("stress", "REF_stress", "dft_stress", "DFT_stress"),
    "virial": ("virial", "virials", "REF_virial", "REF_virials", "dft_virial", "dft_virials", "DFT_virial"),
    "dipole": ("dipole", "REF_dipole", "dft_dipole", "DFT_dipole"),
    "polarizability": ("polarizability", "REF_polarizability", "dft_polarizability", "DFT_polarizability"),
    "y": (),  # the property that the user names
    "config_type": ("config_type",),
}
#: Keys of facts of a saved potential: names and units of labels in its training files.
LABEL_NAMES, LABEL_UNITS = "names of labels", "units of labels"
#: Dimensions as powers of energy, length, charge and amount of substance: joules and calories are only used per mole.
_ENERGY, _LENGTH, _CHARGE, _MOLES, _OF_MOLES = (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 0, 0, 1)
# name: size in ASE's units, dimension
_UNITS: dict[str, tuple[float, tuple[int, ...]]] = {
    "eV": (1.0, _ENERGY),
    "meV": (1e-3, _ENERGY),
    "Hartree": (ase_units.Hartree, _ENERGY),
    "Rydberg": (ase_units.Rydberg, _ENERGY),
    "kcal": (ase_units.kcal, _OF_MOLES),
    "kJ": (ase_units.kJ, _OF_MOLES),
    "J": (ase_units.J, _OF_MOLES),
    "mol": (ase_units.mol, _MOLES),
    "Angstrom": (1.0, _LENGTH),
    "Bohr": (ase_units.Bohr, _LENGTH),
    "nm": (ase_units.nm, _LENGTH),
    "GPa": (ase_units.GPa, (1, -3, 0, 0)),
    "kbar": (1e3 * ase_units.bar, (1, -3, 0, 0)),
    "bar": (ase_units.bar, (1, -3, 0, 0)),
    "e": (1.0, _CHARGE),
    "Debye": (ase_units.Debye, (0, 1, 1, 0)),
}
_SAME = {"Ha": "Hartree", "Eh": "Hartree", "Ry": "Rydberg", "A": "Angstrom", "Ang": "Angstrom", "Å": "Angstrom"}
_SAME |= {"a0": "Bohr", "bohr": "Bohr", "hartree": "Hartree", "angstrom": "Angstrom", "D": "Debye", "debye": "Debye"}


def unit_size(quantity: str, unit: Any) -> float:
    """The factor from a unit to eV, Angstrom and elementary charges.

    Args:
        quantity: One of ``DEFAULT_UNITS``.
        unit: A product of names: eV, meV, Hartree, Rydberg, kcal, kJ, J, mol, Angstrom, Bohr, nm, GPa, kbar, bar, e,
            Debye; "/" divides by the name that follows, "^3" is a power.

    Raises:
        ConfigError: A name is unknown, or the unit measures another quantity.

    Example:
        >>> unit_size("energy", "meV"), round(unit_size("forces", "Hartree/Bohr"), 4)
        (0.001, 51.4221)
    """
    check_choice("units", quantity, DEFAULT_UNITS)
    text = check_type(f"units of {quantity}", unit, str, f"a text such as {DEFAULT_UNITS[quantity]!r}", "Pass a text.")
    size, dimension = _parsed(quantity, text)
    if dimension != _parsed(quantity, DEFAULT_UNITS[quantity])[1]:
        raise ConfigError(
            f"units of {quantity} must be of the kind {DEFAULT_UNITS[quantity]}, got {unit!r}, which measures "
            "something else. Write for example 'Hartree/Bohr' for forces, and 'kcal/mol', not 'kcal', for energies."
        )
    return size


def _parsed(quantity: str, unit: str) -> tuple[float, list[int]]:
    """The size of a unit in eV, Angstrom and elementary charges, and its dimension."""
    size, dimension = 1.0, [0, 0, 0, 0]
    for factor_text in re.split(r"(?=[*/])", f"*{unit.replace(' ', '')}")[1:]:
        parsed = re.fullmatch(r"([*/])([^\W\d_]+\d?)(?:\^(\d))?", factor_text)
        sign, name, power = parsed.groups() if parsed else ("", factor_text, None)
        known_name = _SAME.get(name, name)
        if known_name not in _UNITS:
            names = ", ".join([*_UNITS, *_SAME])
            raise ConfigError(f"units of {quantity} must be made of {names}, got {unit!r}. Use these names.")
        times = (-1 if sign == "/" else 1) * int(power or 1)
        factor, powers = _UNITS[known_name]
        size *= factor**times
        dimension = [total + times * single for total, single in zip(dimension, powers, strict=True)]
    return size, dimension


def unit_of(units: Mapping[str, Any], quantity: str, group: str, periodic: bool) -> str:
    """Unit of a label: by the group (config_type) of its structure, else by periodicity, else the common one.

    Example:
        >>> unit_of({"energy": "Ha", "groups": {"periodic": {"energy": "eV"}}}, "energy", "bulk", True)
        'eV'
    """
    groups = units.get("groups", {})
    of = next((name for name in (group, PERIODIC if periodic else OPEN) if quantity in groups.get(name, ())), None)
    return str(units.get(quantity, DEFAULT_UNITS[quantity]) if of is None else groups[of][quantity])


def read_units(units: Any) -> dict[str, Any]:
    """Check units by quantity; ``groups`` holds units by config_type, or "periodic", "nonperiodic"; see `unit_of`.

    Raises:
        ConfigError: ``units`` is no mapping, or has an unknown quantity or unit.
    """
    fix = "Pass units={'energy': 'Hartree', 'forces': 'Hartree/Bohr'}."
    what = "a mapping from quantity to unit"
    checked = dict(check_type("units", {} if units is None else units, Mapping, what, fix))
    groups = check_type("units.groups", checked.pop("groups", {}), Mapping, "a mapping from group to units", fix)
    of_groups = {name: dict(check_type(f"units.groups.{name}", of, Mapping, what, fix)) for name, of in groups.items()}
    for mapping in (checked, *of_groups.values()):
        for quantity, unit in mapping.items():
            unit_size(quantity, unit)
    return {**checked, **({"groups": of_groups} if of_groups else {})}
