"""Lists of instructions: the loop that everybody writes, beside the same loop written here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers.errors import ConfigError, IrrepsError
from eqlayers.irreps.instructions import MODES

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


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
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
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(error: type[Exception], text: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=text):
        eq.paths(**arguments)
