"""The table of products: its gradient columns follow from its einsums, users may add rows, and specs are parsed."""

import itertools

import pytest
import torch

from eqlayers.errors import ConfigError
from eqlayers.functional import sparse_product
from eqlayers.sparse import PRODUCTS, channels_of, register_product
from eqlayers.sparse.table import NAMED, Channels, lookup, parse
from eqlayers.testing import check_derivatives, random_product
from tests.each import each, refused

SPECIFICATION = {  # name: shapes and gradients, from the table of the specification
    "mul": ("u,u->u", "mul(y, gz)", "mul(gz, x)"),
    "outer": ("u,v->uv", "vecmat(y, gz^T)", "mat_t_vec(gz, x)"),
    "inner": ("u,u->", "vecsca(y, gz)", "scavec(gz, x)"),
    "vecmat": ("u,uv->v", "mat_t_vec(y^T, gz)", "outer(gz, x)^T"),
    "vecsca": ("u,->u", "scavec(y, gz)", "inner(gz, x)"),
    "scavec": (",u->u", "inner(y, gz)", "vecsca(gz, x)"),
    "mat_t_vec": ("uv,u->v", "outer(y, gz)", "vecmat(gz, x^T)"),
}


@pytest.fixture(autouse=True)
def own_table():
    """Rows added by a test go when it ends."""
    before = dict(PRODUCTS)
    yield
    PRODUCTS.clear()
    PRODUCTS.update(before)


def test_the_table_is_that_of_the_specification():
    assert {name: tuple(PRODUCTS[name][1:4]) for name in NAMED} == SPECIFICATION
    assert {name: spec for name, (spec, _, _) in SPECIFICATION.items()} == NAMED


@each("name", SPECIFICATION)
def test_gradient_columns_follow_from_the_einsum(name):
    """Rotate the subscripts, rename letters, look up; and say which matrix is transposed."""
    channels = parse(PRODUCTS[name].channels)
    for written, rotated, operands in (
        (PRODUCTS[name].grad1, channels.rotate_to_first(), ("y", "gz")),
        (PRODUCTS[name].grad2, channels.rotate_to_second(), ("gz", "x")),
    ):
        op, transposed = lookup(rotated)
        first, second = (o + "^T" * t for o, t in zip(operands, transposed, strict=False))
        assert written == f"{op}({first}, {second})" + "^T" * transposed[2]


def test_channels_of_names_and_specs():
    assert channels_of("vecmat") == ("u", "uv", "v")
    assert channels_of("b,ba->a") == ("b", "ba", "a")
    with pytest.raises(ConfigError, match=r"product must be one of mul, outer, .*got 'cross'.*register_product"):
        channels_of("cross")


NEW = {
    "matrix_scale": "uv,u->uv", "contract": "u,uvw->vw", "matmul": "uv,vw->uw", "frobenius": "uv,uv->",
    "plain": ",->",
}  # fmt: skip


@pytest.mark.parametrize("batched", [(1, 1), (1, 0), (0, 1), (0, 0)], ids=str)
@each("name, spec", NEW.items())
def test_a_registered_product_has_derivatives_of_every_order(name, spec, batched):
    row = register_product(name, spec)
    assert PRODUCTS[name] is row
    assert (row.name, row.channels) == (name, spec)
    sizes = {"u": 2, "v": 2, "w": 3}
    x, y, infos = random_product(name, batched, terms=5, batch=(2,), extents=sizes, requires_grad=True)
    fwd, (first, second, out) = infos[0], row.channels.replace("->", ",").split(",")
    table = torch.zeros(5, 3, 4, dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(5), fwd.seg_out.diff())
    table.index_put_((rows, fwd.index1, fwd.index2), fwd.scale, accumulate=True)
    naive = torch.einsum(f"...I{first},...J{second},OIJ->...O{out}", x, y, table)
    torch.testing.assert_close(sparse_product(name, x, y, *infos), naive)
    order = 3 if batched == (1, 0) else 2
    check_derivatives(lambda x, y: sparse_product(name, x, y, *infos), (x, y), order, max_elements=2)


def test_registering_twice():
    row = register_product("matrix_scale", "uv,u->uv")
    assert register_product("matrix_scale", "uv,u->uv") is row
    assert register_product("matrix_scale", "ab,a->ab") is row  # other letters, the same product
    assert register_product("mul", "u,u->u") is PRODUCTS["mul"]
    for name in ("matrix_scale", "mul"):
        with pytest.raises(ConfigError, match=rf"must be new, got '{name}', which is .* already. Pick another name"):
            register_product(name, "uv,v->uv")


def test_the_row_spells_its_gradients():
    row = register_product("matrix_scale", "uv,u->uv")
    assert row.grad1 == "'u,uv->uv'(y, gz)"
    assert row.grad2 == "'uv,uv->u'(gz, x)"


@each("name", ["two words", "", "u,u->u", "1st"])
def test_names_are_identifiers(name):
    with pytest.raises(ConfigError, match="must be an identifier"):
        register_product(name, "u,u->u")
    assert name not in PRODUCTS


@each("spec", ["u,u", "uu,u->u", "u,v->u", "u,u->v"])
def test_specs_outside_the_family_are_not_registered(spec):
    with pytest.raises(ConfigError):
        register_product("bad", spec)
    assert "bad" not in PRODUCTS


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
    assert lookup(parse(spec)) == (op, transposed)


@each("spec", ["uv,uv->u", "uv,uv->uv", "u,uvw->vw", "uv,vw->uw", "uv,u->uv", ",->"])
def test_lookup_finds_nothing_beyond_the_table(spec):
    assert lookup(parse(spec)) is None


@each("letters", [("u", "u", "u"), ("u", "v", "uv"), ("u", "u", ""), ("u", "", "u")])
def test_lookup_is_right_whatever_it_finds(letters):
    """Run what is found, transposing as it says, for every order of places and of letters of a matrix."""
    sizes = {"u": 2, "v": 3}
    for places in itertools.permutations(letters):
        for flip in (1, -1):
            spec = "{},{}->{}".format(*(p[::flip] for p in places))
            sides = lookup(parse(spec))
            assert sides is not None, spec
            x, y = (torch.randn([sizes[c] for c in p[::flip]]) for p in places[:2])
            t1, t2, t3 = sides.transposed
            z = torch.einsum(NAMED[sides.op], x.T if t1 else x, y.T if t2 else y)
            torch.testing.assert_close(z.T if t3 else z, torch.einsum(spec, x, y))


test_specs_outside_the_family_are_refused = refused(
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
    lambda spec: parse(spec),
)
