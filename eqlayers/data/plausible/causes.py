"""Causes of a label that is some number of times too large: units, conversions, signs, virials in place of stress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqlayers.units import unit_size

#: Labels as subjects of sentences.
SPOKEN = {"energy": "energies are", "forces": "forces are", "stress": "stress is"}
# unit: how rare it is; a mistake in one more label is as rare as 1
_UNITS = {
    "energy": {"kcal/mol": 0.0, "Hartree": 0.0, "kJ/mol": 0.1, "Rydberg": 0.3, "meV": 0.3},
    "forces": {
        "kcal/mol/Angstrom": 0.0,
        "Hartree/Bohr": 0.0,
        "kJ/mol/nm": 0.2,
        "kJ/mol/Angstrom": 0.2,
        "Rydberg/Bohr": 0.3,
        "eV/Bohr": 0.3,
        "meV/Angstrom": 0.3,
        "Hartree/Angstrom": 0.4,
        "kcal/mol/Bohr": 0.5,
    },
    "stress": {"GPa": 0.0, "kbar": 0.0, "Hartree/Bohr^3": 0.3, "bar": 0.5, "kcal/mol/Angstrom^3": 0.5},
}
# from one unit to another, of any label: numbers that were multiplied or divided once too often
_CONVERSIONS = {
    "Hartree to eV": unit_size("energy", "Hartree"),
    "eV to kcal/mol": 1 / unit_size("energy", "kcal/mol"),
    "eV to kJ/mol": 1 / unit_size("energy", "kJ/mol"),
    "Hartree to kcal/mol": unit_size("energy", "Hartree") / unit_size("energy", "kcal/mol"),
    "Hartree/Bohr to eV/Angstrom": unit_size("forces", "Hartree/Bohr"),
    "eV/Angstrom^3 to GPa": 1 / unit_size("stress", "GPa"),
}
_WRONG = {
    "energy": "of the wrong sign, as energies that are given up",
    "forces": "of the wrong sign, as the gradient",
    "stress": "of the wrong sign, as in files of VASP",
}
_SIGN = {"energy": 0.5, "forces": 0.0, "stress": 0.0}
_CONVERTED, _ALSO_SIGN, _DIVIDED_TWICE = 1.2, 0.3, 0.6


@dataclass(frozen=True)
class Cause:
    """One mistake in one label.

    Attributes:
        label: "energy", "forces" or "stress".
        factor: How many times too large the label is.
        said: What the label is: the end of a sentence that begins with one of ``SPOKEN``.
        fix: What to do in the file, a clause; empty where the unit is all.
        unit: The unit of the label, if that is the mistake.
        rarity: How rare the mistake is, 0 for the usual ones.
        power: Of the volume in Angstrom^3 that the stress is multiplied by before the factor holds.
    """

    label: str
    factor: float
    said: str
    fix: str = ""
    unit: str = ""
    rarity: float = 0.0
    power: int = 0


def causes(label: str) -> Iterator[Cause]:
    """All mistakes in a label that are known."""
    negate = f"negate the {'energies' if label == 'energy' else label} in the file"
    yield Cause(label, -1.0, _WRONG[label], negate, rarity=_SIGN[label])
    for unit, rarity in _UNITS[label].items():
        size = unit_size(label, unit)
        yield Cause(label, 1 / size, f"in {unit}", unit=unit, rarity=rarity)
        if label != "energy":
            yield Cause(label, -1 / size, f"in {unit} and {_WRONG[label]}", negate, unit, rarity + _ALSO_SIGN)
    for which, factor in _CONVERSIONS.items():
        for times, how, back in ((factor, "multiplied", "divide"), (1 / factor, "divided", "multiply")):
            said = f"{how} by {factor:.5g} once too often, as from {which}"
            fix = f"{back} by {factor:.5g} in the file, or correct data.units"
            yield Cause(label, times, said, fix, rarity=_CONVERTED)
    if label == "stress":
        by_name = "with their name in the file"
        virial = f"set data.keys: {{virial: NAME, stress: null}} {by_name}"
        stress = f"set data.keys: {{stress: NAME, virial: null}} {by_name}"
        yield Cause(label, -1.0, "a virial, which is minus the stress times the volume", virial, power=-1)
        yield Cause(label, 1.0, "multiplied by the volume", "divide by the volume in the file", rarity=0.1, power=-1)
        yield Cause(label, -1.0, "read from a virial that is a stress", stress, power=1)
        yield Cause(
            label, 1.0, "divided by the volume twice", "multiply by the volume in the file", "", _DIVIDED_TWICE, 1
        )
