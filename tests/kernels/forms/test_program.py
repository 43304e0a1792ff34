"""The program of a tensor product, interpreted, against e3nn; and what a program checks, says and hashes."""

import numpy as np
import pytest
import torch
from e3nn import o3

import eqlayers as eq
from eqlayers_kernels.forms.program import LAYOUTS, Axis, Path, Program, Slot
from tests.by_hand import contract
from tests.cases import default_dtype
from tests.each import each

# mode, in1, in2, out, has_weight; unequal and odd multiplicities, an irrep without a path, one that two paths share
LAYERS = {
    "uvw": ("3x0e + 2x1o", "2x1o + 1x0e", "4x1o + 2x2o + 1x0e", [(0, 0, 0), (1, 0, 2), (1, 1, 0)], True),
    "uvu": ("3x0e + 2x1o", "2x1o + 1x0e", "3x1o + 2x1e + 2x2e", [(0, 0, 0), (1, 0, 1), (1, 0, 2)], True),
    "uvv": ("3x1o + 1x0e", "2x1o", "2x0e + 2x1o + 2x2e", [(0, 0, 0), (1, 0, 1), (0, 0, 2)], True),
    "uuw": ("3x1o + 2x0e", "3x1o + 2x1o", "5x1e + 1x1o", [(0, 0, 0), (1, 1, 1)], True),
    "uuu": ("3x1o + 2x0e", "3x1o + 2x1o", "3x1e + 2x1o + 3x0e", [(0, 0, 0), (1, 1, 1), (0, 0, 2)], True),
    "uvuv": ("3x1o + 2x0e", "2x1o", "6x1e + 4x1o", [(0, 0, 0), (1, 0, 1)], True),
    "uvu<v": ("4x1o", "4x1o", "6x1e + 6x0e", [(0, 0, 0), (0, 0, 1)], True),
    "u<vw": ("4x1o", "4x1o", "5x1e + 2x2e", [(0, 0, 0), (0, 0, 1)], True),
    "uuw without weights": ("3x1o", "3x1o", "1x1e", [(0, 0, 0)], False),
    "uvuv without weights": ("3x1o", "2x1o", "6x2e", [(0, 0, 0)], False),
}
ROWS = 4


def flat(irreps: o3.Irreps, layout: str) -> np.ndarray:
    """Column in ``layout`` of every column of e3nn's order."""
    parts = [
        np.arange(c.start, c.stop).reshape((mul, ir.dim) if layout == "mul_ir" else (ir.dim, mul))
        for c, (mul, ir) in zip(irreps.slices(), irreps, strict=True)
    ]
    return np.concatenate([(p if layout == "mul_ir" else p.T).reshape(-1) for p in parts])


@pytest.mark.parametrize("case", LAYERS)
def test_the_interpreter_agrees_with_e3nn_on_values_and_gradients(case: str) -> None:
    in1, in2, out, places, weighted = LAYERS[case]
    paths = [(*place, case.split()[0], weighted) for place in places]
    with default_dtype(torch.float64):  # e3nn rounds its constants to it
        theirs = o3.TensorProduct(in1, in2, out, paths, internal_weights=False, shared_weights=False)
    irreps = theirs.irreps_in1, theirs.irreps_in2, theirs.irreps_out
    sizes = irreps[0].dim, irreps[1].dim, theirs.weight_numel, irreps[2].dim
    x, y, w, g = (torch.randn(ROWS, n, dtype=torch.float64, requires_grad=True) for n in sizes)
    z = theirs(x, y, w)
    wanted = [z, *torch.autograd.grad(z, (x, y, w), g, materialize_grads=True)]
    for layout in LAYOUTS:
        program = eq.TensorProduct(in1, in2, out, paths, shared_weights=False, layout=layout).plan.form.program
        columns = {**dict(zip("xyz", (flat(i, layout) for i in irreps), strict=True)), "w": np.arange(sizes[2])}
        arrays = {}
        for name, tensor in zip("xywz", (x, y, w, g), strict=True):
            arrays[name] = np.empty(tensor.shape)
            arrays[name][:, columns[name]] = tensor.detach().numpy()
        for name, value in zip("zxyw", wanted, strict=True):
            got = contract(program, name, **{n: a for n, a in arrays.items() if n != name})[:, columns[name]]
            want = value.detach().numpy()
            # at most 6 channels x 9 terms x 3 paths are summed, of random numbers: 200 roundings of the largest result
            np.testing.assert_allclose(got, want, rtol=0, atol=200 * 2.3e-16 * max(1.0, np.abs(want).max(initial=0)))


