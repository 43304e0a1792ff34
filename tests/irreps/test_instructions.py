"""Modes, instructions and their coefficients, and the terms that follow from them."""

from __future__ import annotations

import itertools
from itertools import product

import pytest
from e3nn import o3

from eqlayers.irreps.instructions import MODES, normalise, read_instructions, variances
from tests.each import each

#: mode -> (muls, weight shape, fan-in), worked out by hand for muls (2, 3, .) or equal muls of 4
BY_HAND = {
    "uvw": ((2, 3, 5), (2, 3, 5), 6),
    "uvu": ((2, 3, 2), (2, 3), 3),
    "uvv": ((2, 3, 3), (2, 3), 2),
    "uuw": ((4, 4, 5), (4, 5), 4),
    "uuu": ((4, 4, 4), (4,), 1),
    "uvuv": ((2, 3, 6), (2, 3), 1),
    "uvu<v": ((4, 4, 6), (6,), 1),
    "u<vw": ((4, 4, 5), (6, 5), 6),
}


@pytest.mark.parametrize("mode", MODES)
def test_shapes_and_fan_in(mode: str) -> None:
    muls, shape, fan = BY_HAND[mode]
    assert MODES[mode].weight_shape(*muls) == shape
    assert MODES[mode].fan_in(*muls) == fan


def test_the_table_of_modes_is_complete() -> None:
    assert set(MODES) == set(BY_HAND)


@each(
    "mode, irrep_normalization, path_normalization",
    product(MODES, ["component", "norm", "none"], ["element", "path", "none"]),
)
def test_coefficients_by_the_formula(mode: str, irrep_normalization: str, path_normalization: str) -> None:
    (m1, m2, mo), _, fan = BY_HAND[mode]
    irreps = (o3.Irreps([(m1, "1o")]), o3.Irreps([(m2, "2e")]), o3.Irreps([(mo, "1o"), (mo, "1o")]))
    rows = [(0, 0, 1, mode, True, 3.0), (0, 0, 0, mode, True), (0, 0, 1, mode, True, 0.5)]
    variance = ([2.0], [5.0], [1.0, 7.0])
    got = normalise(read_instructions(*irreps, rows), irreps, variance, irrep_normalization, path_normalization)
    alpha = {"component": 3, "norm": 15, "none": 1}[irrep_normalization]
    arriving = 2.0 * 5.0 * fan
    for ins, path_weight, out_var, count in zip(got, (3.0, 1.0, 0.5), (7.0, 1.0, 7.0), (2, 1, 2), strict=True):
        x = {"element": arriving * count, "path": arriving * count, "none": 1.0}[path_normalization]
        assert ins.path_weight == pytest.approx((alpha * out_var * path_weight / x) ** 0.5, rel=1e-15)


def test_element_and_path_differ_where_fan_ins_differ() -> None:
    irreps = (o3.Irreps("2x0e + 6x0e"), o3.Irreps("1x0e"), o3.Irreps("4x0e"))
    read = read_instructions(*irreps, [(0, 0, 0, "uvw", True), (1, 0, 0, "uvw", True)])
    ones = tuple(variances("in1_var", None, i) for i in irreps)
    element = normalise(read, irreps, (ones[0], ones[1], ones[2]), path_normalization="element")
    path = normalise(read, irreps, (ones[0], ones[1], ones[2]), path_normalization="path")
    assert [i.path_weight**-2 for i in element] == pytest.approx([8.0, 8.0])
    assert [i.path_weight**-2 for i in path] == pytest.approx([4.0, 12.0])


def test_order_of_paths_does_not_change_their_coefficients() -> None:
    irreps = (o3.Irreps("2x0e + 3x1o"), o3.Irreps("1x0e + 1x1o"), o3.Irreps("4x0e + 4x1o"))
    rows = [(0, 0, 0, "uvw", True), (1, 1, 0, "uvw", True), (0, 1, 1, "uvw", True), (1, 0, 1, "uvw", True)]
    ones = ([1.0] * 2, [1.0] * 2, [1.0] * 2)
    expected = {i[:3]: i.path_weight for i in normalise(read_instructions(*irreps, rows), irreps, ones)}
    for order in itertools.permutations(rows):
        got = normalise(read_instructions(*irreps, order), irreps, ones)
        assert {i[:3]: i.path_weight for i in got} == expected
        assert [i[:3] for i in got] == [r[:3] for r in order]
