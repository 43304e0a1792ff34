"""Content as JSON has every bit of its numbers, and equal content has equal keys whatever its classes are called."""

import hashlib
import json
import struct
from typing import NamedTuple

from eqlayers_kernels.forms.content import as_json, key_of
from eqlayers_kernels.forms.formula import Block, Formula, Node, Operand
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot


class Renamed(NamedTuple):
    """A block with other names."""

    begin: int
    count: int
    apart: int
    step: int


def test_numbers_come_back_bit_by_bit() -> None:
    numbers = [0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, 1e22, -1.5]
    read = json.loads(as_json(numbers))
    assert [struct.pack("d", number) for number in read] == [struct.pack("d", number) for number in numbers]
    assert as_json([1, 1.0, "x", None, (2, [])]) == b'[1,1.0,"x",null,[2,[]]]'


def test_keys_are_short_hashes_of_the_text() -> None:
    content = [Block(1, 2, 3, 4), 0.5, "mul_ir"]
    assert key_of(content) == hashlib.sha256(b'[[1,2,3,4],0.5,"mul_ir"]').hexdigest()[:16]
    assert key_of([Renamed(1, 2, 3, 4), 0.5, "mul_ir"]) == key_of(content), "names are in no key"
    others = ([Block(1, 2, 3, 4), 0.5 + 2.0**-53, "mul_ir"], [[1, 2, 3], 4, 0.5, "mul_ir"], [*content, None])
    assert len({key_of(content), *map(key_of, others)}) == 4


def test_keys_of_forms_stay() -> None:
    """Keys that are written down: exported graphs hold them, so they may never change."""
    path = Path(Slot(0, 2, 1), Slot(0, 1, 3), Slot(0, 2, 3), 0, (Axis(2, x=1, w=1, z=1),), ((0, 1, 1, 0.1),))
    assert Program((path,), (2, 3, 2, 6), "mul_ir").key == "f4e8e15b443556c6"
    nodes, row = (Node("load", (0, 1)), Node("constant", (0.1,)), Node("multiply", (0, 1))), (Block(0, 2),)
    base = Formula((Operand("x", 2, row),), (Operand("z", 2, row),), nodes, ((2, None),))
    assert base.key == "3da20f0f70889e6c"