GOOD = Path(
    Slot(0, 4, 3),
    Slot(0, 2, 1),
    Slot(0, 4, 3),
    0,
    (Axis(2, y=1, w=1), Axis(4, x=1, w=2, z=1)),
    ((0, 0, 0, 1.5), (1, 0, 2, -0.5)),
)
WIDTHS = (12, 2, 8, 12)


def test_rows_that_are_shared_and_weights_that_are_not_there() -> None:
    program = Program((GOOD,), WIDTHS, "ir_mul")
    x, y, w = np.ones((3, 12)), np.arange(1.0, 3)[None], np.arange(8.0)[None]
    z = contract(program, "z", x=x, y=y, w=w)
    assert z.shape == (3, 12)
    np.testing.assert_array_equal(z[0, :4], [1.5 * (1 * w[0, 2 * u] + 2 * w[0, 2 * u + 1]) for u in range(4)])
    np.testing.assert_array_equal(z[1, 8:], z[0, :4] / -3)
    np.testing.assert_array_equal(z[:, 4:8], 0)
    bare = Program((GOOD._replace(weight=None, axes=(Axis(2, y=1), Axis(4, x=1, z=1))),), (12, 2, 0, 12), "ir_mul")
    np.testing.assert_array_equal(contract(bare, "z", x=x, y=y, w=None)[2, :4], 4.5)


def test_pairs_run_over_all_u_below_v() -> None:
    axis = Axis(4, x=1, y=1, w=5, z=2, pairs=True)
    assert axis.length == 6
    pairs = [(u, v) for u in range(4) for v in range(u + 1, 4)]
    assert [*zip(axis.offsets("x"), axis.offsets("y"), strict=True)] == pairs
    assert [*axis.offsets("w")] == [0, 5, 10, 15, 20, 25]
    assert [*axis.offsets("z")] == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_of_a_slot(layout: str) -> None:
    columns = Slot(10, 4, 3).columns(layout)
    assert sorted(columns.reshape(-1)) == [*range(10, 22)]
    assert columns[2, 1] == {"mul_ir": 10 + 1 * 3 + 2, "ir_mul": 10 + 2 * 4 + 1}[layout]


@pytest.mark.parametrize(
    ("axes", "inner"),
    [
        ((Axis(2, y=1, w=1), Axis(4, x=1, w=2, z=1)), 1),  # long
        ((Axis(64, x=1, w=64), Axis(64, y=1, w=1, z=1)), 1),  # as long, with unit steps
        ((Axis(16, x=1), Axis(16, y=1, z=1)), 1),  # as long, unit steps: writing beats summing
        ((Axis(16, y=1, z=1), Axis(16, x=1)), 0),
        ((Axis(6, 1, 1, 11, 0, pairs=True), Axis(3, w=1, z=1)), 1),  # never pairs
    ],
)
def test_the_innermost_axis(axes: tuple[Axis, ...], inner: int) -> None:
    path = GOOD._replace(axes=axes)
    assert path.inner is axes[inner]
    assert path.outer == (axes[1 - inner],)


def test_without_channels_the_innermost_loop_has_one_step() -> None:
    path = GOOD._replace(axes=())
    assert path.inner.extent == 1
    assert path.outer == ()
    assert path.weight_count == 1


def test_equal_content_equal_key_another_content_another_key() -> None:
    program = Program((GOOD,), WIDTHS, "mul_ir")
    assert Program((Path(*GOOD),), WIDTHS, "mul_ir").key == program.key
    more = GOOD._replace(terms=((0, 0, 0, 1.5), (1, 0, 2, -0.5 * (1 + 2**-52))))
    others = [
        Program((GOOD,), WIDTHS, "ir_mul"),
        Program((GOOD,), (13, 2, 8, 12), "mul_ir"),
        Program((more,), WIDTHS, "mul_ir"),
        Program((GOOD._replace(weight=None),), WIDTHS, "mul_ir"),
        Program((GOOD, GOOD._replace(weight=8)), (12, 2, 16, 12), "mul_ir"),
        Program((GOOD._replace(axes=GOOD.axes[::-1]),), WIDTHS, "mul_ir"),
    ]
    assert len({program.key, *(other.key for other in others)}) == 1 + len(others)


