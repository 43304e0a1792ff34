"""Mistakes in labels, as files of users have them, and what must be said of each."""

from dataclasses import dataclass, replace

import numpy as np

from eqlayers.atoms.units import unit_size
from eqlayers.data.plausible import check_physics
from eqlayers.data.structures import StructureArrays
from eqlayers.errors import DataError


@dataclass(frozen=True)
class Mistake:
    """False alarms: sentences on right structures.

    Attributes:
        name: For tables.
        factors: What labels are multiplied by.
        cause: Words that the text must have, one of them for each cause that the numbers cannot tell apart.
        power: Of the volume that the stress is multiplied by as well.
    """

    name: str
    factors: dict[str, float]
    cause: tuple[str, ...]
    power: int = 0

    def can_be_in(self, periodic: bool) -> bool:
        """Whether structures with energies and forces, and with stress if they are periodic, can have it."""
        return "pos" not in self.factors if periodic else "stress" not in self.factors  # a cell has a unit, too

    def applies(self, structures: StructureArrays) -> bool:
        """Whether the structures have all labels that are wrong."""
        labelled = set(self.factors) - {"pos"} <= set(structures.labels)
        return labelled and self.can_be_in(bool(structures.pbc.any()))

    def made(self, structures: StructureArrays) -> StructureArrays:
        """The structures with the mistake."""
        wrong = {label: factor * getattr(structures, label) for label, factor in self.factors.items()}
        if self.power:
            volume = np.abs(np.linalg.det(structures.cell))[:, None, None]
            wrong["stress"] = wrong["stress"] * volume**self.power
        return replace(structures, **wrong)


def in_units(*units: tuple[str, str]) -> Mistake:
    """Labels in units that were not named."""
    factors = {label: 1 / unit_size(label, unit) for label, unit in units}
    said = " and ".join(f"{'energies' if label == 'energy' else label} in {unit}" for label, unit in units)
    key = ", ".join(f"{label}: {unit}" for label, unit in units)
    return Mistake(said, factors, (f"data.units: {{{key}}}", f"may be in {units[0][1]}")[: 3 - len(units)])


def times(label: str, factor: float, *others: str) -> Mistake:
    """A label that was multiplied once too often, or divided where the factor is less than 1."""
    said = f"{max(factor, 1 / factor):.5g}"
    how, name = ("×", "multiplied") if factor > 1 else ("÷", "divided")
    subject = "energies" if label == "energy" else label
    return Mistake(
        f"{subject} {how} {said[:5].rstrip('.')}", {label: factor}, (f"{name} by {said} once too often", *others)
    )


_EV, _KCAL, _KJ = unit_size("energy", "Hartree"), unit_size("energy", "kcal/mol"), unit_size("energy", "kJ/mol")
_FORCE, _GPA = unit_size("forces", "Hartree/Bohr"), unit_size("stress", "GPa")
KCALS, HARTREES = ("in kcal/mol",), ("in Hartree", "in Rydberg/Bohr")
MISTAKES = [
    in_units(("energy", "kcal/mol")),
    in_units(("energy", "kJ/mol")),
    in_units(("energy", "Hartree")),
    times("energy", _EV, *KCALS),
    times("energy", _KCAL, *HARTREES),
    times("energy", _KJ),
    times("energy", _EV / _KCAL, "in meV"),
    times("energy", _KCAL / _EV),
    in_units(("forces", "kcal/mol/Angstrom")),
    in_units(("forces", "Hartree/Bohr")),
    in_units(("forces", "kJ/mol/Angstrom")),
    in_units(("forces", "kJ/mol/nm")),
    times("forces", _FORCE),
    times("forces", _EV, *KCALS),
    times("forces", _KCAL, *HARTREES),
    times("forces", _KJ),
    times("forces", _EV / _KCAL, "in kJ/mol/nm"),
    times("forces", _KCAL / _EV),
    Mistake("forces, wrong sign", {"forces": -1.0}, ("forces are of the wrong sign",)),
    Mistake("gradient in Hartree/Bohr", {"forces": -1 / _FORCE}, ("forces are in Hartree/Bohr and of the wrong sign",)),
    in_units(("energy", "kcal/mol"), ("forces", "kcal/mol/Angstrom")),
    in_units(("energy", "Hartree"), ("forces", "Hartree/Bohr")),
    Mistake("positions in Bohr", {"pos": 1 / unit_size("pos", "Bohr")}, ("data.units: {pos: Bohr}",)),
    in_units(("stress", "GPa")),
    in_units(("stress", "kbar")),
    times("stress", _GPA, "in Hartree/Bohr^3"),
    Mistake("stress, wrong sign", {"stress": -1.0}, ("stress is of the wrong sign",)),
    Mistake(
        "stress in kbar, sign of VASP",
        {"stress": -1 / unit_size("stress", "kbar")},
        ("stress is in kbar and of the wrong sign",),
    ),
    Mistake("virial under stress", {"stress": -1.0}, ("stress is a virial",), power=1),
    Mistake("stress × volume", {"stress": 1.0}, ("stress is multiplied by the volume",), power=1),
    Mistake("stress under virial", {"stress": -1.0}, ("read from a virial that is a stress",), power=-1),
]


def said_of(structures: StructureArrays) -> list[str]:
    """The text of the check, a warning or an error."""
    try:
        return check_physics(structures)
    except DataError as error:
        return [str(error)]
