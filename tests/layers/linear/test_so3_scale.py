"""SO3Scale: fixed, learned and external scalars against plain loops over the irreps."""

import random
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import o3
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eqlayers import SO3Scale, to_ir_mul, to_mul_ir
from eqlayers.testing import check_derivatives
from tests.each import each


def loop(irreps: o3.Irreps, x: Tensor, scales: Tensor, per: str, normalization: str) -> Tensor:
    """The definition, in the mul_ir layout."""
    lead = torch.broadcast_shapes(x.shape[:-1], scales.shape[:-1])
    pieces, copy = [x[..., :0].expand(*lead, 0)], 0
    for group, (columns, (mul, ir)) in enumerate(zip(irreps.slices(), irreps, strict=True)):
        block = x[..., columns].reshape(*x.shape[:-1], mul, ir.dim)
        own = scales[..., copy : copy + mul] if per == "copy" else scales[..., group : group + 1]
        norm = ir.dim**-0.5 if normalization == "norm" else 1.0
        pieces.append((block * own[..., None] * norm).expand(*lead, mul, ir.dim).reshape(*lead, mul * ir.dim))
        copy += mul
    return torch.cat(pieces, -1)


def check_random_scale(twins: Any, dice: random.Random) -> None:
    irreps = twins.irreps(dice, low=0, high=4)
    per, norm = dice.choice(["copy", "group"]), dice.choice(["component", "norm"])
    kind, layout = dice.choice(["fixed", "learned", "external"]), dice.choice(["mul_ir", "ir_mul"])
    lead = dice.choice([((3,), (3,)), ((), ()), ((0,), (0,)), ((2, 1), (3,)), ((3,), ()), ((), (2,))])
    number = irreps.num_irreps if per == "copy" else len(irreps)
    generator = torch.Generator().manual_seed(dice.randint(0, 1000))
    x = torch.randn(*lead[0], irreps.dim, generator=generator, dtype=torch.float64)
    own = lead[1] if kind == "external" else ()
    scales = torch.randn(*own, number, generator=generator, dtype=torch.float64)
    values = scales.tolist() if kind == "fixed" else None
    layer = SO3Scale(irreps, kind, values, per=per, normalization=norm, layout=layout).double()
    assert layer.num_scales == number
    if kind == "learned":
        assert torch.equal(layer.weight, torch.ones(number).double())
        with torch.no_grad():
            layer.weight.copy_(scales)

    def run(x: Tensor, scales: Tensor) -> Tensor:
        flat = to_ir_mul(x, irreps) if layout == "ir_mul" else x
        z = layer(flat, scales) if kind == "external" else layer(flat)
        return to_mul_ir(z, irreps) if layout == "ir_mul" else z

    wanted: tuple[str, ...] = ("x", "scales") if kind == "external" else ("x",)
    wanted = wanted if irreps.dim else ()
    inputs = {"x": x, "scales": scales}
    reference = twins.two_orders(lambda x, s: loop(irreps, x, s, per, norm), inputs, wanted)
    twins.assert_close(twins.two_orders(run, inputs, wanted), reference, 8)


@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=6)  # most compile kernels
def test_random_scales(twins: Any, number: int) -> None:
    check_random_scale(twins, random.Random(number))


@pytest.mark.slow
@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=200)
def test_many_random_scales(twins: Any, number: int) -> None:
    check_random_scale(twins, random.Random(number))


@pytest.mark.parametrize("frozen", [(), (0,), (1,)])
@pytest.mark.parametrize("per", ["copy", "group"])
def test_derivatives(per: str, frozen: tuple[int, ...]) -> None:
    irreps = o3.Irreps("2x0e + 2x1o + 1e")
    layer = SO3Scale(irreps, "external", per=per, normalization="norm")
    inputs = [torch.randn(2, 11).double(), torch.randn(2, layer.num_scales).double()]
    for number, value in enumerate(inputs):
        value.requires_grad_(number not in frozen)
    assert check_derivatives(layer, inputs, order=3, max_elements=6).ok


def test_learned_weight_gets_its_gradient() -> None:
    layer = SO3Scale("1x0e + 2x1o").double()
    x = torch.randn(5, 7).double()
    layer(x).sum().backward()
    expected = torch.stack([x[:, :1].sum(), x[:, 1:4].sum(), x[:, 4:].sum()])
    torch.testing.assert_close(layer.weight.grad, expected, rtol=0, atol=1e-14)


@each("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@each("kind", ["fixed", "learned", "external"])
def test_every_dtype(kind: str, dtype: torch.dtype) -> None:
    layer = SO3Scale("2x0e + 2x1o", kind, 3.0 if kind == "fixed" else None).to(dtype)
    x = torch.randn(3, 8).to(dtype)
    y = layer(x, torch.full((4,), 3.0, dtype=dtype)) if kind == "external" else layer(x)
    assert y.dtype == dtype
    assert torch.equal(y.detach(), x if kind == "learned" else 3 * x)


def test_fixed_constants_stay_float64(twins: Any) -> None:
    with twins.default_dtype(torch.float16):
        layer = SO3Scale("1x1o", "fixed", 1 / 3, normalization="norm")
    layer(torch.ones(3).half())
    assert layer.half().double()(torch.ones(3).double()).tolist() == [3**-0.5 * (1 / 3)] * 3
    assert not layer.state_dict()


@pytest.mark.kernels
def test_words() -> None:
    layer = SO3Scale("2x0e + 1x1o", "external", per="group", normalization="norm")
    assert repr(layer) == "SO3Scale(2x0e+1x1o | external, 2 scales per group, norm | mul_ir, backend auto)"
    assert layer.selected_backend() == "cpu"
    assert "all groups: cpu runs" in layer.explain()
    assert "all groups: torch runs" in SO3Scale("2x0e", "fixed", 2.0, backend="torch").explain()


@pytest.mark.parametrize("backend", ["torch", "reference", None])
def test_groups_of_one_multiplicity_may_have_different_norms(backend: str | None) -> None:
    """Scalars have the norm 1 and vectors others, in one block of as many copies."""
    irreps = o3.Irreps("2x0e + 2x1o + 2x2e")
    layer = SO3Scale(irreps, "external", normalization="norm", backend=backend).double()
    x, scales = torch.randn(3, irreps.dim).double(), torch.randn(3, 6).double()
    want = loop(irreps, x, scales, "copy", "norm")
    torch.testing.assert_close(layer(x, scales), want, rtol=4 * torch.finfo(torch.float64).eps, atol=0)  # two products
