"""Programs as text, ``eqlayers-2:<key>:<payload>``; see :mod:`eqlayers.core.forms.packed_text`."""

from __future__ import annotations

from typing import Any

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from .packed_text import pack, unpack

PREFIX = "eqlayers-"


def write_program(program: Program) -> str:
    """The program as text; the same in every process.

    Example:
        >>> program = Program((), (1, 1, 0, 1), "mul_ir")
        >>> read_program(write_program(program)) == program
        True
    """
    return pack(PREFIX, program.content)


def read_program(text: str) -> Program:
    """The program of such a text.

    Raises:
        ConfigError: The text is of another version, damaged, or no program.
    """
    return unpack(PREFIX, text, _program, "program")


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
