"""Parts of features, features side by side, other orders and bases: numbers, views, errors."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from e3nn import nn as theirs
from e3nn import o3

from eqlayers import to_ir_mul, to_mul_ir
from eqlayers.errors import ConfigError, DTypeError, IndexRangeError, IrrepsError, ShapeError
from eqlayers.irreps.algebra import representation_matrix
from eqlayers.irreps.layout import FlatLayout
from eqlayers.layers.base.columns import Columns, whole_row
from eqlayers.nn import ChangeOfBasis, Extract, ExtractIr, Identity, Linear, Merge, Separable, Sort, Split
from tests.each import each, refused

IRREPS = o3.Irreps("2x1o + 3x0e + 3x1o + 1x2e")
MIXED = "2x0e + 3x1o + 2x2e + 1x3o + 1x1e"
EPS = torch.finfo(torch.float64).eps


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize("instructions", [[(1,)], [(0, 1, 2, 3)], [(3, 1), (-1, -4)], [(), (2,)]])
def test_extract_gives_e3nns_numbers(instructions: list[tuple[int, ...]], squeeze: bool) -> None:
    outs = [o3.Irreps([IRREPS[i] for i in ins]) for ins in instructions]
    x = numbers(2, 3, IRREPS.dim)
    ours, reference = (kind(IRREPS, outs, instructions, squeeze)(x) for kind in (Extract, theirs.Extract))
    assert type(ours) is type(reference)
    pairs = zip(ours, reference, strict=True) if isinstance(ours, tuple) else [(ours, reference)]
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_parts_that_stand_side_by_side_are_views(layout: str) -> None:
    x = numbers(4, IRREPS.dim)
    (part,) = Extract(IRREPS, ["3x0e + 3x1o"], [(1, 2)], layout=layout)(x)
    assert part.data_ptr() == x[:, 6:].data_ptr()
    assert ExtractIr(IRREPS, "2e", layout=layout)(x).data_ptr() == x[:, 18:].data_ptr()
    first, second = Split(IRREPS, [4, -1], layout=layout)(x)  # through a group of scalars
    assert (first.data_ptr(), second.data_ptr()) == (x.data_ptr(), x[:, 8:].data_ptr())
    cut = Split("3x1o", [2, -1], layout=layout)(x[:, :9])[0]
    assert (cut.data_ptr() == x.data_ptr()) == (layout == "mul_ir")


def test_split_in_both_layouts() -> None:
    x = numbers(2, 3, IRREPS.dim)
    parts = [1, "1x1o + 1x0e", 0, -1, "2x1o + 2e"]
    plain, other = Split(IRREPS, parts), Split(IRREPS, parts, layout="ir_mul")
    assert [str(one) for one in plain.irreps_outs] == ["1x1o", "1x1o+1x0e", "", "2x0e+1x1o", "2x1o+1x2e"]
    found = plain(x)
    torch.testing.assert_close(torch.cat(found, -1), x, rtol=0, atol=0)
    for a, b, irreps in zip(found, other(to_ir_mul(x, IRREPS)), plain.irreps_outs, strict=True):
        assert a.shape == (2, 3, irreps.dim)
        assert torch.equal(a, to_mul_ir(b, irreps))


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_merge_is_the_way_back(layout: str) -> None:
    split = Split(IRREPS, ["2x1o", "3x0e + 3x1o", "2e"], layout=layout)
    merge = Merge(split.irreps_outs, layout=layout)
    x = numbers(5, IRREPS.dim)
    assert merge.irreps_out == IRREPS
    assert torch.equal(merge(*split(x)), x)
    a, b = torch.ones(2, 1, 1), torch.zeros(3, 3)
    assert Merge(["0e", "1o"])(a, b).shape == (2, 3, 4)


@pytest.mark.parametrize("text", ["2x1o + 3x0e + 3x1o + 1x2e + 0e", "1e + 1o + 1e", "0x0e + 2x2e", "2x0e", ""])
def test_sort_is_e3nns_and_goes_back(text: str) -> None:
    irreps = o3.Irreps(text)
    plain, other = Sort(irreps), Sort(irreps, layout="ir_mul")
    assert plain.irreps_out == irreps.sort().irreps.simplify()
    loose = Sort(irreps, simplify=False)
    assert loose.irreps_out == irreps.sort().irreps
    assert loose.groups == irreps.sort().inv
    x = numbers(4, irreps.dim)
    wanted = torch.cat([x[:, irreps.slices()[i]] for i in irreps.sort().inv] or [x], -1)
    assert torch.equal(plain(x), wanted)
    assert torch.equal(loose(x), wanted)
    flipped = to_ir_mul(x, irreps)
    assert torch.equal(to_mul_ir(other(flipped), plain.irreps_out), wanted)
    for layer, given in ((plain, x), (loose, x), (other, flipped)):
        assert torch.equal(layer.back(layer(given)), given)


def test_identity_is_e3nns() -> None:
    ours, reference = Identity("1o + 2x1o + 0e", "3x1o + 0e"), theirs.Identity("1o + 2x1o + 0e", "3x1o + 0e")
    assert (ours.irreps_in, ours.irreps_out) == (reference.irreps_in, reference.irreps_out)
    reference.load_state_dict(ours.state_dict())
    ours.load_state_dict(reference.state_dict())
    x = numbers(2, 10)
    assert ours(x) is x
    with pytest.raises(IrrepsError, match=r"irreps_out must be irreps_in, 1x1o\+2x1o, got 3x1o\. Use Sort"):
        Identity("1o + 2x1o", "3x1o", layout="ir_mul")


def test_separable_is_its_modules_on_the_parts() -> None:
    linear, dropout = Linear("3x0e + 3x1o", "2x1o").double(), torch.nn.Dropout(0.0)
    layer = Separable(IRREPS, ["2x1o", "3x0e + 3x1o", "2e"], [None, linear, dropout])
    x = numbers(5, IRREPS.dim)
    assert layer.irreps_out == o3.Irreps("2x1o + 2x1o + 2e")
    assert torch.equal(layer(x), torch.cat([x[:, :6], linear(x[:, 6:18]), x[:, 18:]], -1))


# -- other bases ------------------------------------------------------------------------------------------------------


def test_harmonics_with_the_polar_axis_z() -> None:
    """Degrees 1 and 2 by their formulas; all degrees by e3nn's harmonics of exchanged axes."""
    vectors = torch.randn(7, 3, dtype=torch.float64)
    x, y, z = (vectors / vectors.norm(dim=-1, keepdim=True)).unbind(-1)
    layer = ChangeOfBasis("1o + 2e")
    given = o3.spherical_harmonics([1, 2], vectors, True, "norm")
    root = math.sqrt(3)
    one = [y, z, x]
    two = [root * x * y, root * y * z, (3 * z * z - 1) / 2, root * x * z, root * (x * x - y * y) / 2]
    torch.testing.assert_close(layer(given), torch.stack(one + two, -1), rtol=0, atol=64 * EPS)
    irreps = o3.Irreps.spherical_harmonics(6)
    turned = o3.spherical_harmonics(irreps, vectors[:, [1, 2, 0]], True, "component")
    found = ChangeOfBasis(irreps)(o3.spherical_harmonics(irreps, vectors, True, "component"))
    torch.testing.assert_close(found, turned, rtol=0, atol=1e-12)
    assert int((ChangeOfBasis("2e").matrix("2e") != 0).sum()) == 7  # of 25


