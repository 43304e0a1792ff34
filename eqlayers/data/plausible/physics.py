"""Compare labels with each other and with physical estimates, and name the mistakes that explain the differences best.

Known mistakes are units, conversions, signs, and virials in place of stress.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eqlayers.atoms.units import unit_size
from eqlayers.data.plausible import magnitudes, order, ratios, rows
from eqlayers.data.plausible.pair_model import PairModel, drawn, fitted, pairs_within_reach
from eqlayers.data.plausible.ratios import Ratio
from eqlayers.data.structures import StructureArrays, check_structures

from ...core.errors import DataError

_POWERS = (0, -1, 1)  # powers of the volume that a stress may be multiplied by


def check_physics(structures: StructureArrays) -> list[str]:
    """Messages about labels with wrong units or signs; raises for signs that are certainly wrong.

    Labels are compared with the work of forces, a fitted pair potential, and usual force constants of bonds.
    """
    check_structures(structures)
    part = drawn(structures)
    pairs = None if part is None else pairs_within_reach(part)
    model = None if part is None or pairs is None else fitted(part, pairs)
    for wrong in (
        order.other_axes(structures, model),
        magnitudes.far_neighbors(structures, part, pairs),
        rows.per_atom(structures),
    ):
        if messages := list(wrong):
            return messages  # other checks would only report consequences
    messages = [*rows.zero_forces(structures), *rows.poor_stress(structures), *rows.repeated_energies(structures)]
    energy = ratios.work_of_forces(structures) or (None if model is None else ratios.energy_over_forces(model))
    if wrong_frames := list(order.other_frames(structures, model, energy is not None)):
        return [*messages, *wrong_frames]
    messages += [*magnitudes.net_forces(structures), *(rows.unlike_forces(model) if model else ())]
    messages += [*rows.far_energies(structures), *order.other_shear(part, pairs)]
    comparisons = _comparisons(structures, model, energy)
    problems = verdict(comparisons, float(np.median(structures.n_atoms)))
    if problems is None:
        # comparisons of two labels do not detect a factor common to all
        return [*messages, *magnitudes.large_energies(structures), *magnitudes.large_forces(structures)]
    if any(each.ratio.exact and each.ratio.value < 0 for each in comparisons if each.ratio):
        raise DataError(f"labels of {structures.source} must have the signs of ASE, got others: {problems}")
    return [*messages, problems]


def _comparisons(structures: StructureArrays, model: PairModel | None, energy: Ratio | None) -> list[Comparison]:
    """All comparisons with a result; the work of forces is preferred to a pair potential."""
    comparisons, between_cells = [], None
    if "stress" in structures.labels:
        work = {power: ratios.work_between_cells(structures, power) for power in _POWERS}
        between_cells = work[0][1]
        comparisons.append(Comparison("energy", "stress", _known({power: each for power, (each, _) in work.items()})))
        if model is not None:
            of_model = {power: ratios.stress_over_forces(model, power) for power in _POWERS}
            comparisons.append(Comparison("stress", "forces", _known(of_model)))
    energy, bonds = energy or between_cells, None if model is None else ratios.stiffness(model)
    comparisons += [Comparison("energy", "forces", _known({0: energy})), Comparison("forces", None, _known({0: bonds}))]
    if not all(each is not None and each.right for each in (energy, bonds)):  # otherwise a match would be by chance
        comparisons.append(Comparison("energy", None, _known({0: magnitudes.all_electrons(structures)})))
    return [each for each in comparisons if each.ratios]


def _known(ratios: Mapping[int, Ratio | None]) -> dict[int, Ratio]:
    return {power: ratio for power, ratio in ratios.items() if ratio is not None}


_ALIKE, _MOST = 0.25, 2  # cost difference of explanations that are reported together, and their largest number
#: Label -> subject and verb of a sentence.
SPOKEN = {"energy": "energies are", "forces": "forces are", "stress": "stress is"}
# label -> units by their cost in tenths; a mistake in a further label costs 10
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
# conversion factors by which a label may have been multiplied or divided once too often
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
_CONVERTED, _ALSO_SIGN, _DIVIDED = 1.2, 0.3, 0.6


class Cause(NamedTuple):
    """A possible mistake in a label."""

    label: str
    factor: float  # ratio of the wrong to the right label
    text: str  # predicate of a sentence that begins with a value of ``SPOKEN``
    fix: str = ""  # clause on what to change in the file; empty if setting the unit suffices
    unit: str = ""  # unit of the label, if that is the mistake
    rarity: float = 0.0  # cost, 0 for the usual mistakes
    power: int = 0  # power of the volume (Angstrom^3) that the stress is to be multiplied by first


def causes(label: str, atoms: float | None = None) -> Iterator[Cause]:
    """Yield all known mistakes in a label; ``atoms`` is the median number of atoms."""
    negate = f"negate the {'energies' if label == 'energy' else label} in the file"
    yield Cause(label, -1.0, _WRONG[label], negate, rarity=_SIGN[label])
    for tenths, unit in ((tenths, unit) for tenths, units in _UNITS[label] for unit in units.split()):
        size, rarity = unit_size(label, unit), tenths / 10
        yield Cause(label, 1 / size, f"in {unit}", unit=unit, rarity=rarity)
        if label != "energy":
            yield Cause(label, -1 / size, f"in {unit} and {_WRONG[label]}", negate, unit, rarity + _ALSO_SIGN)
    for which, factor in _CONVERSIONS.items():
        for times, how, back in ((factor, "multiplied", "divide"), (1 / factor, "divided", "multiply")):
            text = f"{how} by {factor:.5g} once too often, as from {which}"
            fix = f"{back} by {factor:.5g} in the file, or correct data.units"
            yield Cause(label, times, text, fix, rarity=_CONVERTED)
    if label == "energy" and atoms and atoms > 1:
        text = "divided by the number of atoms"
        yield Cause(label, 1 / atoms, text, "multiply by it in the file", rarity=0.1)
    if label == "stress":
        by_name = "with their name in the file"
        virial = f"set data.keys: {{virial: NAME, stress: null}} {by_name}"
        stress = f"set data.keys: {{stress: NAME, virial: null}} {by_name}"
        yield Cause(label, -1.0, "a virial, which is minus the stress times the volume", virial, power=-1)
        yield Cause(label, 1.0, "multiplied by the volume", "divide by the volume in the file", rarity=0.1, power=-1)
        yield Cause(label, -1.0, "read from a virial that is a stress", stress, power=1)
        yield Cause(label, 1.0, "divided by the volume twice", "multiply by the volume in the file", "", _DIVIDED, 1)


class Comparison(NamedTuple):
    """Ratios of a label to estimates from another label, or from chemistry (None), by power of the volume."""

    label: str
    other: str | None
    ratios: Mapping[int, Ratio]

    @property
    def ratio(self) -> Ratio | None:
        """The ratio with power 0 of the volume, if known."""
        return self.ratios.get(0)

    @property
    def wrong(self) -> str | None:
        """Clause if the ratio is not consistent with 1, or only after the stress is scaled by the volume; else None."""
        powers = [power for power, ratio in self.ratios.items() if not power or ratio.right or ratio.fits(-1.0)]
        power = 0 if 0 in powers else next(iter(powers), 0)
        ratio = self.ratios.get(power)
        if ratio is None or (power == 0 and ratio.right):
            return None
        how = {0: "", -1: ", with the stress over the volume", 1: ", with the stress times the volume"}[power]
        return f"{SPOKEN[self.label]} {ratio.value:.3g} times {ratio.source}{how}"

    def misfit(self, mistakes: Mapping[str, Cause]) -> float:
        """Deviation of the ratio from the one that mistakes imply, in its precision; infinite if inconsistent."""
        stress = mistakes.get("stress") if "stress" in (self.label, self.other) else None
        ratio = self.ratios.get(stress.power if stress else 0)
        if ratio is None:
            return 1.0
        above, below = (mistakes[name].factor if name in mistakes else 1.0 for name in (self.label, str(self.other)))
        if not ratio.fits(above / below):
            return math.inf
        return math.log(ratio.value * below / above) / math.log(ratio.usual)


def verdict(comparisons: Sequence[Comparison], atoms: float | None = None) -> str | None:
    """Sentences on symptoms, likely mistakes and fixes; None if all labels may be right."""
    symptoms = "; ".join(clause for each in comparisons if (clause := each.wrong))
    if not symptoms:
        return None
    likely = _explanations(comparisons, atoms)
    if not likely:
        return f"{symptoms}. No unit or sign explains this. Look at the labels, or name others with data.keys."
    why = ", or ".join(" and ".join(f"{SPOKEN[each.label]} {each.text}" for each in mistakes) for mistakes in likely)
    fixes = list(dict.fromkeys(map(_fix, likely)))
    return f"{symptoms}. The likely cause: {why}. The fix: {', or else '.join(fixes)}."


def _explanations(comparisons: Sequence[Comparison], atoms: float | None) -> list[tuple[Cause, ...]]:
    """Sets of mistakes in labels that explain all compared ratios: the least costly set, and sets of similar cost."""
    labels = [label for label in SPOKEN if any(label in (each.label, each.other) for each in comparisons)]
    priced = []
    for chosen in itertools.product(*([None, *causes(label, atoms)] for label in labels)):
        mistakes = {cause.label: cause for cause in chosen if cause is not None}
        misfit = sum(each.misfit(mistakes) ** 2 for each in comparisons)
        if mistakes and math.isfinite(misfit) and _consistent(mistakes):
            cost = sum(1 + cause.rarity for cause in mistakes.values()) + misfit
            priced.append((cost, tuple(mistakes.values())))
    priced.sort(key=lambda pair: pair[0])
    return [mistakes for cost, mistakes in priced[:_MOST] if cost < priced[0][0] + _ALIKE]


def _consistent(mistakes: Mapping[str, Cause]) -> bool:
    """Whether mistakes may occur together: a single one, or units of one program."""
    units = [cause.unit.split("/")[0] for cause in mistakes.values() if cause.unit.split("/")[0] not in _OF_STRESS]
    return len(mistakes) == 1 or (all(cause.unit for cause in mistakes.values()) and len(set(units)) < 2)


def _fix(mistakes: Iterable[Cause]) -> str:
    """Clause on how to fix all mistakes."""
    units = ", ".join(f"{cause.label}: {cause.unit}" for cause in mistakes if cause.unit)
    others = [cause.fix for cause in mistakes if cause.fix]
    return " and ".join([*([f"set data.units: {{{units}}}"] if units else []), *others])