def test_str_shows_every_path() -> None:
    second = GOOD._replace(weight=None, axes=(Axis(4, x=1, z=1),), y=Slot(0, 2, 1))
    program = Program((GOOD, second), WIDTHS, "mul_ir")
    first, *lines = str(program).splitlines()
    assert first == f"program {program.key}: x 12, y 2, w 8, z 12"
    assert [line.strip() for line in lines] == [
        "z[0: 3 x 4] += x[0: 3 x 4] * y[0: 1 x 2] * w[0:8], 2 terms, channels 2 x 4",
        "z[0: 3 x 4] += x[0: 3 x 4] * y[0: 1 x 2] * no weights, 2 terms, channels 4",
    ]
    assert program.num_terms == 4


@each(
    "path, message",
    [
        (GOOD._replace(x=Slot(1, 4, 3)), r"x must lie in 12 columns, got .* to 13\. Correct the slot"),
        (GOOD._replace(y=Slot(-1, 2, 1)), "y must lie in 2 columns, .* Correct the slot"),
        (GOOD._replace(z=Slot(0, 0, 3)), "z must lie in 12 columns, .* Correct the slot"),
        (GOOD._replace(z=Slot(0, 3, 3)), "within the 3 channels of z, got channel 3. Correct the steps"),
        (GOOD._replace(axes=(Axis(3, y=1, pairs=True),)), "within the 2 channels of y, got channel 2. Correct the"),
        (GOOD._replace(axes=(Axis(0, x=1),)), "extents of 1 or more and no negative steps, .* without channels"),
        (GOOD._replace(axes=(Axis(2, x=-1),)), "extents of 1 or more and no negative steps"),
        (GOOD._replace(weight=1), "its 8 weights must lie in 8 columns, got the first in column 1. Correct the offset"),
        (GOOD._replace(weight=-1), "Correct the offset"),
        (GOOD._replace(terms=((0, 0, 3, 1.0),)), r"below 3, 1, 3, got \(0, 0, 3\)\. Count components within the slot"),
        (GOOD._replace(terms=((0, -1, 0, 1.0),)), "Count components within the slot"),
        (GOOD._replace(terms=((0, 0, 0, 0.0),)), "numbers other than 0, got 0.0. Drop the term"),
        (GOOD._replace(terms=((0, 0, 0, float("nan")),)), "numbers other than 0, got nan. Drop the term"),
    ],
)
def test_offsets_are_checked_where_the_program_is_made(path: Path, message: str) -> None:
    Program((GOOD,), WIDTHS, "mul_ir")
    with pytest.raises(ValueError, match=f"path 1: .*{message}"):
        Program((GOOD, path), WIDTHS, "mul_ir")


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of mul_ir, ir_mul, got 'channels_last'\. Pick one of these"):
        Program((GOOD,), WIDTHS, "channels_last")


WIDE = (24, 2, 16, 24)


@pytest.mark.parametrize(
    "paths",
    [
        (GOOD, GOOD._replace(z=Slot(12, 4, 3))),
        (GOOD._replace(axes=(Axis(2, y=1), Axis(4, x=1, w=2, z=1))),),
        (GOOD, GOOD._replace(weight=8, z=Slot(4, 4, 3))),
        (GOOD, GOOD._replace(weight=8, x=Slot(4, 4, 3), z=Slot(12, 4, 3))),
        (GOOD._replace(axes=(Axis(2, y=1, w=1), Axis(3, x=1, w=2, z=1))),),
        (GOOD._replace(axes=(Axis(2, y=1, w=2), Axis(4, x=1, w=4, z=1))),),
    ],
    ids=["weights of two paths", "weights read twice", "z overlaps", "x overlaps", "z left out", "weights left out"],
)
def test_what_kernels_cannot_run_is_refused(paths: tuple[Path, ...]) -> None:
    with pytest.raises(ValueError, match="path"):
        Program(paths, WIDE, "mul_ir")
