"""The mistakes that explain best how many times larger each label is than others say, in sentences.

Known are units, conversions, signs, and virials in place of stress.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from eqlayers.atoms.units import unit_size
from eqlayers.data.plausible.ratios import Ratio

_ALIKE, _MOST = 0.25, 2  # explanations whose costs differ by less are given, so many at most
#: Labels as subjects of sentences.
SPOKEN = {"energy": "energies are", "forces": "forces are", "stress": "stress is"}
# how rare a unit is, in tenths, and the units; a mistake in one more label is as rare as 10
_UNITS = {
    "energy": ((0, "kcal/mol Hartree"), (1, "kJ/mol"), (3, "Rydberg meV")),
    "forces": (
        (0, "kcal/mol/Angstrom Hartree/Bohr"),
        (2, "kJ/mol/nm kJ/mol/Angstrom"),
        (3, "Rydberg/Bohr eV/Bohr meV/Angstrom"),
        (4, "Hartree/Angstrom"),
        (5, "kcal/mol/Bohr"),
    ),
    "stress": ((0, "GPa kbar"), (3, "Hartree/Bohr^3"), (5, "bar kcal/mol/Angstrom^3")),
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
_OF_STRESS = ("GPa", "kbar", "bar")
_SIGN = {"energy": 0.5, "forces": 0.0, "stress": 0.0}
_CONVERTED, _ALSO_SIGN, _DIVIDED_TWICE = 1.2, 0.3, 0.6


class Cause(NamedTuple):
    """One mistake in one label."""

    label: str
    factor: float  # how many times the label is too large
    said: str  # the end of a sentence, which begins with one of ``SPOKEN``
    fix: str = ""  # what to do in the file, a clause; empty where the unit is all
    unit: str = ""  # of the label, if that is the mistake
    rarity: float = 0.0  # 0 for the usual mistakes
    power: int = 0  # of the volume in Angstrom^3 that the stress is multiplied by before the factor holds


def causes(label: str, atoms: float | None = None) -> Iterator[Cause]:
    """All mistakes in a label that are known, of structures of so many atoms."""
    negate = f"negate the {'energies' if label == 'energy' else label} in the file"
    yield Cause(label, -1.0, _WRONG[label], negate, rarity=_SIGN[label])
    for tenths, unit in ((tenths, unit) for tenths, units in _UNITS[label] for unit in units.split()):
        size, rarity = unit_size(label, unit), tenths / 10
        yield Cause(label, 1 / size, f"in {unit}", unit=unit, rarity=rarity)
        if label != "energy":
            yield Cause(label, -1 / size, f"in {unit} and {_WRONG[label]}", negate, unit, rarity + _ALSO_SIGN)
    for which, factor in _CONVERSIONS.items():
        for times, how, back in ((factor, "multiplied", "divide"), (1 / factor, "divided", "multiply")):
            said = f"{how} by {factor:.5g} once too often, as from {which}"
            fix = f"{back} by {factor:.5g} in the file, or correct data.units"
            yield Cause(label, times, said, fix, rarity=_CONVERTED)
    if label == "energy" and atoms and atoms > 1:
        said = "divided by the number of atoms"
        yield Cause(label, 1 / atoms, said, "multiply by it in the file", rarity=0.1)
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


class Comparison(NamedTuple):
    """A label beside what another label, or nature (None), says it is, by the power of the volume as of a Cause."""

    label: str
    other: str | None
    ratios: Mapping[int, Ratio]

    @property
    def ratio(self) -> Ratio | None:
        """The ratio of the labels as they are, if it could be told."""
        return self.ratios.get(0)

    @property
    def wrong(self) -> str | None:
        """A clause where the ratio cannot be 1, or can be 1 only with the stress over or times the volume."""
        powers = [power for power, ratio in self.ratios.items() if not power or ratio.right or ratio.fits(-1.0)]
        power = 0 if 0 in powers else next(iter(powers), 0)
        ratio = self.ratios.get(power)
        if ratio is None or (power == 0 and ratio.right):
            return None
        how = {0: "", -1: ", with the stress over the volume", 1: ", with the stress times the volume"}[power]
        return f"{SPOKEN[self.label]} {ratio.value:.3g} times {ratio.source}{how}"

    def misfit(self, mistakes: Mapping[str, Cause]) -> float:
        """0 where mistakes explain the ratio fully, some 1 where they do so to its precision, infinite beyond."""
        stress = mistakes.get("stress") if "stress" in (self.label, self.other) else None
        ratio = self.ratios.get(stress.power if stress else 0)
        if ratio is None:
            return 1.0
        above, below = (mistakes[name].factor if name in mistakes else 1.0 for name in (self.label, str(self.other)))
        if not ratio.fits(above / below):
            return math.inf
        return math.log(ratio.value * below / above) / math.log(ratio.usual)


def verdict(comparisons: Sequence[Comparison], atoms: float | None = None) -> str | None:
    """The mistake, its reason and the fix, in a sentence each; None if all known labels may be right."""
    symptoms = "; ".join(clause for each in comparisons if (clause := each.wrong))
    if not symptoms:
        return None
    likely = _explanations(comparisons, atoms)
    if not likely:
        return f"{symptoms}. No unit or sign explains this. Look at the labels, or name others with data.keys."
    why = ", or ".join(" and ".join(f"{SPOKEN[each.label]} {each.said}" for each in mistakes) for mistakes in likely)
    fixes = list(dict.fromkeys(map(_fix, likely)))
    return f"{symptoms}. The likely cause: {why}. The fix: {', or else '.join(fixes)}."


def _explanations(comparisons: Sequence[Comparison], atoms: float | None) -> list[tuple[Cause, ...]]:
    """The sets of mistakes that explain all ratios, the cheapest first, and those that are about as cheap."""
    labels = [label for label in SPOKEN if any(label in (each.label, each.other) for each in comparisons)]
    priced = []
    for chosen in itertools.product(*([None, *causes(label, atoms)] for label in labels)):
        mistakes = {cause.label: cause for cause in chosen if cause is not None}
        misfit = sum(each.misfit(mistakes) ** 2 for each in comparisons)
        if mistakes and math.isfinite(misfit) and _of_one_program(mistakes):
            cost = sum(1 + cause.rarity for cause in mistakes.values()) + misfit
            priced.append((cost, tuple(mistakes.values())))
    priced.sort(key=lambda pair: pair[0])
    return [mistakes for cost, mistakes in priced[:_MOST] if cost < priced[0][0] + _ALIKE]


def _of_one_program(mistakes: Mapping[str, Cause]) -> bool:
    """True for one mistake, or for several that are units of one program; False if no cause can be named."""
    units = [cause.unit.split("/")[0] for cause in mistakes.values() if cause.unit.split("/")[0] not in _OF_STRESS]
    return len(mistakes) == 1 or (all(cause.unit for cause in mistakes.values()) and len(set(units)) < 2)


def _fix(mistakes: Iterable[Cause]) -> str:
    units = ", ".join(f"{cause.label}: {cause.unit}" for cause in mistakes if cause.unit)
    others = [cause.fix for cause in mistakes if cause.fix]
    return " and ".join([*([f"set data.units: {{{units}}}"] if units else []), *others])
