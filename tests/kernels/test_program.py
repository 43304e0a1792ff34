"""The program of a channelwise form, interpreted, against the layer that it describes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers.algebra import wigner_3j
from eqlayers_kernels.program import Path, Program, Slot, run

CASES = {  # irreps of in1, in2, and the mode whose multiplicities fit
    "uvu": ("4x0e + 3x1o + 5x2e + 1x1e", "1x0e + 1x1o + 1x2e", "uvu"),
    "uvv": ("1x0e + 1x1o", "4x0e + 3x1o + 2x1e", "uvv"),
    "uuu": ("4x0e + 4x1o", "4x1o + 4x2e", "uuu"),
}


def layer(case: str, weights: str, layout: str) -> eq.TensorProduct:
    first, second, mode = CASES[case]
    in1, in2 = o3.Irreps(first), o3.Irreps(second)
    paths, out = [], []
    for i, (mul1, ir1) in enumerate(in1):
        for j, (mul2, ir2) in enumerate(in2):
            for ir in ir1 * ir2:
                paths.append((i, j, len(out), mode, weights != "none"))
                out.append((mul2 if mode == "uvv" else mul1, ir))
    return eq.TensorProduct(in1, in2, o3.Irreps(out), paths, shared_weights=weights != "sample", layout=layout).double()


def program_of(tp: eq.TensorProduct) -> Program:
    slots = []
    for irreps in (tp.irreps_in1, tp.irreps_in2, tp.irreps_out):
        slots.append([Slot(s.start, mul, ir.dim) for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)])
    paths, offset = [], 0
    for ins in tp.instructions:
        x, y, z = (own[i] for own, i in zip(slots, ins[:3], strict=True))
        degrees = [r[i].ir.l for r, i in zip((tp.irreps_in1, tp.irreps_in2, tp.irreps_out), ins[:3], strict=True)]
        block = wigner_3j(*degrees) * ins.path_weight
        terms = tuple((int(i), int(j), int(k), float(block[i, j, k])) for i, j, k in np.argwhere(block))
        paths.append(Path(x, y, z, offset if ins.has_weight else None, terms))
        offset += math.prod(ins.path_shape) if ins.has_weight else 0
    widths = (tp.irreps_in1.dim, tp.irreps_in2.dim, tp.weight_numel, tp.irreps_out.dim)
    return Program(tuple(paths), widths, tp.layout)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("weights", ["none", "shared", "sample"])
@pytest.mark.parametrize("case", CASES)
def test_the_interpreter_agrees_with_the_layer(case: str, weights: str, layout: str) -> None:
    tp = layer(case, weights, layout)
    x, y = torch.randn(7, tp.irreps_in1.dim).double(), torch.randn(7, tp.irreps_in2.dim).double()
    w = torch.randn(7, tp.weight_numel).double() if weights == "sample" else tp.weight.detach()[None]
    want = tp(x, y, w if weights == "sample" else None).detach().numpy()
    got = run(program_of(tp), x.numpy(), y.numpy(), None if weights == "none" else w.numpy())
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13 * np.abs(want).max())


def test_the_key_is_the_content() -> None:
    program, same = program_of(layer("uvu", "none", "mul_ir")), program_of(layer("uvu", "none", "mul_ir"))
    assert program.key == same.key
    assert program == same
    assert program.key != program_of(layer("uvu", "none", "ir_mul")).key
    first = program.paths[0]
    flipped = first._replace(terms=tuple((i, j, k, -s) for i, j, k, s in first.terms))
    assert Program((flipped, *program.paths[1:]), program.widths, program.layout).key != program.key


def test_what_is_contracted_first() -> None:
    assert {path.hoisted for path in program_of(layer("uvu", "none", "mul_ir")).paths} == {"y"}
    assert "x" in {path.hoisted for path in program_of(layer("uvv", "none", "mul_ir")).paths}
    assert {path.hoisted for path in program_of(layer("uuu", "none", "mul_ir")).paths} == {None}


def test_str_shows_every_path() -> None:
    program = program_of(layer("uvu", "shared", "mul_ir"))
    lines = str(program).splitlines()
    assert len(lines) == 1 + len(program.paths)
    assert lines[1].strip() == "z[0: 1 x 4] += x[0: 1 x 4] * y[0: 1 x 1] * w[0:4], 1 terms, y first"


GOOD = Path(Slot(0, 2, 3), Slot(0, 1, 1), Slot(0, 2, 3), None, ((0, 0, 0, 1.0),))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (GOOD._replace(x=Slot(1, 2, 3)), "Correct the slot"),
        (GOOD._replace(x=Slot(0, 3, 1)), "contract them with a matrix product"),
        (GOOD._replace(x=Slot(0, 1, 3)), "One of them carries the channels"),
        (GOOD._replace(weight=3), "Correct the offset"),
        (GOOD._replace(terms=((0, 0, 3, 1.0),)), "Count components within the slot"),
        (GOOD._replace(terms=((0, 0, 0, 0.0),)), "Drop the term"),
    ],
)
def test_offsets_are_checked_where_the_program_is_made(path: Path, message: str) -> None:
    Program((GOOD,), (6, 1, 4, 6), "mul_ir")
    with pytest.raises(ValueError, match=message):
        Program((path,), (6, 1, 4, 6), "mul_ir")


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="Pick one of these"):
        Program((GOOD,), (6, 1, 4, 6), "channels_last")
