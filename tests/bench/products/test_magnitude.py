"""Sums and numbers of terms, against loops over every channel and component."""

import itertools
import math

import numpy as np
import torch
from e3nn import o3

from eqlayers.bench.products.magnitude import excess, product_magnitude
from eqlayers.irreps.algebra import wigner_3j
from eqlayers.irreps.instructions import Instruction, normalise, read_instructions
from tests.each import each

IN1, IN2 = o3.Irreps("3x1o + 2x0e"), o3.Irreps("3x1o + 2x2e")
#      mode     groups  multiplicity of out, has weight
MODES = [
    ("uvw", (0, 1), 4, True),
    ("uvu", (0, 1), 3, True),
    ("uvv", (0, 1), 2, False),
    ("uuw", (0, 0), 2, True),
    ("uuw", (0, 0), 1, False),
    ("uuu", (0, 0), 3, True),
    ("uvuv", (1, 1), 4, True),
    ("uvu<v", (0, 0), 3, False),
    ("u<vw", (0, 0), 2, True),
]


def channels(
    mode: str, ins: Instruction, weights: np.ndarray, mul1: int, mul2: int, mul_out: int
) -> list[tuple[int, int, int, float]]:
    """(u, v, channel of out, weight) of every product of two channels, by the definition of the modes."""
    w = weights.reshape(ins.path_shape) if ins.has_weight else None
    out = []
    for u, v, k in itertools.product(range(mul1), range(mul2), range(mul_out)):
        pair = [(a, b) for a in range(mul1) for b in range(mul2) if a < b]
        fits, index = {
            "uvw": (True, (u, v, k)),
            "uvu": (k == u, (u, v)),
            "uvv": (k == v, (u, v)),
            "uuw": (u == v, (u, k)),
            "uuu": (u == v == k, (u,)),
            "uvuv": (k == u * mul2 + v, (u, v)),
            "uvu<v": (u < v and pair.index((u, v)) == k, ()),
            "u<vw": (u < v, (pair.index((u, v)) if u < v else 0, k)),
        }[mode]
        if fits:
            out.append((u, v, k, 1.0 if w is None else float(w[index])))
    return out


@each("mode, groups, mul_out, has_weight", MODES)
@each("count", [False, True])
def test_products(mode: str, groups: tuple[int, int], mul_out: int, has_weight: bool, count: bool) -> None:
    ir = next(iter(IN1[groups[0]].ir * IN2[groups[1]].ir))
    out = o3.Irreps([(mul_out, ir)])
    irreps = (IN1, IN2, out)
    read = read_instructions(*irreps, [(*groups, 0, mode, has_weight)])
    (ins,) = normalise(read, irreps, ([1.0] * 2, [1.0] * 2, [1.0]))
    (mul1, ir1), (mul2, ir2) = IN1[groups[0]], IN2[groups[1]]
    c = np.abs(wigner_3j(ir1.l, ir2.l, ir.l)) * ins.path_weight
    c = (c > 0).astype(float) if count else c
    x, y = np.random.default_rng(0).random((2, IN1.dim)), np.random.default_rng(1).random((2, IN2.dim))
    w = np.random.default_rng(2).random(math.prod(ins.path_shape) if has_weight else 0)
    expected = np.zeros((2, mul_out, ir.dim))
    a = x[:, IN1.slices()[groups[0]]].reshape(2, mul1, -1)
    b = y[:, IN2.slices()[groups[1]]].reshape(2, mul2, -1)
    for u, v, k, weight in channels(mode, ins, w, mul1, mul2, mul_out):
        expected[:, k] += weight * np.einsum("ni,nj,ijk->nk", a[:, u], b[:, v], c)
    fn = product_magnitude(irreps, [ins], count=count)
    x, y, w = map(torch.from_numpy, (x, y, w))
    for weights in (w, w.expand(2, -1)):
        np.testing.assert_allclose(fn(x, y, weights).numpy(), expected.reshape(2, -1), rtol=1e-13)


def test_errors_are_held_against_the_bound() -> None:
    one = torch.ones(3, dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    # 13 roundings: one term and twelve more
    assert (
        excess(one + 12.9 * eps, one, one, one, torch.float32)
        < 1
        < excess(one + 13.1 * eps, one, one, one, torch.float32)
    )
    assert excess(one, one[:2], one, one, torch.float32) == float("inf")
    assert excess(one / 0, one, one, one, torch.float32) == float("inf")
    assert excess(one[:0], one[:0], one[:0], one[:0], torch.float32) == 0
