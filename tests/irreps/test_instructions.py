"""Modes, instructions, their coefficients and terms, and lists of paths beside the loop that others write."""

import itertools
from itertools import product
from typing import Any

import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers.errors import ConfigError, IrrepsError
from eqlayers.irreps.instructions import MODES, normalise, read_instructions, variances
from tests.each import each, refused

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


#: Mode -> multiplicities of in1, in2 and out, and the number of products in one channel of the output.
CASES = {
    "uvw": ((4, 3, 5), 12),
    "uvu": ((4, 3, 4), 3),
    "uvv": ((4, 3, 3), 4),
    "uuw": ((4, 4, 5), 4),
    "uuu": ((4, 4, 4), 1),
    "uvuv": ((4, 3, 12), 1),
    "uvu<v": ((4, 4, 6), 1),
    "u<vw": ((4, 4, 5), 6),
}


@pytest.mark.parametrize("name", MODES)
def test_weights_and_fan_in(name: str) -> None:
    muls, fan_in = CASES[name]
    mode = MODES[name]
    product = o3.TensorProduct(*([(mul, "0e")] for mul in muls), [(0, 0, 0, name, True)])
    assert mode.weight_shape(*muls) == product.instructions[0].path_shape
    assert mode.fan_in(*muls) == fan_in
    mode.check("path", *muls, True)
    for place in range(3):
        wrong = [mul + (place == number) for number, mul in enumerate(muls)]
        if mode.out != "w" or (place < 2 and mode.first == mode.second):
            if (name == "uvu" and place == 1) or (name == "uvv" and place == 0):
                continue  # channels that are summed have any number
            with pytest.raises(IrrepsError, match=f"path: mode '{name}' needs"):
                mode.check("path", *wrong, True)


def test_modes_whose_outputs_only_weights_make() -> None:
    for name in ("uvw", "u<vw"):
        with pytest.raises(IrrepsError, match="needs has_weight=True"):
            MODES[name].check("path", *CASES[name][0], False)


IN1, IN2 = o3.Irreps("4x0e + 2x1o + 3x1e"), o3.Irreps("0e + 1o + 2e")


def by_hand(keep: list[o3.Irrep] | None) -> tuple[o3.Irreps, list[tuple[Any, ...]]]:
    """The loop of NequIP and MACE."""
    out, rows = [], []
    for i, (mul, ir1) in enumerate(IN1):
        for j, (_, ir2) in enumerate(IN2):
            for ir in ir1 * ir2:
                if keep is None or ir in keep:
                    rows.append((i, j, len(out), "uvu", True))
                    out.append((mul, ir))
    irreps, place, _ = o3.Irreps(out).sort()
    return irreps, [(i, j, place[k], mode, train) for i, j, k, mode, train in rows]


@pytest.mark.parametrize("keep", [None, "0e + 1o", o3.Irreps("7x1o + 2x0e"), ["0e", o3.Irrep("1o")], [o3.Irrep("2e")]])
def test_each_path_has_an_output_of_its_own(keep: Any) -> None:
    kept = keep
    if isinstance(keep, (str, o3.Irreps)):
        kept = [ir for _, ir in o3.Irreps(keep)]
    elif keep is not None:
        kept = [o3.Irrep(ir) for ir in keep]
    assert eq.paths(IN1, IN2, keep) == by_hand(kept)


def test_outputs_are_sorted_and_parities_fit() -> None:
    middle, paths = eq.paths("4x0e + 2x1o", "0e + 1o", "0e + 1o + 1e")
    assert str(middle) == "4x0e+2x0e+4x1o+2x1o+2x1e" or str(middle) == "2x0e+4x0e+2x1o+4x1o+2x1e"
    assert sorted(p[2] for p in paths) == list(range(5))
    for i, j, k, mode, has_weight in paths:
        assert (mode, has_weight) == ("uvu", True)
        assert middle[k].mul == (4, 2)[i]
        assert middle[k].ir.p == (1, -1)[i] * (1, -1)[j]


