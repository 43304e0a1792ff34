"""Flat features and the two layouts."""

import pytest
import torch
from e3nn import o3
from hypothesis import given, settings
from hypothesis import strategies as st

from eqlayers import to_ir_mul, to_mul_ir
from eqlayers.errors import ConfigError, DTypeError, ShapeError
from eqlayers.irreps.layout import FlatLayout

IRREPS = st.lists(st.tuples(st.integers(0, 4), st.tuples(st.integers(0, 3), st.sampled_from([1, -1]))), max_size=5).map(
    o3.Irreps
)


def by_hand(x: torch.Tensor, irreps: o3.Irreps) -> torch.Tensor:
    """mul_ir to ir_mul, group by group."""
    pieces = [x[..., :0]]
    for columns, (mul, ir) in zip(irreps.slices(), irreps, strict=True):
        pieces.append(
            x[..., columns].reshape(*x.shape[:-1], mul, ir.dim).transpose(-1, -2).reshape(*x.shape[:-1], -1)
            if mul
            else x[..., :0]
        )
    return torch.cat(pieces, -1)


@given(irreps=IRREPS, lead=st.sampled_from([(), (3,), (2, 3)]))
@settings(derandomize=True, database=None, deadline=None, max_examples=40)
def test_layouts_are_inverse_and_right(irreps: o3.Irreps, lead: tuple[int, ...]) -> None:
    x = torch.randn(*lead, irreps.dim)
    assert torch.equal(to_ir_mul(x, irreps), by_hand(x, irreps))
    assert torch.equal(to_mul_ir(to_ir_mul(x, irreps), irreps), x)


@given(irreps=IRREPS)
@settings(derandomize=True, database=None, deadline=None, max_examples=40)
def test_slots_are_the_slices_of_the_irreps(irreps: o3.Irreps) -> None:
    slots = FlatLayout(irreps, "mul_ir").slots
    assert [(slot.start, slot.stop) for slot in slots] == [(s.start, s.stop) for s in irreps.slices()]
    assert [(slot.mul, slot.dim) for slot in slots] == [(mul, ir.dim) for mul, ir in irreps]


def test_gradients_go_through() -> None:
    irreps = o3.Irreps("2x1o + 3x0e")
    x = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: to_ir_mul(x, irreps), [x])
    assert torch.autograd.gradgradcheck(lambda x: to_ir_mul(x, irreps) ** 2, [x], fast_mode=True)


@pytest.mark.parametrize("turn", [to_ir_mul, to_mul_ir])
def test_wrong_width(turn: object) -> None:
    assert callable(turn)
    with pytest.raises(ShapeError, match=r"x must be \[\.\.\., 6\] for irreps 2x1o, got \[4, 5\]\. Build"):
        turn(torch.zeros(4, 5), o3.Irreps("2x1o"))
    with pytest.raises(ShapeError, match=r"got \[6, 4\]\. The features go last"):
        turn(torch.zeros(6, 4), o3.Irreps("2x1o"))
    with pytest.raises(ShapeError, match=r"got \[4, 3, 2\]\. .*flatten\(-2\)"):
        turn(torch.zeros(4, 3, 2), o3.Irreps("2x1o"))
    with pytest.raises(DTypeError, match=r"must be a tensor \[\.\.\., 6\], got \[0"):
        turn([0.0] * 6, o3.Irreps("2x1o"))


def test_unknown_layout() -> None:
    with pytest.raises(ConfigError, match=r"layout must .*got 'channels_last'"):
        FlatLayout(o3.Irreps("0e"), "channels_last")
