"""Runs of terms: what is one slice operation, and the product that slices add up to."""

import itertools

import torch

from eqlayers.sparse import plans, reference, sparse_product_infos
from eqlayers.sparse.call import ProductCall
from eqlayers.sparse.channels import parse
from eqlayers.sparse.runs import find_runs, run_by_runs
from tests.each import each


def info_of(*terms, scale=None):
    """Terms (row of operand 1, of operand 2, of the result)."""
    first, second, out = zip(*terms, strict=True)
    return sparse_product_infos(first, second, out, scale, in1_size=5, in2_size=4, out_size=6)[0]


#: A weight on three components of an irrep, twice; a term twice; operands that fall, and one alone.
BLOCK = [(0, 0, 0), (1, 0, 1), (2, 0, 2)]
MIXED = [*BLOCK, (3, 1, 3), (4, 2, 3), (4, 3, 4), (4, 3, 4), (2, 2, 5)]


@each(
    "terms, scale, wanted",
    [
        (BLOCK, None, [((0, 0, 0), (1, 0, 1), 3, None, None)]),
        (BLOCK, [2.5] * 3, [((0, 0, 0), (1, 0, 1), 3, 2.5, None)]),
        (BLOCK, [2.5, 1.0, 2.5], [((0, 0, 0), (1, 0, 1), 3, None, slice(0, 3))]),
        ([(0, 0, 0), (2, 0, 1)], None, [((0, 0, 0), (0, 0, 0), 1, None, None), ((2, 0, 1), (0, 0, 0), 1, None, None)]),
        ([(1, 0, 0), (1, 1, 0)], None, [((1, 0, 0), (0, 1, 0), 2, None, None)]),
    ],
)
def test_neighbours_that_advance_alike_are_one_run(terms, scale, wanted):
    info = info_of(*terms, scale=scale)
    assert [tuple(run) for run in find_runs(info, info.terms(5, 4))] == wanted


@each("scale", [None, [2.0] * 8, [0.5, 1.5, -2.5, 3.5, 0.7, 0.3, 0.1, 1.1]])
def test_runs_hold_every_term_once_in_its_order(scale):
    info = info_of(*MIXED, scale=scale)
    terms, written = info.terms(5, 4), []
    for run in find_runs(info, terms):
        for n in range(run.length):
            factor = run.scale if run.place is None else float(terms.scale[run.place][n])
            written.append((*(start + n * step for start, step in zip(run.start, run.step, strict=True)), factor))
    assert written == [(*term, factor) for term, factor in zip(MIXED, scale or [None] * 8, strict=True)]


@each("spec", ["u,u->u", "u,v->uv", "u,uv->v", "uv,v->u", ",->"])
def test_the_product_by_slices_is_the_product_by_terms(spec):
    """Every row of the result in one run, which writes, and in several, which add."""
    sizes, channels = {"u": 3, "v": 2}, parse(spec)
    letters = [
        f"n{side}{part}" for side, part in zip("IJO", (channels.first, channels.second, channels.out), strict=True)
    ]
    shapes = [(2, rows, *(sizes[c] for c in part)) for rows, part in zip((5, 4), channels, strict=False)]
    x, y = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    once = [(0, 0, 0), (1, 0, 1), (2, 0, 2), (4, 1, 3), (4, 2, 4), (4, 3, 5)]
    for terms, scale in itertools.product((MIXED, once), (None, 2.5, [0.5, 1.5, -2.5, 3.5, 0.7, 0.3, 0.1, 1.1])):
        values = [scale] * len(terms) if isinstance(scale, float) else scale and scale[: len(terms)]
        call = ProductCall(channels, x, y, info_of(*terms, scale=values), (True, True, True), 2)
        z = run_by_runs(x, y, call.info, plans._sizes(call), tuple(letters))
        torch.testing.assert_close(z, reference.product(call), rtol=1e-13, atol=1e-13)
