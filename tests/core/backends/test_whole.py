"""Whole forms in plain torch: the numbers of a program run by hand, in every mode; what no term names stays alone."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

import eqlayers as eq
from eqlayers.core.backends import whole
from eqlayers.irreps.instructions import MODES
from tests.by_hand import contract as by_hand
from tests.covering import covering
from tests.each import each

EPS = torch.finfo(torch.float64).eps
RUNS = [whole.contract, whole.by_infos, whole.define]
BOTH = pytest.mark.parametrize("run", RUNS, ids=["torch", "sparse", "reference"])
LAYOUTS = pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
CASES = covering(
    {"mode": list(MODES), "run": RUNS, "mul": [3, 2, 1], "layout": ["mul_ir", "ir_mul"], "shared": [True, False]},
    lambda case: case.get("mul") != 1 or "<" not in case.get("mode", ""),  # one copy has no pairs
)


def layer(mode: str, mul: int, layout: str = "mul_ir", has_weight: bool = True, **kwargs: Any) -> eq.TensorProduct:
    """Two paths of one mode, into one block of z, with a block between that nothing reaches."""
    pairs = mul * (mul - 1) // 2
    out = {"uvu": mul, "uvv": mul, "uuu": mul, "uvuv": mul * mul, "uvu<v": pairs}.get(mode, 3)
    rows = [(0, 0, 0, mode, has_weight), (1, 1, 0, mode, has_weight), (1, 0, 2, mode, has_weight)]
    irreps = f"{mul}x1o + {mul}x2e", f"{mul}x1o + {mul}x2e", f"{out}x1e + 2x0o + {out}x2o"
    return eq.TensorProduct(*irreps, rows, layout=layout, **kwargs)


def operands(
    product: eq.TensorProduct, shared: bool, rows: int = 5, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    torch.manual_seed(4)
    lead = () if shared else (rows,)
    shapes = (rows, product.irreps_in1.dim), (rows, product.irreps_in2.dim), (*lead, product.weight_numel)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


@each("mode, run, mul, layout, shared", [tuple(case.values()) for case in CASES])
def test_every_mode(mode: str, run: Any, mul: int, layout: str, shared: bool) -> None:
    product = layer(mode, mul, layout)
    given = operands(product, shared)
    arrays = dict(zip("xyw", (t.numpy().reshape(-1, t.shape[-1]) for t in given), strict=True))
    program = product.plan.form.program
    want, found = torch.from_numpy(by_hand(program, "z", **arrays)), run(product.plan.form.key, *given)
    assert want.any()
    assert (found - want).abs().max() <= 100 * EPS * want.abs().max()
    middle = product.irreps_out.slices()[1]
    assert not found[:, middle].any()


@BOTH
@pytest.mark.parametrize("mode", ["uvu", "uvv", "uuu", "uvuv", "uvu<v"])
def test_without_weights(run: Any, mode: str) -> None:
    product = layer(mode, 3, has_weight=False)
    x, y, w = operands(product, True)
    want = torch.from_numpy(by_hand(product.plan.form.program, "z", x=x.numpy(), y=y.numpy(), w=None))
    assert (run(product.plan.form.key, x, y, w) - want).abs().max() <= 100 * EPS * want.abs().max()


@BOTH
@pytest.mark.parametrize("mode", ["uvu", "uvw", "uvu<v"])
def test_derivatives(run: Any, mode: str) -> None:
    product = layer(mode, 2)
    given = [t.requires_grad_() for t in operands(product, True, 2)]
    function = lambda *tensors: run(product.plan.form.key, *tensors)  # noqa: E731
    assert gradcheck(function, given, fast_mode=True)
    assert gradgradcheck(function, given, fast_mode=True)


@BOTH
def test_what_no_path_reads_has_a_gradient_of_zero(run: Any) -> None:
    rows = [(0, 0, 0, "uuu", False), (1, 1, 1, "uuu", True, 0.0)]  # the path with the weight has the coefficient 0
    for used in (rows, rows[1:]):
        product = eq.TensorProduct("2x0e + 2x1o", "2x0e + 2x1o", "2x0e + 2x0e", used)
        given = [t.requires_grad_() for t in operands(product, True)]
        z = run(product.plan.form.key, *given)
        found = torch.autograd.grad(z.sum(), given)
        assert [tuple(g.shape) for g in found] == [tuple(t.shape) for t in given]
        assert not found[2].any()
        assert not z[:, 2:].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_only_terms_spread_what_is_not_finite_in_the_reference(bad: float) -> None:
    product = eq.TensorProduct("2x1o", "1o", "2x1e", [(0, 0, 0, "uvu", False)])
    x, y, w = operands(product, True)
    x[3, 1] = bad  # y of the first vector: no term takes it to the y of a cross product
    key = product.plan.form.key
    assert torch.isfinite(whole.define(key, x, y, w)).logical_not().nonzero().tolist() == [[3, 0], [3, 2]]
    rows = torch.isfinite(whole.contract(key, x, y, w)).all(1)
    assert rows.tolist() == [True, True, True, False, True]


def test_the_order_of_contractions_follows_the_sizes() -> None:
    """Never all channels at once: x and y meet before many weights, or y and the weights before many components."""
    product = eq.TensorProduct("8x1o", "30x0e", "8x1o", [(0, 0, 0, "uvw", True)], internal_weights=False)
    path = whole.WholeForm(product.plan.form.program).paths[0]
    for equations in (path._contraction(True).equations, path._contraction(False).equations):
        assert [equation.count(",") for equation in equations] == [1, 1, 1]
        assert all(len(set(equation.partition("->")[2]) - set("nijk")) <= 2 for equation in equations)
    harmonics = whole.WholeForm(layer("uvu", 8).plan.form.program).paths[0]
    assert harmonics._contraction(True).equations[-1].endswith("->nka")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, autocast: bool) -> None:
    product = layer("uvw", 3)
    given = operands(product, True, dtype=dtype)
    want = whole.define(product.plan.form.key, *(t.double() for t in given))
    with torch.autocast("cpu", enabled=autocast):
        found = whole.contract(product.plan.form.key, *given)
        high = whole.contract(product.plan.form.key, *(t.float() for t in given))
    assert (found.dtype, high.dtype) == (dtype, torch.float32)
    assert (high.double() - want).abs().max() <= 100 * torch.finfo(torch.float32).eps * want.abs().max()
    assert torch.equal(found, high.to(dtype))


@BOTH
@LAYOUTS
def test_no_rows_strides_and_expanded_rows(run: Any, layout: str) -> None:
    product = layer("uvu", 3, layout)
    x, y, w = operands(product, True)
    key = product.plan.form.key
    assert run(key, x[:0], y[:0], w).shape == (0, product.irreps_out.dim)
    apart = torch.stack([x, x], -1)[..., 0]
    assert not apart.is_contiguous()
    assert torch.equal(run(key, apart, y, w), run(key, x, y, w))
    one = y[:1].expand(5, -1)
    close = 100 * EPS * float(run(key, x, one.contiguous(), w).abs().max())
    assert (run(key, x, one, w) - run(key, x, one.contiguous(), w)).abs().max() <= close


def test_coefficients_are_cast_once_from_float64() -> None:
    product = layer("uvu", 2)
    path = whole._whole(product.plan.form.key).paths[0]
    for dtype in (torch.float32, torch.float64, torch.float32):
        whole.contract(product.plan.form.key, *operands(product, True, dtype=dtype))
    tables = path._constants._tensors.on_host
    kept = tables[torch.float64], tables[torch.float32]
    assert {key for key in tables if isinstance(key, torch.dtype)} == {torch.float32, torch.float64}
    assert torch.equal(kept[1], kept[0].float())
    assert np.count_nonzero(kept[0].numpy()) == len(path.path.terms)


@pytest.mark.parametrize("mode", ["inference", "hessian", "fake"])
def test_what_is_kept_from_the_first_call_serves_the_others(mode: str) -> None:
    """Tables that a validation, a transform or fakes meet first are those of training, too."""
    product = eq.FullyConnectedTensorProduct("2x1o", "30x0e", "2x1o").double()  # matrix products on any backend
    x, y, _ = operands(product, True)
    whole._whole.cache_clear()
    if mode == "inference":
        with torch.inference_mode():
            product(x, y)
    elif mode == "hessian":
        torch.func.hessian(lambda x: product(x, y).sin().sum())(x)
    else:
        with FakeTensorMode(allow_non_fake_inputs=True) as fakes:
            assert product(fakes.from_tensor(x), fakes.from_tensor(y)).shape == (5, 6)
    z = product(x.requires_grad_(), y)
    z.sum().backward()
    assert type(z) is Tensor
    product.backend = "reference"
    assert (z - product(x, y)).abs().max() <= 100 * EPS * z.abs().max()
    assert torch.func.grad(lambda x: product(x, y).sum())(x).isfinite().all()


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
@pytest.mark.parametrize(
    "run",
    [whole.contract, whole.by_infos, pytest.param(whole.define, marks=pytest.mark.slow)],  # a graph of every term
    ids=["torch", "sparse", "reference"],
)
def test_batches_of_any_size_in_one_exported_graph(run: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            return run(key, x, y, w)

    product = layer("uvw", 3)
    key = product.plan.form.key
    rows = torch.export.Dim("rows")
    sizes = {"x": {0: rows}, "y": {0: rows}, "w": None}
    exported = torch.export.export(Module(), tuple(operands(product, True)), dynamic_shapes=sizes, strict=False)
    given = operands(product, True, rows=9)
    want = run(key, *given)  # a sparse product may run by another plan where it knows the number of rows
    assert (exported.module()(*given) - want).abs().max() <= 100 * EPS * want.abs().max()


def test_operands_are_cut_once() -> None:
    """The gradient of a block alone is as wide as the row: one of them for each path would be filled with zeros."""
    product = layer("uvw", 3)
    given = [t.requires_grad_() for t in operands(product, False)]
    names, todo = [], [whole.contract(product.plan.form.key, *given).grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            names.append(type(node).__name__)
            todo += [following for following, _ in node.next_functions]
    assert "SliceBackward0" not in names
    assert names.count("SplitWithSizesBackward0") > 3