@pytest.mark.parametrize("mode", ["uvu", "uvw"])
def test_given_outputs_get_every_path(mode: str) -> None:
    wide = o3.Irreps("4x0e + 4x1o") if mode == "uvu" else IN1
    out = wide if mode == "uvu" else o3.Irreps("5x1e + 6x0e + 1x1e + 2x1o")
    irreps, paths = eq.paths(wide, IN2, irreps_out=out, mode=mode)
    assert irreps == out
    assert paths == [
        (i, j, k, mode, True)
        for i, (_, ir1) in enumerate(wide)
        for j, (_, ir2) in enumerate(IN2)
        for k, (_, ir) in enumerate(out)
        if ir in ir1 * ir2
    ]
    fewer = eq.paths(wide, IN2, "0e", irreps_out=out, mode=mode)[1]
    assert fewer == [path for path in paths if out[path[2]].ir == o3.Irrep("0e")]
    if mode == "uvw":
        theirs = o3.FullyConnectedTensorProduct(wide, IN2, out)
        assert [tuple(i)[:5] for i in theirs.instructions] == paths


@pytest.mark.parametrize("mode", MODES)
def test_layers_take_what_it_makes(mode: str) -> None:
    in1, in2 = ("3x0e + 3x1o", "3x0e + 3x1o") if "v" not in mode or "<" in mode else ("3x0e + 3x1o", "2x0e + 2x1o")
    given = {"irreps_out": "5x0e + 5x1o"} if "w" in mode else {}
    irreps, paths = eq.paths(in1, in2, "0e + 1o", mode=mode, **given)
    layer = eq.TensorProduct(in1, in2, irreps, paths)
    x, y = layer.irreps_in1.randn(4, -1), layer.irreps_in2.randn(4, -1)
    assert layer(x, y).shape == (4, irreps.dim)
    assert layer.num_paths == len(paths)
    if not MODES[mode].must_weight and "w" not in mode:
        _, plain = eq.paths(in1, in2, "0e + 1o", mode=mode, has_weight=False)
        assert [path[-1] for path in plain] == [False] * len(paths)
        assert eq.TensorProduct(in1, in2, irreps, plain).weight_numel == 0


def test_a_convolution_in_one_line() -> None:
    conv = eq.TensorProductConv(IN1, IN2, *eq.paths(IN1, IN2, "0e + 1o"), shared_weights=False)
    edges = torch.tensor([[0, 1], [1, 0]])
    weight = torch.ones(2, conv.weight_numel)
    assert conv(IN1.randn(2, -1), IN2.randn(2, -1), weight, edges).shape == (2, conv.irreps_out.dim)


test_what_does_not_fit_is_refused = refused("error, message, arguments", [
        (IrrepsError, r"some irrep of irreps_out must lie in irreps_in1 x irreps_in2, got 4x0e x 1x0e for \[1o\]\. Add",
            {"irreps_in1": "4x0e", "irreps_in2": "0e", "filter_ir_out": ["1o"]}),
        (IrrepsError, r"got 4x0e x 1x0e for 4x1o\. Add degrees, or check parities",
            {"irreps_in1": "4x0e", "irreps_in2": "0e", "irreps_out": "4x1o"}),
        (IrrepsError, r"irreps_out must be given for mode 'uvw', .* got None\. Pass irreps_out=",
            {"irreps_in1": "4x0e", "irreps_in2": "0e", "mode": "uvw"}),
        (IrrepsError, r"path 0 x 0 -> 0: mode 'uuu' needs equal multiplicities of in1 and in2, got 4 and 1",
            {"irreps_in1": "4x0e", "irreps_in2": "0e", "mode": "uuu"}),
        (IrrepsError, r"mode 'uvu' needs the multiplicity 4 of out \(u\), got 5",
            {"irreps_in1": "4x0e", "irreps_in2": "0e", "irreps_out": "5x0e"}),
        (IrrepsError, r"mode 'uvw' needs has_weight=True",
            {"irreps_in1": "4x0e", "irreps_in2": "0e", "irreps_out": "5x0e", "mode": "uvw", "has_weight": False}),
        (ConfigError, r"mode must be one of uvw, uvu, .* got 'foo'",
            {"irreps_in1": "4x0e", "irreps_in2": "0e", "mode": "foo"}),
    ], lambda arguments: eq.paths(**arguments))  # fmt: skip
