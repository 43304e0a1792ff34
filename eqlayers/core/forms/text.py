"""Programs and formulas as text, which saved graphs contain, so that any process can run them.

The text is ``<prefix>2:<key>:<payload>``: 'eqlayers-' or 'eqlayers-formula-' and the number of the format, the hash of
the content, and the content as compressed JSON in URL-safe base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from eqlayers_kernels.forms.expression import FUNCTIONS
from eqlayers_kernels.forms.formula import Block, Formula, Node, Operand
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot, as_json, key_of

from ..errors import ConfigError

#: First characters of texts, before the number of the format.
PROGRAM, FORMULA = "eqlayers-", "eqlayers-formula-"
_MAX_BYTES = 1 << 28  # of the JSON; the largest programs of tests have 1e5 terms, 3 MB
_FORMAT = "2"
T = TypeVar("T")


def write_text(prefix: str, base: Program | Formula) -> str:
    """The program or formula as text, after the prefix of its kind; the same in every process."""
    payload = base64.urlsafe_b64encode(zlib.compress(as_json(base.content), 9)).decode()
    return f"{prefix}{_FORMAT}:{key_of(base.content)}:{payload}"


def read_program(text: str) -> Program:
    """The program of a text of `write_text`; ConfigError if it is damaged, of another version, or no program."""
    return _unpack(PROGRAM, text, _program, "program")


def read_formula(text: str) -> Formula:
    """The formula of a text of `write_text`; ConfigError if it is damaged, of another version, or no formula."""
    return _unpack(FORMULA, text, _formula, "formula")


def _unpack(prefix: str, text: str, build: Callable[[Any], T], what: str) -> T:
    """The program or formula (``what``) of a text with this prefix, by ``build``; ConfigError for others."""
    tag, _, rest = text.partition(":")
    if tag != prefix + _FORMAT:
        raise ConfigError(
            f"the text of a {what} must begin with '{prefix}{_FORMAT}:', got {_short(text)}. It was saved by another "
            f"version of eqlayers: export the model again with this one."
        )
    key, _, payload = rest.partition(":")
    try:
        unzip = zlib.decompressobj()
        content = unzip.decompress(base64.b64decode(payload, altchars=b"-_", validate=True), _MAX_BYTES)
        if not unzip.eof:
            raise ValueError("it is cut short")
        base = build(json.loads(content, parse_constant=_refuse_constant))
    except (binascii.Error, zlib.error, ValueError, TypeError, IndexError, RecursionError) as error:
        raise ConfigError(
            f"the text of a {what} must hold a {what}, got {_short(text)}, which does not ({error}). The file is "
            f"damaged: export the model again."
        ) from error
    of_content: str = base.key  # type: ignore[attr-defined]
    if of_content != key:
        raise ConfigError(
            f"the text of a {what} must hold the {what} of its key, {key[:16]}, got the {what} of {of_content}. The "
            f"file is damaged: export the model again."
        )
    return base


def _refuse_constant(name: str) -> float:
    raise ValueError(f"expected finite numbers, got {name}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


# -- plain data to programs and formulas -------------------------------------------------------------------------------


def _program(content: Any) -> Program:
    layout, widths, paths = content
    wx, wy, ww, wz = _all_whole(widths)
    return Program(tuple(_path(*fields) for fields in paths), (wx, wy, ww, wz), layout)


def _path(x: Any, y: Any, z: Any, weight: Any, axes: Any, terms: Any) -> Path:
    slots = [Slot(*_all_whole(fields)) for fields in (x, y, z)]
    first = None if weight is None else _all_whole([weight])[0]
    return Path(slots[0], slots[1], slots[2], first, tuple(_axis(*a) for a in axes), tuple(_term(*t) for t in terms))


def _axis(extent: Any, x: Any, y: Any, w: Any, z: Any, pairs: Any) -> Axis:
    if type(pairs) is not bool:
        raise TypeError(f"expected true or false, got {pairs!r}")
    return Axis(*_all_whole((extent, x, y, w, z)), pairs)  # type: ignore[call-arg, arg-type]


def _term(i: Any, j: Any, k: Any, coefficient: Any) -> tuple[int, int, int, float]:
    if type(coefficient) is not float:
        raise TypeError(f"expected a coefficient, got {coefficient!r}")
    i, j, k = _all_whole((i, j, k))
    return i, j, k, coefficient


def _formula(content: Any) -> Formula:
    operands, results, nodes, outputs, channels = content
    if type(channels) is not int or not channels >= 0:
        raise TypeError(f"expected a number of channels, got {channels!r}")
    return Formula(
        tuple(_operand(*one) for one in operands),
        tuple(_operand(*one) for one in results),
        tuple(_node(*node) for node in nodes),
        tuple(tuple(None if n is None else _whole(n) for n in part) for part in outputs),
        channels,
    )


def _operand(name: Any, width: Any, blocks: Any, rows: Any) -> Operand:
    return Operand(str(name), _whole(width), tuple(Block(*map(_whole, block)) for block in blocks), str(rows))


def _node(op: Any, args: Any) -> Node:
    if op == "constant" and len(args) == 1 and type(args[0]) is float:
        return Node(op, tuple(args))
    arity = {"load": 2, "add": 2, "multiply": 2, "inverse_length": len(args), **dict.fromkeys(FUNCTIONS, 1)}
    if arity.get(op) != len(args) or not args:
        raise TypeError(f"expected a node, got {op!r} of {args!r}")
    return Node(op, tuple(map(_whole, args)))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {value!r}")
    return value


def _all_whole(values: Any) -> list[int]:
    return [_whole(value) for value in values]