@each("layout, out", list(product(["mul_ir", "ir_mul"], repeat=2)))
@each("backend", [None, "torch", "reference"])
def test_there_and_back_in_all_layouts(layout: str, out: str, backend: str | None) -> None:
    irreps = o3.Irreps(MIXED)
    x = torch.randn(2, 3, irreps.dim, dtype=torch.float64)
    given = x if layout == "mul_ir" else to_ir_mul(x, irreps)
    there = ChangeOfBasis(irreps, layout=layout, layout_out=out, backend=backend)
    back = ChangeOfBasis(irreps, inverse=True, layout=out, layout_out=layout, backend=backend)
    torch.testing.assert_close(back(there(given)), given, rtol=0, atol=64 * EPS)
    wanted = ChangeOfBasis(irreps)(x)
    torch.testing.assert_close(there(given), wanted if out == "mul_ir" else to_ir_mul(wanted, irreps))
    plain = ChangeOfBasis(irreps, "e3nn", layout=layout, layout_out=out, backend=backend)
    assert torch.equal(plain(given), x if out == "mul_ir" else to_ir_mul(x, irreps))


@pytest.mark.kernels
def test_bases_of_the_user() -> None:
    irreps = o3.Irreps(MIXED)
    x = torch.randn(4, irreps.dim, dtype=torch.float64)
    turn = -o3.rand_matrix(dtype=torch.float64)
    turned = x @ representation_matrix(irreps, turn).T
    torch.testing.assert_close(ChangeOfBasis(irreps, turn)(x), turned, rtol=0, atol=1e-12)
    torch.testing.assert_close(ChangeOfBasis(irreps, turn, inverse=True)(turned), x, rtol=0, atol=1e-12)
    back = ChangeOfBasis(irreps, turn.float(), inverse=True)(ChangeOfBasis(irreps, turn.float())(x))
    torch.testing.assert_close(back, x, rtol=0, atol=1e-12)
    matrix = torch.tensor([[1.0, 2, 0], [0, 1, 0], [0, 0, 4]])
    found = ChangeOfBasis("2x1o + 0e", {"1o": matrix})(x[:, :7])
    torch.testing.assert_close(found[:, :3], x[:, :3] @ matrix.double().T)
    assert torch.equal(found[:, 6], x[:, 6])
    inverse = ChangeOfBasis("2x1o + 0e", {"1o": matrix}, inverse=True)
    torch.testing.assert_close(inverse(found), x[:, :7])
    assert repr(inverse) == "ChangeOfBasis(2x1o+1x0e | given -> e3nn | mul_ir, backend auto)"


