"""The table of products: its gradient columns follow from its einsums, and users may add rows."""

import pytest
import torch

from eqlayers.errors import ConfigError
from eqlayers.functional import sparse_product
from eqlayers.sparse import PRODUCTS, channels_of, register_product
from eqlayers.sparse.table import NAMED, lookup, parse
from eqlayers.testing import check_derivatives, random_product
from tests.each import each

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
        op, transposed = lookup(rotated, NAMED)
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
