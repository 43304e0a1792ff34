"""The table of the sparse products, a name and a channel spec in each row, and the parsing of channel specs.

A channel spec such as ``"u,uv->v"`` is an einsum over the dense axes of operand 1, operand 2 and the result. A product
is linear in both operands, so the spec of a gradient is a rotation of these three.

The gradient columns are written out for the reader; ``tests/sparse/test_table.py`` derives them from the specs. At run
time gradients come from rotating the spec, so a product registered by a user needs its spec and nothing else.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from ..core.checks import check_type, got
from ..core.errors import ConfigError

_FORM = re.compile(r"([a-z]*),([a-z]*)->([a-z]*)")


class Channels(NamedTuple):
    """A parsed channel spec: the letters of operand 1, operand 2 and the result."""

    first: str
    second: str
    out: str

    def __str__(self) -> str:
        return f"{self.first},{self.second}->{self.out}"

    def rotate_to_first(self) -> Channels:
        """Spec of the gradient of operand 1, ``gx = y . gz``."""
        return Channels(self.second, self.out, self.first)

    def rotate_to_second(self) -> Channels:
        """Spec of the gradient of operand 2, ``gy = gz . x``."""
        return Channels(self.out, self.first, self.second)

    @cache  # noqa: B019 -- one for each spec
    def canonical(self) -> Channels:
        """Rename the letters of a spec to a, b, c, ... in order of appearance (out counts last)."""
        names: dict[str, str] = {}
        for letter in "".join(self):
            names.setdefault(letter, chr(ord("a") + len(names)))
        return Channels(*("".join(names[c] for c in part) for part in self))


@cache
def parse(spec: str) -> Channels:
    """Read a channel spec such as ``"u,v->uv"``; ConfigError for repeated letters and letters of one operand only."""
    match = _FORM.fullmatch(spec.replace(" ", ""))
    if match is None:
        raise ConfigError(
            f"channels must read like 'u,uv->v' with lower-case letters, got {spec!r}. Write one such spec."
        )
    channels = Channels(*match.groups())
    for part in channels:
        if len(set(part)) != len(part):
            raise ConfigError(
                f"channels must not repeat a letter within one operand, got {part!r} in {spec!r}. "
                f"Take the diagonal before the product."
            )
    for letter in sorted(set("".join(channels))):
        if sum(letter in part for part in channels) < 2:
            raise ConfigError(
                f"every letter of channels must occur in at least two of operands and result, got {letter!r} once in "
                f"{spec!r}. Sum or expand that axis outside the product."
            )
    return channels


class Sides(NamedTuple):
    """A named product that equals a spec after transposing the flagged ones of (operand 1, operand 2, result)."""

    op: str
    transposed: tuple[bool, bool, bool]


@cache
def lookup(channels: Channels) -> Sides | None:
    """The named product (:data:`NAMED`) that equals ``channels`` up to transposed matrices, or None."""
    canonical = channels.canonical()
    for op, spec in NAMED.items():
        for flips in _FLIPS:
            flipped = Channels(*(p[::-1] if f and len(p) == 2 else p for p, f in zip(parse(spec), flips, strict=True)))
            real = tuple(f and len(p) == 2 for p, f in zip(canonical, flips, strict=True))
            if flipped.canonical() == canonical and real == flips:
                return Sides(op, flips)
    return None


_FLIPS = tuple((a, b, c) for c in (False, True) for b in (False, True) for a in (False, True))


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
