"""The mistakes that explain best how many times larger each label is than others say, in sentences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eqlayers.data.plausible.causes import SPOKEN, Cause, causes
from eqlayers.data.plausible.ratios import Ratio

_ALIKE, _MOST = 0.25, 2  # explanations whose costs differ by less are given, so many at most


@dataclass(frozen=True)
class Comparison:
    """A label beside what another label, or nature, says it is.

    Attributes:
        label: The label above the line: "energy", "forces" or "stress".
        other: The label below it; None for what is known of nature.
        ratios: Of the two, by the power of the volume in Angstrom^3 that the stress was multiplied by first; 0 alone
            where there is no stress.
    """

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


def verdict(comparisons: Sequence[Comparison]) -> str | None:
    """The mistake, its reason and the fix, in a sentence each; None if all known labels may be right."""
    symptoms = "; ".join(clause for each in comparisons if (clause := each.wrong))
    if not symptoms:
        return None
    likely = _explanations(comparisons)
    if not likely:
        return f"{symptoms}. No unit or sign explains this. Look at the labels, or name others with data.keys."
    why = ", or ".join(" and ".join(f"{SPOKEN[each.label]} {each.said}" for each in mistakes) for mistakes in likely)
    fixes = list(dict.fromkeys(map(_fix, likely)))
    return f"{symptoms}. The likely cause: {why}. The fix: {', or else '.join(fixes)}."


def _explanations(comparisons: Sequence[Comparison]) -> list[tuple[Cause, ...]]:
    """The sets of mistakes that explain all ratios, the cheapest first, and those that are about as cheap."""
    labels = [label for label in SPOKEN if any(label in (each.label, each.other) for each in comparisons)]
    priced = []
    for chosen in itertools.product(*([None, *causes(label)] for label in labels)):
        mistakes = {cause.label: cause for cause in chosen if cause is not None}
        misfit = sum(each.misfit(mistakes) ** 2 for each in comparisons)
        if mistakes and math.isfinite(misfit):
            cost = sum(1 + cause.rarity for cause in mistakes.values()) + misfit
            priced.append((cost, tuple(mistakes.values())))
    priced.sort(key=lambda pair: pair[0])
    return [mistakes for cost, mistakes in priced[:_MOST] if cost < priced[0][0] + _ALIKE]


def _fix(mistakes: Iterable[Cause]) -> str:
    units = ", ".join(f"{cause.label}: {cause.unit}" for cause in mistakes if cause.unit)
    others = [cause.fix for cause in mistakes if cause.fix]
    return " and ".join([*([f"set data.units: {{{units}}}"] if units else []), *others])
