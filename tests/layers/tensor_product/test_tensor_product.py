"""TensorProduct against e3nn: values and all first and second derivatives of random products in mixed modes."""

import random
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import o3
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eqlayers import Linear, TensorProduct, TensorProductConv, paths, to_ir_mul, to_mul_ir
from eqlayers.errors import ConfigError
from eqlayers.irreps.instructions import MODES
from eqlayers.nn import SO2Convolution

#: mode -> irreps of in1, in2, out that show every letter with a length of its own
PLACES = {
    "uvw": ("2x1o", "3x1e", "4x1o"),
    "uvu": ("2x1o", "3x1e", "2x1o"),
    "uvv": ("2x1o", "3x1e", "3x1o"),
    "uuw": ("3x1o", "3x1e", "2x1o"),
    "uuu": ("3x1o", "3x1e", "3x1o"),
    "uvuv": ("2x1o", "3x1e", "6x1o"),
    "uvu<v": ("4x1o", "4x1e", "6x1o"),
    "u<vw": ("4x1o", "4x1e", "2x1o"),
}
ROWS = [(mode, True) for mode in PLACES] + [(mode, False) for mode in PLACES if not MODES[mode].must_weight]


def both_layouts(ours: TensorProduct, flipped: TensorProduct) -> Any:
    """A map that runs in the other layout."""

    def run(x: Tensor, y: Tensor, *weight: Tensor) -> Tensor:
        z = flipped(to_ir_mul(x, ours.irreps_in1), to_ir_mul(y, ours.irreps_in2), *weight)
        return to_mul_ir(z, ours.irreps_out)

    return run


def check_random_product(twins: Any, dice: random.Random) -> None:
    case = twins.product(dice)
    theirs = twins.e3nn(o3.TensorProduct, *case.args, **case.kwargs)
    ours = TensorProduct(*case.args, **case.kwargs)
    assert ours.weight_numel == theirs.weight_numel
    assert [i.path_shape for i in ours.instructions] == [i.path_shape for i in theirs.instructions]
    torch.testing.assert_close(
        [i.path_weight for i in ours.instructions], [i.path_weight for i in theirs.instructions], rtol=1e-14, atol=0
    )
    assert torch.equal(ours.output_mask.double(), theirs.output_mask.double())
    reference = twins.two_orders(theirs, case.inputs, case.wanted)
    twins.assert_close(twins.two_orders(ours, case.inputs, case.wanted), reference, case.depth)
    flipped = both_layouts(ours, TensorProduct(*case.args, **case.kwargs, layout="ir_mul"))
    twins.assert_close(twins.two_orders(flipped, case.inputs, case.wanted), reference, case.depth)


@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=6)  # each compiles kernels
def test_random_products_equal_e3nn(twins: Any, number: int) -> None:
    check_random_product(twins, random.Random(number))


