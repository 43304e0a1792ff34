"""The value of a node in a program: numbers in a buffer, or a formula of one element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

#: Types in C.
TYPES = {torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.bool: "uint8_t"}


@dataclass(eq=False)
class Buffer:
    """Memory of a program.

    Attributes:
        name: In C.
        dtype: Of its elements.
        size: Number of elements, coded.
        constant: The numbers, of a buffer that holds constants.
        outside: Whether the caller owns the memory: an input or an output.
        by_atom: Whether each atom has as many elements, one atom after the other.
        everywhere: Whether the elements of ghosts can be computed like the elements of other atoms.
        of_ghosts: Whether a step reads or adds to the elements of ghosts.
    """

    name: str
    dtype: torch.dtype
    size: int
    constant: torch.Tensor | None = None
    outside: bool = False
    by_atom: bool = False
    everywhere: bool = True
    of_ghosts: bool = False


@dataclass(eq=False)
class View:
    """Elements of a buffer, with a stride for each axis."""

    buffer: Buffer
    offset: int
    shape: list[int]
    strides: list[int]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the buffer."""
        return self.buffer.dtype

    def contiguous(self) -> bool:
        """Whether elements lie one after the other."""
        return all(a == b or size == 1 for size, a, b in zip(self.shape, self.strides, steps(self.shape), strict=True))


@dataclass(eq=False)
class Elementwise:
    """A formula of each element, which is not stored.

    Attributes:
        shape: Coded sizes.
        dtype: Of the result.
        write: From C names of the indices, and lines of C that may come before, to an expression.
        reads: The buffers that it reads.
        number: The value of all elements, if it is one.
    """

    shape: list[int]
    dtype: torch.dtype
    write: Callable[[Sequence[str], Lines], str]
    reads: list[Buffer] = field(default_factory=list)
    number: float | None = None


Value = View | Elementwise


class Lines:
    """Lines of C inside of a loop; equal ones are written once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[str, str], str] = {}

    def local(self, dtype: torch.dtype, expression: str) -> str:
        """The name of a variable that has the value of an expression."""
        key = TYPES[dtype], expression
        if key not in self._known:
            self._known[key] = name = f"v{len(self._known)}"
            self.lines.append(f"const {key[0]} {name} = {expression};")
        return self._known[key]


def steps(shape: Sequence[int]) -> list[int]:
    """Strides of contiguous elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
