"""Modes, instructions and their coefficients, and the terms that follow from them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from e3nn import o3

from eqlayers.algebra import wigner_3j
from eqlayers.info.layout import FlatLayout
from eqlayers.info.modes import MODES
from eqlayers.info.paths import normalise, read_instructions, variances
from eqlayers.info.terms import group_paths

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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("irrep_normalization", ["component", "norm", "none"])
@pytest.mark.parametrize("path_normalization", ["element", "path", "none"])
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


def test_terms_are_the_coefficients_at_their_rows() -> None:
    """Dense tables of the infos against loops over the irreps, with an unused irrep before the used ones."""
    irreps = (o3.Irreps("2x2e + 2x1o"), o3.Irreps("1x3o + 1x1o"), o3.Irreps("2x3e + 2x1e + 2x0e"))
    rows = [(1, 1, 2, "uvu", False), (1, 1, 1, "uvu", False)]
    instructions = normalise(read_instructions(*irreps, rows), irreps, ([1.0] * 2, [1.0] * 2, [1.0] * 3))
    layouts = tuple(FlatLayout(i, "mul_ir") for i in irreps)
    (group,) = group_paths(irreps, instructions, (layouts[0], layouts[1], layouts[2]))
    expected = np.zeros((8, 10, 11))
    expected[5:8, 7:10, 10:11] = wigner_3j(1, 1, 0) * instructions[0].path_weight
    expected[5:8, 7:10, 7:10] = wigner_3j(1, 1, 1) * instructions[1].path_weight
    assert group.num_terms == np.count_nonzero(expected)
    for number, axes in enumerate([(0, 1, 2), (1, 2, 0), (2, 0, 1)]):  # forward, gradient of x, gradient of y
        info = group.infos[number]
        sizes = [expected.shape[a] for a in axes]
        terms = info.terms(sizes[0], sizes[1])
        assert terms.scale is not None
        assert terms.index2 is not None
        assert info.out_size == sizes[2]
        dense = np.zeros(sizes)
        np.add.at(dense, (terms.index1.numpy(), terms.index2.numpy(), terms.row.numpy()), terms.scale.numpy())
        np.testing.assert_array_equal(dense, expected.transpose(axes))


def test_paths_of_one_kind_run_together() -> None:
    irreps = (o3.Irreps("4x0e + 4x1o"), o3.Irreps("0e + 1o"), o3.Irreps("4x0e + 4x1o"))
    rows = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 0, "uvw", True)]
    instructions = normalise(read_instructions(*irreps, rows), irreps, ([1.0] * 2, [1.0] * 2, [1.0] * 2))
    layouts = tuple(FlatLayout(i, "ir_mul") for i in irreps)
    groups = group_paths(irreps, instructions, (layouts[0], layouts[1], layouts[2]))
    assert [(g.mode, len(g.weight_places)) for g in groups] == [("uvu", 3), ("uvw", 1)]
    assert groups[0].weight_places == ((0, 4), (4, 4), (8, 4))
    assert groups[1].weight_places == ((12, 16),)
    assert (groups[0].product, groups[0].weighting) == ("u,->u", "u,u->u")
