"""The table of the sparse products: a row is a name and its channel spec.

The gradient columns are written out for the reader; ``tests/sparse/test_table.py`` derives them from the specs. At run
time gradients come from rotating the spec, so a product registered by a user needs its spec and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from ..core.checks import check_type, got
from ..core.errors import ConfigError
from .channels import Channels, parse


class Row(NamedTuple):
    """A sparse product ``z = op(x, y)``, and its gradients as other products of the table (``^T``: axes swapped)."""

    name: str
    channels: str  # channel axes of input1, input2 -> output
    grad1: str  # gx, a product of (y, gz)
    grad2: str  # gy, a product of (gz, x)
    function: str = ""  # name of its autograd Function, or ''


#                name         channels    gx                    gy                  Function
_ROWS = (
    Row("mul",       "u,u->u",   "mul(y, gz)",         "mul(gz, x)",       "SparseMul"),
    Row("outer",     "u,v->uv",  "vecmat(y, gz^T)",    "mat_t_vec(gz, x)", "SparseOuter"),
    Row("inner",     "u,u->",    "vecsca(y, gz)",      "scavec(gz, x)",    "SparseInner"),
    Row("vecmat",    "u,uv->v",  "mat_t_vec(y^T, gz)", "outer(gz, x)^T",   "SparseVecMat"),
    Row("vecsca",    "u,->u",    "scavec(y, gz)",      "inner(gz, x)",     "SparseVecSca"),
    Row("scavec",    ",u->u",    "inner(y, gz)",       "vecsca(gz, x)",    "SparseScaVec"),
    Row("mat_t_vec", "uv,u->v",  "outer(y, gz)",       "vecmat(gz, x^T)",  "SparseMatTVec"),
)  # fmt: skip

PRODUCTS: dict[str, Row] = {row.name: row for row in _ROWS}
NAMED: dict[str, str] = {row.name: row.channels for row in _ROWS}


def register_product(name: str, channels: str) -> Row:
    """Add a sparse product given by its channel einsum; derivatives of every order follow.

    Args:
        name: A new name, an identifier.
        channels: Einsum over the channel axes, such as ``"u,v->uv"``. No letter twice in one operand; every letter
            in at least two of input1, input2 and output.

    Returns:
        The row, with its gradients spelled out. Run it with ``eqlayers.functional.sparse_product(name, ...)``.

    Raises:
        ConfigError: The name is taken by another spec or is no identifier, or the spec cannot be read.

    Example:
        >>> register_product("scaled_matrix", "uv,u->uv").grad2
        "'uv,uv->u'(gz, x)"
    """
    spec = parse(check_type("channels", channels, str, "a text such as 'u,uv->v'", "Write one such spec."))
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"the name of a product must be an identifier, got {got(name)}. Use letters and underscores.")
    row = Row(name, str(spec), f"'{spec.rotate_to_first()}'(y, gz)", f"'{spec.rotate_to_second()}'(gz, x)")
    known = PRODUCTS.get(name)
    if known is not None and parse(known.channels).canonical() != spec.canonical():
        raise ConfigError(
            f"the name of a product must be new, got {name!r}, which is {known.channels!r} already. Pick another name."
        )
    return PRODUCTS.setdefault(name, row)


def channels_of(product: str) -> Channels:
    """The channel spec of a registered product, or of a spec as ``"u,v->uv"``; ConfigError for another name.

    Example:
        >>> channels_of("vecmat")
        Channels(first='u', second='uv', out='v')
    """
    if isinstance(product, str) and "->" in product:
        return parse(product)
    row = PRODUCTS.get(product) if isinstance(product, str) else None
    if row is None:
        raise ConfigError(
            f"product must be one of {', '.join(PRODUCTS)}, got {got(product)}. "
            f"Add it with eqlayers.sparse.register_product(name, channels)."
        )
    return parse(row.channels)