@pytest.mark.slow
@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=300)
def test_many_random_products_equal_e3nn(twins: Any, number: int) -> None:
    check_random_product(twins, random.Random(number))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("shared", "layout"),
    [
        (True, "mul_ir"),
        (False, "ir_mul"),
        pytest.param(True, "ir_mul", marks=pytest.mark.slow),
        pytest.param(False, "mul_ir", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("mode", "has_weight"), ROWS)
def test_every_mode_alone(twins: Any, mode: str, has_weight: bool, shared: bool, layout: str) -> None:
    in1, in2, out = (o3.Irreps(i) for i in PLACES[mode])
    if mode == "uuw" and not has_weight:
        out = o3.Irreps("1x1o")
    args = (in1, in2, out, [(0, 0, 0, mode, has_weight)])
    theirs = twins.e3nn(o3.TensorProduct, *args, shared_weights=shared, internal_weights=False)
    ours = TensorProduct(*args, shared_weights=shared, internal_weights=False, layout=layout)
    run = ours if layout == "mul_ir" else both_layouts(ours, ours)
    inputs = {"x": torch.randn(3, in1.dim).double(), "y": torch.randn(3, in2.dim).double()}
    if has_weight:
        inputs["weight"] = torch.randn(*([] if shared else [3]), ours.weight_numel).double()
    wanted = tuple(inputs)
    reference = twins.two_orders(theirs, inputs, wanted)
    assert reference["value"].abs().max() > 0.1  # the comparison below is of numbers, not of zeros
    twins.assert_close(twins.two_orders(run, inputs, wanted), reference, in1.dim * in2.dim)


@pytest.mark.parametrize(
    "out", ["3x5e+2x1o+1e", "2x1o+3x5e+1e", "2x1o+1e+3x5e", "3x0e+3x5e+2x1o+1e", "3x5e+3x5e+2x1o+1e+5e"]
)
def test_unreachable_outputs_stay_zero_and_in_place(twins: Any, out: str) -> None:
    irreps = o3.Irreps(out)
    ends = [k for k, (_, ir) in enumerate(irreps) if ir in (o3.Irrep("1o"), o3.Irrep("1e"))]
    first, second = sorted(ends, key=lambda k: -irreps[k].ir.p)  # 1e, 1o
    rows = [(1, 0, second, "uvu", True), (1, 0, second, "uvw", True), (0, 0, first, "uvw", True)]
    args = ("1x1o + 2x0e + 2x5o", "1x1o", out, rows)
    theirs, ours = twins.e3nn(o3.TensorProduct, *args), TensorProduct(*args).double()
    ours.load_state_dict(theirs.state_dict())
    inputs = {"x": torch.randn(4, ours.irreps_in1.dim).double(), "y": torch.randn(4, 3).double()}
    got = twins.two_orders(ours, inputs, ("x", "y"))
    twins.assert_close(got, twins.two_orders(theirs, inputs, ("x", "y")), 100)
    reached = ours.output_mask.bool()
    assert int(reached.sum()) == 9
    assert torch.equal(got["value"] != 0, reached.expand(4, -1))
    assert torch.equal(got["d/dx"][:, 5:], torch.zeros(4, 22).double())  # the unused 2x5o, at its own place


def test_internal_weights_are_the_same_flat_vector(twins: Any) -> None:
    rows = [(0, 0, 0, "uvw", True), (0, 1, 1, "uvu", True, 2.0), (1, 0, 2, "uvuv", False), (1, 1, 0, "uvw", True)]
    args = ("2x0e + 3x1o", "1x0e + 2x1o", "2x0e + 2x1o + 3x1o", rows)
    theirs, ours = twins.e3nn(o3.TensorProduct, *args), TensorProduct(*args).double()
    assert ours.internal_weights
    assert isinstance(ours.weight, torch.nn.Parameter)
    with torch.no_grad():
        ours.weight.copy_(theirs.weight)
    x, y = torch.randn(5, 11).double(), torch.randn(5, 7).double()
    twins.assert_close({"value": ours(x, y).detach()}, {"value": theirs(x, y).detach()}, 77)
    for view, other in zip(ours.weight_views(), theirs.weight_views(), strict=True):
        assert torch.equal(view, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_every_dtype_runs_and_keeps_its_dtype(dtype: torch.dtype, layout: str) -> None:
    """Half precision rounds each operand and result a few times; sums are formed in float32."""
    rows = [(0, 0, 0, "uvu", True), (1, 0, 1, "uvw", True), (1, 1, 2, "uvu", False)]
    args = ("4x0e + 4x1o", "1o + 1e", "4x1o + 3x0e + 4x1o", rows)
    ours, exact = TensorProduct(*args, layout=layout).to(dtype), TensorProduct(*args, layout=layout).double()
    x, y = torch.randn(6, 16).to(dtype).requires_grad_(), torch.randn(6, 6).to(dtype).requires_grad_()
    z = ours(x, y)
    assert z.dtype == dtype
    gradients = torch.autograd.grad(z.sum(), [x, y, ours.weight])
    assert {g.dtype for g in gradients} == {dtype}
    exact.load_state_dict({k: v.double() for k, v in ours.state_dict().items()})
    reference = exact(x.double(), y.double()).detach()
    limit = (16 * torch.finfo(dtype).eps + 100 * torch.finfo(torch.float64).eps) * float(reference.abs().max())
    assert float((z.detach().double() - reference).abs().max()) <= limit


@pytest.mark.parametrize("through", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("default", [torch.float16, torch.float32, torch.float64])
def test_constants_are_float64_whatever_the_default_dtype(
    twins: Any, through: torch.dtype, default: torch.dtype
) -> None:
    rows = [(0, 0, 0, "uvuv", False), (0, 0, 1, "uvuv", False), (0, 0, 2, "uvw", True)]
    args = ("2x2e", "2x1o", "4x1o + 4x3o + 3x2o", rows)
    theirs = twins.e3nn(o3.TensorProduct, *args, internal_weights=False)
    with twins.default_dtype(default):
        ours = TensorProduct(*args, internal_weights=False)
    x, y, w = torch.randn(3, 10).double(), torch.randn(3, 6).double(), torch.randn(12).double()
    twins.assert_close({"z": ours(x, y, w)}, {"z": theirs(x, y, w)}, 60)
    ours(x.to(through), y.to(through), w.to(through))  # fills what is kept per dtype
    again = ours.to(through).double()
    twins.assert_close({"z": again(x, y, w)}, {"z": theirs(x, y, w)}, 60)


def test_leading_axes_broadcast_as_in_e3nn(twins: Any) -> None:
    args = ("2x0e + 2x1o", "1o", "2x1o + 2x0e", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", True)])
    leads = [
        ((), (), ()),
        ((5,), (), ()),
        ((), (5,), ()),
        ((2, 3), (3,), (2, 1)),
        ((4, 1, 2), (3, 1), (1, 2)),
        ((0,), (1,), (1,)),
    ]
    for lead in leads:
        shared = not lead[2]
        kwargs: dict[str, Any] = {"internal_weights": False, "shared_weights": shared}
        theirs, ours = twins.e3nn(o3.TensorProduct, *args, **kwargs), TensorProduct(*args, **kwargs)
        inputs = {"x": torch.randn(*lead[0], 8), "y": torch.randn(*lead[1], 3), "weight": torch.randn(*lead[2], 4)}
        inputs = {k: v.double() for k, v in inputs.items()}
        reference = twins.two_orders(theirs, inputs, tuple(inputs))
        twins.assert_close(twins.two_orders(ours, inputs, tuple(inputs)), reference, 48)


def test_non_contiguous_inputs(twins: Any) -> None:
    args = ("2x0e + 2x1o", "1o", "2x1o + 2x0e", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", True)])
    ours = TensorProduct(*args).double()
    wide, tall = torch.randn(5, 16).double(), torch.randn(3, 5).double()
    plain = ours(wide[:, ::2].contiguous(), tall.T.contiguous())
    torch.testing.assert_close(ours(wide[:, ::2], tall.T), plain, rtol=0, atol=1e-14)


def test_right_equals_e3nn_and_the_product(twins: Any) -> None:
    args = ("2x0e + 2x1o", "1o + 0e", "2x1o + 3x0e", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvw", True)])
    for shared in (True, False):
        kwargs: dict[str, Any] = {"internal_weights": False, "shared_weights": shared, "compile_right": True}
        theirs, ours = twins.e3nn(o3.TensorProduct, *args, **kwargs), TensorProduct(*args, **kwargs)
        x, y = torch.randn(3, 8).double(), torch.randn(3, 4).double()
        w = torch.randn(*([] if shared else [3]), ours.weight_numel).double()
        matrix = ours.right(y, w)
        twins.assert_close({"right": matrix}, {"right": theirs.right(y, w)}, 32)
        twins.assert_close({"z": torch.einsum("ni,nio->no", x, matrix)}, {"z": ours(x, y, w)}, 32)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_simplified_results_fit_a_linear_map_of_simplified_irreps(layout: str) -> None:
    """Networks of e3nn simplify the irreps of every product; weights and numbers are the same in both layouts."""
    in1, in2 = o3.Irreps("2x0e + 2x1o"), o3.Irreps("0e + 1o")
    out, instructions = paths(in1, in2)
    x, y = torch.randn(4, in1.dim).double(), torch.randn(4, in2.dim).double()
    plain, linear = TensorProduct(in1, in2, out, instructions).double(), Linear(out.simplify(), "2x1o").double()
    wanted = linear(plain(x, y))
    layer = TensorProduct(in1, in2, out, instructions, simplify=True, layout=layout).double()
    behind = Linear(layer.irreps_out, "2x1o", layout=layout).double()
    layer.load_state_dict(plain.state_dict())
    behind.load_state_dict(linear.state_dict())
    assert layer.irreps_out == out.simplify()
    xs, ys = (x, y) if layout == "mul_ir" else (to_ir_mul(x, in1), to_ir_mul(y, in2))
    turned = wanted if layout == "mul_ir" else to_ir_mul(wanted, o3.Irreps("2x1o"))
    torch.testing.assert_close(behind(layer(xs, ys)), turned, rtol=1e-13, atol=1e-13)
    matrix = torch.einsum("ni,nij->nj", xs, layer.right(ys))
    torch.testing.assert_close(matrix, layer(xs, ys), rtol=1e-13, atol=1e-13)
    conv = TensorProductConv(in1, in2, out, instructions, simplify=True, layout=layout).double()
    conv.load_state_dict(plain.state_dict(), strict=False)
    alone = torch.arange(4)  # an edge from each node to itself: the product
    summed = conv(xs, ys, edge_index=torch.stack([alone, alone]))
    torch.testing.assert_close(summed, layer(xs, ys), rtol=1e-13, atol=1e-13)
    with pytest.raises(ConfigError, match="TorchScript"):
        torch.jit.script(layer)
    with pytest.raises(ConfigError, match="simplify=True"):
        SO2Convolution.from_tensor_product(TensorProduct("2x0e", "0e", "2x0e", [(0, 0, 0, "uvu", True)], simplify=True))
