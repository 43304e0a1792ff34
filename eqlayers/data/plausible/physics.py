"""Compare labels with each other and with physical estimates, to find wrong units, signs, and virials as stress."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eqlayers.data.plausible import magnitudes, order, rows
from eqlayers.data.plausible.pair_model import PairModel, drawn, fitted, pairs_within_reach
from eqlayers.data.plausible.ratios import Ratio, energy_over_forces, stiffness, stress_over_forces
from eqlayers.data.plausible.verdict import Comparison, verdict
from eqlayers.data.plausible.work import work_between_cells, work_of_forces
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
    energy = work_of_forces(structures) or (None if model is None else energy_over_forces(model))
    if wrong_frames := list(order.other_frames(structures, model, energy is not None)):
        return [*messages, *wrong_frames]
    messages += [
        *magnitudes.net_forces(structures),
        *(rows.unlike_forces(model) if model else ()),
        *rows.far_energies(structures),
    ]
    messages += order.other_shear(part, pairs)
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
        work = {power: work_between_cells(structures, power) for power in _POWERS}
        between_cells = work[0][1]
        comparisons.append(Comparison("energy", "stress", _known({power: each for power, (each, _) in work.items()})))
        if model is not None:
            of_model = {power: stress_over_forces(model, power) for power in _POWERS}
            comparisons.append(Comparison("stress", "forces", _known(of_model)))
    energy, bonds = energy or between_cells, None if model is None else stiffness(model)
    comparisons += [Comparison("energy", "forces", _known({0: energy})), Comparison("forces", None, _known({0: bonds}))]
    if not all(each is not None and each.right for each in (energy, bonds)):  # otherwise a match would be by chance
        comparisons.append(Comparison("energy", None, _known({0: magnitudes.all_electrons(structures)})))
    return [each for each in comparisons if each.ratios]


def _known(ratios: Mapping[int, Ratio | None]) -> dict[int, Ratio]:
    return {power: ratio for power, ratio in ratios.items() if ratio is not None}
