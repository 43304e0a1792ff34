"""Programs as text: what a saved graph carries, so that a process that never built the layer can run it.

The text is ``eqlayers-1:<key>:<payload>``: the version of this format, the hash of the program's content, and the
program itself as compressed JSON in URL-safe base64. JSON writes a float64 so that reading gives the same bits.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

from eqlayers_kernels.program import Axis, Path, Program, Slot

from ..errors import ConfigError

PREFIX = "eqlayers-"
_VERSION = "1"
_MAX_BYTES = 1 << 28  # of the JSON; the largest programs of tests have 1e5 terms, 3 MB


def write_program(program: Program) -> str:
    """The program as text; the same in every process.

    Example:
        >>> program = Program((), (1, 1, 0, 1), "mul_ir")
        >>> read_program(write_program(program)) == program
        True
    """
    content = json.dumps([program.layout, program.widths, program.paths], separators=(",", ":"))
    payload = base64.urlsafe_b64encode(zlib.compress(content.encode(), 9)).decode()
    return f"{PREFIX}{_VERSION}:{program.key}:{payload}"


def read_program(text: str) -> Program:
    """The program of such a text.

    Raises:
        ConfigError: The text is of another version, damaged, or no program.
    """
    tag, _, rest = text.partition(":")
    if tag != PREFIX + _VERSION:
        raise ConfigError(
            f"the text of a program must begin with '{PREFIX}{_VERSION}:', got {_short(text)}. It was saved by another "
            f"version of eqlayers: export the model again with this one."
        )
    key, _, payload = rest.partition(":")
    try:
        unzip = zlib.decompressobj()
        content = unzip.decompress(base64.b64decode(payload, altchars=b"-_", validate=True), _MAX_BYTES)
        if not unzip.eof:
            raise ValueError("it is cut short")
        program = _program(json.loads(content, parse_constant=_refuse_constant))
    except (binascii.Error, zlib.error, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"the text of a program must hold a program, got {_short(text)}, which does not ({error}). The file is "
            f"damaged: export the model again."
        ) from error
    if program.key != key:
        raise ConfigError(
            f"the text of a program must hold the program of its key, {key[:16]}, got that of {program.key}. The file "
            f"is damaged: export the model again."
        )
    return program


def _program(content: Any) -> Program:
    layout, widths, paths = content
    wx, wy, ww, wz = _whole(widths)
    return Program(tuple(_path(*fields) for fields in paths), (wx, wy, ww, wz), layout)


def _path(x: Any, y: Any, z: Any, weight: Any, axes: Any, terms: Any) -> Path:
    slots = [Slot(*_whole(fields)) for fields in (x, y, z)]
    first = None if weight is None else _whole([weight])[0]
    return Path(slots[0], slots[1], slots[2], first, tuple(_axis(*a) for a in axes), tuple(_term(*t) for t in terms))


def _axis(extent: Any, x: Any, y: Any, w: Any, z: Any, pairs: Any) -> Axis:
    if type(pairs) is not bool:
        raise TypeError(f"expected true or false, got {pairs!r}")
    return Axis(*_whole((extent, x, y, w, z)), pairs)  # type: ignore[call-arg, arg-type]


def _term(i: Any, j: Any, k: Any, coefficient: Any) -> tuple[int, int, int, float]:
    if type(coefficient) is not float:
        raise TypeError(f"expected a coefficient, got {coefficient!r}")
    i, j, k = _whole((i, j, k))
    return i, j, k, coefficient


def _whole(values: Any) -> list[int]:
    if not all(type(value) is int for value in values):
        raise TypeError(f"expected whole numbers, got {values!r}")
    return list(values)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"expected finite numbers, got {name}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