BAD: list[tuple[type[Exception], str, Any]] = [
    (IrrepsError, r"irreps_outs\[0\] must be the groups \['1x1o'\].*, got 1x1e",
     lambda: Extract("1o", ["1e"], [(0,)])),
    (IndexRangeError, r"instructions\[0\] must hold numbers of the 1 groups", lambda: Extract("1o", ["1o"], [(1,)])),
    (ShapeError, r"features must be 2, one for each of", lambda: Merge(["0e", "1o"])(torch.ones(1))),
    (DTypeError, r"features\[1\] must have the dtype",
     lambda: Merge(["0e", "0e"])(torch.ones(1), torch.ones(1).double())),
    (ShapeError, r"features must be at least one, got none", lambda: Merge([])()),
    (IrrepsError, r"irreps_out must be irreps_in, 1x1o, got 1x1e", lambda: Identity("1o", "1e")),
    (ConfigError, r"modules\[0\] must have layout='mul_ir', got 'ir_mul'",
     lambda: Separable("2x0e", [2], [Linear("2x0e", "0e", layout="ir_mul")])),
    (ConfigError, r"the matrix of 1o must have an inverse",
     lambda: ChangeOfBasis("1o", {"1o": torch.ones(3, 3)}, inverse=True)),
]  # fmt: skip


test_bad_input = refused("error, message, call", BAD)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_gradients_of_parts_are_put_together_once(layout: str) -> None:
    """Each view of its own would have a gradient of the whole row."""
    x = torch.randn(4, IRREPS.dim, dtype=torch.float64, requires_grad=True)
    groups = [str(group) for group in IRREPS]
    parts = Split(IRREPS, groups, layout=layout)(x)
    assert {part.grad_fn for part in parts} == {parts[0].grad_fn}
    sort = Sort("2x1o + 3x0e + 1x2e", layout=layout)  # nothing to join
    rows = x[:, : sort.irreps_in.dim]
    found = sort(rows)
    want = torch.cat([rows[:, 6:9], rows[:, :6], rows[:, 9:14]], 1)
    assert bool((found == want).all())
    assert bool((sort.back(found) == rows).all())
    weight = torch.randn_like(found)
    (grad,) = torch.autograd.grad((sort.back(found * 2) * weight).sum(), x)
    assert bool((grad[:, : sort.irreps_in.dim] == 2 * weight).all())


def test_columns_that_are_not_the_whole_row() -> None:
    whole = [Columns(4, 2), Columns(0, 4)]
    assert whole_row(whole, 6) == ([4, 2], [1, 0])
    assert whole_row(whole, 7) is None
    assert whole_row([Columns(0, 4), Columns(0, 4)], 8) is None
    assert whole_row([Columns(1, 5)], 6) is None
    assert whole_row([], 0) is None
    slot = FlatLayout(o3.Irreps("2x1o"), "ir_mul").slots[0]
    assert whole_row([Columns(0, 3, slot), Columns(3, 3, slot, 1)], 6) is None


def test_modules_of_parts_may_change_them_in_place() -> None:
    x = torch.randn(3, 10, requires_grad=True)
    layer = Separable("4x0e + 2x1o", ["4x0e", "2x1o"], [torch.nn.ReLU(inplace=True), None])
    (grad,) = torch.autograd.grad(layer(x * 1).sum(), x)
    torch.testing.assert_close(grad[:, :4], (x[:, :4] > 0).float())
    (alone,) = Split("10x0e", [10])(x * 1)
    assert bool((alone.relu_() >= 0).all())
