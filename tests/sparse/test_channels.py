"""Channel specs: reading, rotating, renaming and finding them in the table."""

import itertools

import pytest
import torch

from eqlayers.errors import ConfigError
from eqlayers.sparse.table import NAMED, Channels, lookup, parse
from tests.each import each

SPECS = [*NAMED.values(), "uv,uv->u", "u,uvw->vw", "uv,vw->uw", ",->", "uvw,wvu->", "uv,u->uv"]


@each("spec", SPECS)
def test_reading_and_printing_are_inverse(spec):
    assert str(parse(spec)) == spec
    assert parse(spec.replace(",", " , ").replace("->", " -> ")) == parse(spec)


@each("spec", SPECS)
def test_rotations_are_gradients(spec):
    """The rotated einsums, run on tensors, are the gradients that torch finds for the einsum itself."""
    channels = parse(spec)
    sizes = {"u": 2, "v": 3, "w": 4}
    x, y, gz = (torch.randn([sizes[c] for c in part], dtype=torch.float64, requires_grad=True) for part in channels)
    gx, gy = torch.autograd.grad(torch.einsum(spec, x, y), (x, y), gz)
    torch.testing.assert_close(torch.einsum(str(channels.rotate_to_first()), y, gz), gx)
    torch.testing.assert_close(torch.einsum(str(channels.rotate_to_second()), gz, x), gy)


@each("spec", SPECS)
def test_three_rotations_are_none(spec):
    channels = parse(spec)
    assert channels.rotate_to_first().rotate_to_first().rotate_to_first() == channels
    assert channels.rotate_to_first().rotate_to_second() == channels
    assert channels.rotate_to_second() == channels.rotate_to_first().rotate_to_first()


def test_canonical_letters():
    assert parse("v,vu->u").canonical() == Channels("a", "ab", "b") == parse("u,uv->v").canonical()
    assert parse("x,y->yx").canonical() == Channels("a", "b", "ba")
    assert parse("x,y->yx").canonical() != parse("x,y->xy").canonical()
    assert parse("zyx,x->zy").canonical().canonical() == Channels("abc", "c", "ab")


@each(
    "spec, op, transposed",
    [
        ("b,ba->a", "vecmat", (False, False, False)),
        ("a,ba->b", "vecmat", (False, True, False)),
        ("v,u->uv", "outer", (False, False, True)),
        ("u,v->uv", "outer", (False, False, False)),
        ("uv,v->u", "mat_t_vec", (True, False, False)),
        ("x,x->", "inner", (False, False, False)),
        (",q->q", "scavec", (False, False, False)),
        ("q,->q", "vecsca", (False, False, False)),
    ],
)
def test_lookup(spec, op, transposed):
    assert lookup(parse(spec), NAMED) == (op, transposed)


@each("spec", ["uv,uv->u", "uv,uv->uv", "u,uvw->vw", "uv,vw->uw", "uv,u->uv", ",->"])
def test_lookup_finds_nothing_beyond_the_table(spec):
    assert lookup(parse(spec), NAMED) is None


@each("letters", [("u", "u", "u"), ("u", "v", "uv"), ("u", "u", ""), ("u", "", "u")])
def test_lookup_is_right_whatever_it_finds(letters):
    """Run what is found, transposing as it says, for every order of places and of letters of a matrix."""
    sizes = {"u": 2, "v": 3}
    for places in itertools.permutations(letters):
        for flip in (1, -1):
            spec = "{},{}->{}".format(*(p[::flip] for p in places))
            sides = lookup(parse(spec), NAMED)
            assert sides is not None, spec
            x, y = (torch.randn([sizes[c] for c in p[::flip]]) for p in places[:2])
            t1, t2, t3 = sides.transposed
            z = torch.einsum(NAMED[sides.op], x.T if t1 else x, y.T if t2 else y)
            torch.testing.assert_close(z.T if t3 else z, torch.einsum(spec, x, y))


@each(
    "spec, message",
    [
        ("u,u", r"must read like 'u,uv->v' with lower-case letters, got 'u,u'"),
        ("u,u,u->u", r"must read like"),
        ("U,U->U", r"must read like .* lower-case"),
        ("", r"must read like"),
        ("uu,u->u", r"not repeat a letter within one operand, got 'uu'.*diagonal"),
        ("u,u->uu", r"not repeat a letter within one operand"),
        ("u,v->u", r"at least two of operands and result, got 'v' once .*Sum or expand"),
        ("u,->uv", r"got 'v' once"),
    ],
)
def test_specs_outside_the_family_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        parse(spec)
