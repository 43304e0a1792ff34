"""Labels against each other and against nature: wrong units and signs, virials in place of stress."""

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

_POWERS = (0, -1, 1)  # of the volume


def check_physics(structures: StructureArrays) -> list[str]:
    """Search labels for wrong units and signs, by the work of forces, a pair potential, and bonds of nonmetals."""
    check_structures(structures)
    part = drawn(structures)
    pairs = None if part is None else pairs_within_reach(part)
    model = None if part is None or pairs is None else fitted(part, pairs)
    for wrong in (
        order.other_axes(structures, model),
        magnitudes.far_neighbors(structures, part, pairs),
        rows.per_atom(structures),
    ):
        if said := list(wrong):
            return said  # all else would follow from it
    said = [*rows.zero_forces(structures), *rows.poor_stress(structures), *rows.repeated_energies(structures)]
    energy = work_of_forces(structures) or (None if model is None else energy_over_forces(model))
    if wrong_frames := list(order.other_frames(structures, model, energy is not None)):
        return [*said, *wrong_frames]
    said += [
        *magnitudes.net_forces(structures),
        *(rows.unlike_forces(model) if model else ()),
        *rows.far_energies(structures),
    ]
    said += order.other_shear(part, pairs)
    comparisons = _comparisons(structures, model, energy)
    problems = verdict(comparisons, float(np.median(structures.n_atoms)))
    if problems is None:
        # a factor that all labels share leaves comparisons of two labels as they are
        return [*said, *magnitudes.large_energies(structures), *magnitudes.large_forces(structures)]
    if any(each.ratio.exact and each.ratio.value < 0 for each in comparisons if each.ratio):
        raise DataError(f"labels of {structures.source} must have the signs of ASE, got others: {problems}")
    return [*said, problems]


def _comparisons(structures: StructureArrays, model: PairModel | None, energy: Ratio | None) -> list[Comparison]:
    """All that can be told; work goes before what a pair potential says."""
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
    if not all(each is not None and each.right for each in (energy, bonds)):  # else it is so by chance
        comparisons.append(Comparison("energy", None, _known({0: magnitudes.all_electrons(structures)})))
    return [each for each in comparisons if each.ratios]


def _known(ratios: Mapping[int, Ratio | None]) -> dict[int, Ratio]:
    return {power: ratio for power, ratio in ratios.items() if ratio is not None}
